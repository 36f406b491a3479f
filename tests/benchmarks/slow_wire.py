"""`python -m tests.benchmarks.slow_wire NAME SUBNET NUM_PEERS`: network namespaces with lines of any rate, delay and loss.

This kernel cannot delay packets, so a process does it: each namespace has a tun device as its only way out, and this process reads
every packet, carries it over the line of who sent it and of who gets it (wire_core.py), and writes it to the device of the other. So
TCP and its congestion control are the kernel's own. Traffic with the host is not delayed: data and status requests use it, and they
are not measured. Each line of its standard input is the `WireSpec` from then on; it ends with that.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from typing import IO, Final

from protocol.errors import MachineError
from tests.benchmarks.places import Place, Places, free_subnet
from tests.benchmarks.processes import die_with_parent
from tests.benchmarks.wire_core import Line, WireSpec

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x1, 0x1000
_MOST_PACKET_BYTES: Final = 2048
_COMMAND_LIMIT_S: Final = 20.0
_START_LIMIT_S: Final = 30.0
_AT_ONCE: Final = 64
"""Packets read from one device before others have their turn."""


class Wire:
    """The process with the lines, as its starter sees it."""

    def __init__(self, process: subprocess.Popen[str], places: Places) -> None:
        self._process = process
        self.places = places

    def become(self, spec: WireSpec) -> None:
        """Other lines from now on, for all peers."""
        into = _pipe(self._process.stdin)
        into.write(json.dumps(asdict(spec)) + "\n")
        into.flush()


@contextmanager
def open_wire(num_peers: int) -> Iterator[Wire]:
    """A namespace for each peer, and no limit between them at first.

    Raises:
        MachineError: not root, or no namespaces or tun devices here.
    """
    name, subnet = f"pw{os.getpid() % 100_000}", free_subnet()
    command = [sys.executable, "-m", "tests.benchmarks.slow_wire", name, subnet, str(num_peers)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent
    )
    try:
        output = select.poll()
        output.register(_pipe(process.stdout), select.POLLIN)
        said = _pipe(process.stdout).readline().strip() if output.poll(_START_LIMIT_S * 1_000) else "nothing"
        if said != "ready":
            raise MachineError(f"no slow lines on this machine: {said or 'it ended'}", "root, namespaces and tun")
        peers = tuple(
            Place(_address(subnet, number), ("ip", "netns", "exec", f"{name}n{number}"), f"{name}n{number}")
            for number in range(1, num_peers + 1)
        )
        yield Wire(process, Places(_address(subnet, 0), peers, "a namespace each behind a line made by a process"))
    finally:
        _pipe(process.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_COMMAND_LIMIT_S)
        process.kill()
        for number in range(1, num_peers + 1):
            subprocess.run(["ip", "netns", "del", f"{name}n{number}"], capture_output=True, timeout=_COMMAND_LIMIT_S)


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise MachineError("a process without pipes", "pipes")
    return stream


def _address(subnet: str, number: int) -> str:
    """Of a peer; of the host with 0."""
    return f"{subnet}.{10 + number}"


# --- the process --------------------------------------------------------------------------------------------------------------


def _open_tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S)


def _set_up(name: str, subnet: str, num_peers: int) -> dict[bytes, int]:
    """The devices, by the address behind each."""
    devices = {}
    for number in range(num_peers + 1):
        device, address = f"{name}t{number}", _address(subnet, number)
        devices[socket.inet_aton(address)] = _open_tun(device)
        inside = ["ip"]
        if number:
            space = f"{name}n{number}"
            inside = ["ip", "-n", space]
            _run("ip", "netns", "add", space)
            _run("ip", "link", "set", device, "netns", space)
            _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "addr", "add", f"{address}/24", "dev", device)
        _run(*inside, "link", "set", device, "mtu", "1500", "txqueuelen", "2000", "up")
    return devices


class _Switch:
    """Carries packets from device to device; those of the host at once."""

    def __init__(self, devices: dict[bytes, int], host: bytes) -> None:
        self._devices = devices
        self._host = host
        self._random = random.Random(1)
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self.become(WireSpec())

    def become(self, spec: WireSpec) -> None:
        """Other lines; what is on its way stays so."""
        self._up = {address: Line(spec) for address in self._devices}
        self._down = {address: Line(spec) for address in self._devices}

    def wait_s(self, now_s: float) -> float | None:
        """Until something arrives; None with nothing on its way."""
        return max(0.0, self._due[0][0] - now_s) if self._due else None

    def deliver(self, now_s: float) -> None:
        """The bytes that have arrived by now."""
        while self._due and self._due[0][0] <= now_s:
            at_s, _, arrive = heapq.heappop(self._due)
            arrive(at_s)

    def read(self, device: int, now_s: float) -> None:
        """Take what a device has."""
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(device, _MOST_PACKET_BYTES)
            except BlockingIOError:
                return
            if len(packet) >= 20 and packet[0] >> 4 == 4:
                self._take(packet, now_s)

    def _take(self, packet: bytes, now_s: float) -> None:
        source, target = packet[12:16], packet[16:20]
        if target not in self._devices:
            return
        if self._host in (source, target):
            self._write(target, packet)
            return

        def at_the_other_end(at_s: float) -> None:
            self._later(self._down[target], at_s, packet, lambda _: self._write(target, packet))

        self._later(self._up[source], now_s, packet, at_the_other_end)

    def _later(self, line: Line, now_s: float, packet: bytes, arrive: Callable[[float], None]) -> None:
        at_s = line.arrival_s(now_s, len(packet), self._random.random())
        if at_s is not None:
            heapq.heappush(self._due, (at_s, next(self._order), arrive))

    def _write(self, target: bytes, packet: bytes) -> None:
        with suppress(OSError):  # its device is full, or its namespace is going
            os.write(self._devices[target], packet)


def serve(name: str, subnet: str, num_peers: int) -> None:
    """Carry packets until the standard input ends."""
    with suppress(OSError):
        os.nice(-10)  # a line does not become slower because its ends are busy
    try:
        devices = _set_up(name, subnet, num_peers)
    except (OSError, subprocess.SubprocessError) as error:
        print(getattr(error, "stderr", "") or error, flush=True)
        return
    switch = _Switch(devices, socket.inet_aton(_address(subnet, 0)))
    print("ready", flush=True)
    poller = select.epoll()
    for device in (*devices.values(), sys.stdin.fileno()):
        poller.register(device, select.EPOLLIN)
    while True:
        wait_s = switch.wait_s(time.monotonic())
        ready = poller.poll(-1 if wait_s is None else wait_s)
        switch.deliver(time.monotonic())
        for device, _ in ready:
            if device != sys.stdin.fileno():
                switch.read(device, time.monotonic())
                continue
            reported = sys.stdin.readline()
            if not reported:
                return
            switch.become(WireSpec(**json.loads(reported)))


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
