"""hivemind's libp2p daemon (p2pd) as our child process: in its own session, it dies with us, and error messages show its output.

hivemind's own `P2P.create` cannot give it a session or a parent-death signal: Ctrl-C would reach it before a graceful leave,
and `kill -9` of the daemon would leave it behind. Everything here runs on the asyncio thread.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import ConfigError, MachineError

log = structlog.get_logger()

START_TIMEOUT_S: Final = 30.0
STOP_GRACE_S: Final = 3.0
IDLE_TIMEOUT_S: Final = 30
"""p2pd exits by itself if nobody attaches for this time."""
KEPT_LINES: Final = 20
CIRCUIT_BYTES: Final = 64 << 20
CIRCUIT_S: Final = 1800
"""Bytes in each direction, and time, after which a relay ends a circuit. Its ends make another one."""

MAX_CIRCUITS_PER_PEER: Final = 64
MAX_RESERVATIONS: Final = 256
"""Circuits of one peer, and peers with a place, at one relay."""

CONTROL_SOCKET: Final = "p2pd.sock"
_READY: Final = b"Peer ID:"


@dataclass(frozen=True, slots=True)
class P2pdOptions:
    """Settings of p2pd.

    Attributes:
        identity_file: serialized libp2p private key, locked by the caller; decides the peer id.
        listen: multiaddresses ("/ip4/0.0.0.0/tcp/4001"); port 0 takes a free one and keeps it over restarts.
        announce: multiaddresses to publish instead of the ones listened on.
        accepts_inbound: False for a peer that listens nowhere and only opens connections.
        relays: multiaddresses of relays, each with its peer id, through which peers that nobody can connect to are reached.
        is_hidden: nobody can connect to this peer, so it takes a place at each of the relays.
        serves_circuits: relay for others, within the limits below.
    """

    identity_file: Path
    listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/0",)
    announce: tuple[str, ...] = ()
    accepts_inbound: bool = True
    relays: tuple[str, ...] = ()
    is_hidden: bool = False
    serves_circuits: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """The relays at which this peer takes a place."""
        return self.relays if self.is_hidden else ()


def p2pd_arguments(options: P2pdOptions, control_socket: Path) -> list[str]:
    """The flags of p2pd, pure.

    Raises:
        ConfigError: an announced address with port 0.
    """
    for address in options.announce:
        if address.endswith(("/tcp/0", "/udp/0")) or "/tcp/0/" in address:
            raise ConfigError(f"announced address {address}", "an explicit port", "name the port that others can reach")
    is_loopback = all("/127.0.0.1/" in address or "/::1/" in address for address in options.listen)
    flags: dict[str, str | int] = {
        "listen": f"/unix{control_socket}",
        "id": str(options.identity_file.absolute()),
        "tls": 1,
        "noise": 1,
        "connManager": 1,
        "autonat": 1,
        **_relay_flags(options),
        # asking the router for a port takes seconds and is pointless on loopback
        "natPortMap": int(options.accepts_inbound and not is_loopback),
        "idleTimeout": f"{IDLE_TIMEOUT_S}s",
        "dhtServer" if options.accepts_inbound else "dhtClient": 1,
    }
    if options.accepts_inbound:
        flags["hostAddrs"] = ",".join(options.listen)
    else:
        flags["noListenAddrs"] = 1
    if options.announce:
        flags["announceAddrs"] = ",".join(options.announce)
    return [f"-{name}={value}" for name, value in flags.items()]


def _relay_flags(options: P2pdOptions) -> dict[str, str | int]:
    """A hidden peer takes places, the host relays within limits, and nobody else is told to relay.

    This p2pd passes short circuits for anybody, whatever -relay and -relayService say: 128 KiB and two minutes each.
    At some starts these hold for the host, too. Circuits that end are made again.
    """
    flags: dict[str, str | int] = {
        "relay": 1,
        "relayService": int(options.serves_circuits),
        "autoRelay": int(bool(options.places)),
    }
    if options.places:
        flags |= {"trustedRelays": ",".join(options.places), "relayDiscovery": 0, "forceReachabilityPrivate": 1}
    if options.serves_circuits:
        flags |= {
            "forceReachabilityPublic": 1,
            "relayDataLimit": CIRCUIT_BYTES,
            "relayTimeLimit": f"{CIRCUIT_S}s",
            "relayMaxCircuits": MAX_CIRCUITS_PER_PEER,
            "relayMaxReservations": MAX_RESERVATIONS,
        }
    return flags


def p2pd_program() -> Path:
    """The binary that comes with hivemind, found without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("hivemind")
    if spec is None or not spec.submodule_search_locations:
        raise MachineError("hivemind is not installed", "hivemind and its p2pd", "install potluck again")
    program = Path(spec.submodule_search_locations[0]) / "hivemind_cli" / "p2pd"
    if not os.access(program, os.X_OK):
        raise MachineError(f"no p2pd at {program}", "hivemind's bundled libp2p daemon", "install hivemind again")
    return program


class P2pdProcess:
    """One running p2pd. Made by `start_p2pd`."""

    def __init__(self, process: subprocess.Popen[bytes], control_socket: Path) -> None:
        self._process = process
        self.control_socket = control_socket
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running, as the kernel reports now. `poll` is blind while another thread waits for the exit."""
        if self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # the other thread has just taken its status
            return False

    @property
    def last_line(self) -> str:
        """The last line that it printed."""
        return self._lines[-1] if self._lines else "it printed nothing"

    def begin_reading(self) -> None:
        """Start to read its output, so that it never blocks on a full pipe; the latest lines are kept."""
        self._reading = asyncio.create_task(self._read(), name="p2pd output")

    async def _read(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout)
        try:
            while True:
                try:
                    line = await reader.readline()
                except ValueError:  # a line longer than the reader's limit: dropped, the next one is read
                    continue
                if not line:
                    return
                self._lines.append(line.decode(errors="replace").strip()[:500])
                if line.startswith(_READY):
                    self._ready.set()
        finally:
            transport.close()
            self._ready.set()

    async def wait_ready(self) -> None:
        """Wait until it serves its control socket.

        Raises:
            MachineError: it exited or was not ready in time; the message shows its last line.
        """
        try:
            await asyncio.wait_for(self._ready.wait(), START_TIMEOUT_S)
        except TimeoutError:
            raise MachineError(
                f"p2pd was not ready within {START_TIMEOUT_S:.0f} s: {self.last_line}", "a libp2p daemon"
            ) from None
        if not any(line.startswith(_READY.decode()) for line in self._lines):
            raise MachineError(
                f"p2pd did not start: {self.last_line}",
                "a libp2p daemon",
                "check the listen address and that its port is free",
            )

    async def wait_exit(self) -> int:
        """Wait for the end of the process; returns its exit status."""
        return await asyncio.to_thread(self._process.wait)

    def terminate(self) -> None:
        """Ask the process to end; `wait_exit` returns when it has."""
        if self.is_running:
            self._process.terminate()

    async def stop(self) -> None:
        """Terminate the process, and kill it after STOP_GRACE_S."""
        try:
            await self._end()
        finally:
            if self._reading is not None:
                self._reading.cancel()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self.control_socket.unlink(missing_ok=True)

    async def _end(self) -> None:
        if self.is_running:
            self._process.terminate()
        exit_task = asyncio.create_task(self.wait_exit())
        done, _ = await asyncio.wait({exit_task}, timeout=STOP_GRACE_S)
        if not done:
            self._process.kill()
            await exit_task


async def start_p2pd(options: P2pdOptions, folder: Path) -> P2pdProcess:
    """Start p2pd with its control socket in `folder` (short and private) and wait until it serves.

    Raises:
        MachineError: it did not start (port in use, unreadable identity).
    """
    control_socket = folder / CONTROL_SOCKET
    control_socket.unlink(missing_ok=True)
    launcher = Path(str(resources.files("averaging.network.libp2p") / "p2pd_launcher.py")).absolute()
    command = [sys.executable, "-I", "-S", str(launcher), str(os.getpid()), str(p2pd_program())]
    # where there is no parent-death signal, the launcher notices our death by the end of its standard input
    process = subprocess.Popen(
        [*command, *p2pd_arguments(options, control_socket)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=folder,
        env={**os.environ, "GOLOG_LOG_LEVEL": os.environ.get("GOLOG_LOG_LEVEL", "error")},
    )
    daemon = P2pdProcess(process, control_socket)
    daemon.begin_reading()
    try:
        await daemon.wait_ready()
    except BaseException:
        await asyncio.shield(daemon.stop())
        raise
    log.debug("p2pd_started", pid=daemon.pid, listen=options.listen)
    return daemon


def with_real_ports(listen: Sequence[str], addresses: Sequence[str]) -> tuple[str, ...]:
    """The listen addresses with the actual port instead of 0, so that a restart keeps it."""
    ports = [address.split("/tcp/")[1].split("/")[0] for address in addresses if "/tcp/" in address]
    if not ports:
        return tuple(listen)
    return tuple(
        f"{address[: -len('/tcp/0')]}/tcp/{ports[0]}" if address.endswith("/tcp/0") else address for address in listen
    )
