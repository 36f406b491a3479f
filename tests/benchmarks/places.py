"""The network that the processes of a benchmark use: all on loopback, or, as root, each peer in a network namespace of its own.

Namespaces hang on one bridge, so that a peer can be cut off without a word: packets vanish, nothing is reset.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_COMMAND_LIMIT_S: Final = 20.0
_PORT_DISABLED, _PORT_FORWARDING = "0", "3"


@dataclass(frozen=True, slots=True)
class Place:
    """One peer's corner: what to put before its command, its address, and the names of its namespace and bridge port."""

    address: str = LOOPBACK
    prefix: tuple[str, ...] = ()
    namespace: str = ""
    port: str = ""

    @property
    def can_be_cut(self) -> bool:
        """Whether its packets can be made to vanish."""
        return bool(self.namespace)

    def cut(self) -> None:
        """From now on no packet comes in or gets out."""
        for command in _cut_commands(self, is_cut=True):
            _run(command)

    def join(self) -> None:
        """Packets pass again."""
        for command in _cut_commands(self, is_cut=False):
            _run(command)


@dataclass(frozen=True, slots=True)
class Places:
    """The host's address, the peers' corners, and how they came to be."""

    host_address: str
    peers: tuple[Place, ...]
    how: str


def cut_method() -> str:
    """How a place is cut off on this machine."""
    return "iptables DROP" if shutil.which("iptables") else "disabled bridge port"


def _cut_commands(place: Place, *, is_cut: bool) -> list[list[str]]:
    if cut_method() == "iptables DROP":
        inside = ["ip", "netns", "exec", place.namespace, "iptables", "-w", "-I" if is_cut else "-D"]
        return [[*inside, chain, "-j", "DROP"] for chain in ("INPUT", "OUTPUT")]
    return [["bridge", "link", "set", "dev", place.port, "state", _PORT_DISABLED if is_cut else _PORT_FORWARDING]]


@contextmanager
def open_places(num_peers: int, rate_mbit_s: int = 0) -> Iterator[Places]:
    """Namespaces where this user may make them, else loopback. Nothing of it is left at the end.

    Args:
        rate_mbit_s: of each place's link, up and down, by a token bucket on both ends of it; 0 for no limit. Loopback has none.
    """
    name = f"pl{os.getpid() % 100_000}"
    places, commands, reason = _planned(name, num_peers)
    commands += [_limit(place, end, rate_mbit_s) for place in places.peers for end in (0, 1) if rate_mbit_s]
    try:
        if not reason:
            reason = _set_up(commands)
        if reason:
            yield Places(LOOPBACK, (Place(),) * num_peers, f"loopback: {reason}")
        else:
            yield places
    finally:
        _tear_down(name, num_peers)


def _planned(name: str, num_peers: int) -> tuple[Places, list[list[str]], str]:
    """The places, the commands that make them, and why it is not even tried."""
    subnet = free_subnet()
    bridge = f"{name}b"
    commands = [
        ["ip", "link", "add", bridge, "type", "bridge"],
        ["ip", "addr", "add", f"{subnet}.1/24", "dev", bridge],
        ["ip", "link", "set", bridge, "up"],
    ]
    peers = []
    for number in range(1, num_peers + 1):
        space, port, inner = f"{name}n{number}", f"{name}v{number}", f"{name}i{number}"
        address = f"{subnet}.{10 + number}"
        inside = ["ip", "-n", space]
        commands += [
            ["ip", "netns", "add", space],
            ["ip", "link", "add", port, "type", "veth", "peer", "name", inner, "netns", space],
            ["ip", "link", "set", port, "master", bridge, "up"],
            [*inside, "addr", "add", f"{address}/24", "dev", inner],
            [*inside, "link", "set", inner, "up"],
            [*inside, "link", "set", "lo", "up"],
        ]
        peers.append(Place(address, ("ip", "netns", "exec", space), space, port))
    reason = "" if os.geteuid() == 0 else "not root"
    return (
        Places(f"{subnet}.1", tuple(peers), f"a namespace each on a bridge, cut by: {cut_method()}"),
        commands,
        reason,
    )


def _limit(place: Place, end: int, rate_mbit_s: int) -> list[str]:
    """The bucket at one end of a place's link: 0 for what the place sends, 1 for what it receives."""
    inner = place.port.replace("v", "i")
    where = ["tc", "-n", place.namespace, "qdisc", "add", "dev", inner] if end == 0 else []
    where = where or ["tc", "qdisc", "add", "dev", place.port]
    burst_kb = 64 if rate_mbit_s <= 100 else 512
    limits = ["rate", f"{rate_mbit_s}mbit", "burst", f"{burst_kb}kb", "latency", "200ms"]
    return [*where, "root", "tbf", *limits]


def free_subnet() -> str:
    """A private /24 that no interface of this machine has."""
    with suppress(OSError, subprocess.SubprocessError):
        known = subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, timeout=_COMMAND_LIMIT_S).stdout
        for third in range(os.getpid() % 200, 256):
            if f" 10.213.{third}." not in known:
                return f"10.213.{third}"
    return "10.213.0"


def _set_up(commands: Sequence[Sequence[str]]) -> str:
    """Run them; why it did not work, "" when it did."""
    try:
        for command in commands:
            _run(command)
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"no namespaces here ({said})"
    return ""


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S)


def _tear_down(name: str, num_peers: int) -> None:
    """A veth pair goes with its namespace."""
    commands = [["ip", "netns", "del", f"{name}n{number}"] for number in range(1, num_peers + 1)]
    for command in [*commands, ["ip", "link", "del", f"{name}b"]]:
        with suppress(OSError, subprocess.SubprocessError):
            _run(command)
