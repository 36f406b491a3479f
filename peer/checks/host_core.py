"""Judges the way to the host for `potluck doctor`: readings over the network -> findings. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from averaging.network.seams.host_names import is_loopback
from peer.checks.machine_core import Finding, Level, Unread, unread
from peer.membership.host_ways_core import Purpose, Tried, closed, place
from protocol.identity.puzzle import MOST_BITS
from protocol.tables import duration

CLOCK_GOOD_S: Final = 5.0
"""Messages live for two minutes, so an offset of some seconds does no harm yet. It shows that the clock is not synchronised."""

CLOCK_MOST_S: Final = 120.0
"""The limit in peer/membership/joining.py; a test compares them."""

BITS_FEW_PER_S: Final = 1e6
"""Below this rate an int8 round of a model of ten million parameters takes more than a minute."""

TRY_S: Final = 0.01
"""Of one core, for one try at a puzzle, as `puzzle_bits` in `[admission]` says. A puzzle of n bits takes 2^n on average."""

FROM_A_CHECKOUT: Final = "from a checkout"
"""The release name in averaging/release.py for a checkout. Two of these cannot be compared."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The host answered.

    Attributes:
        address: as named in the invite or the last run.
        ahead_s: how far its clock is ahead of ours.
        release, own_release: versions of Potluck, there and here.
    """

    address: str
    ahead_s: float
    release: str
    own_release: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The host could not be asked: the finding and the remedy. `is_needed` is False for a peer that was admitted before, because it
    can go on without the host.
    """

    found: str
    fix: str
    is_needed: bool


@dataclass(frozen=True, slots=True)
class HostRefusal:
    """The host answered and would not admit us: the finding and the remedy."""

    found: str
    fix: str


@dataclass(frozen=True, slots=True)
class PortTaken:
    """We could not listen on the port where other peers should reach us."""

    found: str


@dataclass(frozen=True, slots=True)
class OwnPeer:
    """The peer of this state folder runs and has its ports, so the host could not try them.

    Attributes:
        port, bulk_port: its ports for other peers and for weights and data; 0 for none, or not known.
        is_outbound_only: the host could not connect to it when it started.
    """

    port: int
    bulk_port: int
    is_outbound_only: bool


@dataclass(frozen=True, slots=True)
class ReachReport:
    """The result of the host's attempt to connect back.

    Attributes:
        listen_host, port: our listening address.
        seen_as: our IP address as the host sees it.
        is_own_address: an interface of this machine has it, so there is no router in between.
        announce_host: the address that the owner announces to others.
        data_port: the port for weights and data beside that one; 0 if it is any free one.
    """

    listen_host: str
    port: int
    is_reached: bool
    seen_as: str
    is_own_address: bool
    announce_host: str
    data_port: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes that arrived, and the seconds that they took without the round trips."""

    num_bytes: int
    seconds: float

    @property
    def bits_per_s(self) -> float:
        """The rate in bits per second."""
        return 8 * self.num_bytes / self.seconds


@dataclass(frozen=True, slots=True)
class Line:
    """The line between this machine and the host."""

    up: Flow
    down: Flow


@dataclass(frozen=True, slots=True)
class HostReadings:
    """All readings of the way to the host. `reach` is None if the owner takes no inbound connections. `reach` and `line` are None
    if the host did not answer or refused the probe. `bulk` is the port for weights and data, None if `reach` is or tells of it, too.
    `needed_bits_per_s` is the rate of a round in each direction, 0 if the run is not known here. `ways` are the host's ports besides
    gRPC, each tried as a join uses it; none if no address of them is known. `puzzle_bits` is the difficulty of the puzzle of an open
    run that this machine has not joined, None otherwise: the host probes no strangers.
    """

    answer: Answer | NoAnswer
    reach: ReachReport | PortTaken | OwnPeer | Unread | None = None
    line: Line | Unread | None = None
    refusal: HostRefusal | None = None
    bulk: ReachReport | PortTaken | Unread | None = None
    needed_bits_per_s: float = 0.0
    ways: tuple[Tried, ...] = ()
    puzzle_bits: int | None = None


def judge_host(readings: HostReadings) -> tuple[Finding, ...]:
    """The findings about the way to the host, in the order of the report."""
    answer = readings.answer
    if isinstance(answer, NoAnswer):
        # If no port answers at all, the host or the network is off: one cause, and no port is to be forwarded.
        is_off = all(each.reason for each in readings.ways)
        level = Level.FAIL if answer.is_needed else Level.WARN
        return (_silence(answer), *(() if is_off else _ways(readings.ways, level)))
    # A host that refuses us gives us no data either: that port is not closed.
    is_refused = readings.refusal is not None
    ways = [each for each in readings.ways if not (is_refused and each.purpose is Purpose.DATA and each.reason)]
    findings = [_release(answer), _clock(answer), *_ways(tuple(ways), Level.FAIL)]
    if readings.refusal is not None:
        return (*findings, Finding("admission", Level.FAIL, readings.refusal.found, readings.refusal.fix))
    if readings.puzzle_bits is not None:
        return (*findings, _open_door(readings.puzzle_bits))
    findings.append(_reach(readings.reach))
    if readings.bulk is not None:
        findings.append(_bulk(readings.bulk))
    if readings.line is not None:
        findings.append(_line(readings.line, readings.needed_bits_per_s))
    return tuple(findings)


def _ways(tried: tuple[Tried, ...], if_closed: Level) -> list[Finding]:
    """A finding for each purpose of the host's ports. One address of several is enough."""
    findings, failures = list[Finding](), closed(tried)
    for purpose in dict.fromkeys(each.purpose for each in tried):
        name = "host's peers" if purpose is Purpose.PEERS else "host's data"
        of_it = [each for each in tried if each.purpose is purpose]
        if found := [each for each in failures if each.purpose is purpose]:
            places = ", ".join(f"{place(each.port)} does not answer: {each.reason}" for each in found)
            ports = " and ".join(dict.fromkeys(str(each.port.port) for each in found))
            is_here = all(is_loopback(each.port.host) for each in found)
            forward = f"forward TCP port {ports} of the router to the host and open it in the firewall"
            fix = "start the host on this machine again" if is_here else f"tell the host's owner: {forward}"
            findings.append(Finding(name, if_closed, places, fix))
            continue
        places = ", ".join(place(each.port) for each in of_it if not each.reason)
        findings.append(Finding(name, Level.OK, f"answers at {places}, the port for {purpose.value}"))
    return findings


def _silence(answer: NoAnswer) -> Finding:
    if answer.is_needed:
        return Finding("host", Level.FAIL, answer.found, answer.fix)
    return Finding("host", Level.WARN, f"{answer.found}; the peer goes on without it", answer.fix)


def _release(answer: Answer) -> Finding:
    found = f"answers at {answer.address}"
    if answer.release in ("", FROM_A_CHECKOUT) or answer.own_release == FROM_A_CHECKOUT:
        return Finding("host", Level.OK, f"{found}, with the same protocol")
    if answer.release != answer.own_release:
        return Finding(
            "host",
            Level.WARN,
            f"{found} with potluck {answer.release}, this machine has {answer.own_release}",
            f"install potluck {answer.release} if anything goes wrong",
        )
    return Finding("host", Level.OK, f"{found}, with the same potluck {answer.release}")


def _clock(answer: Answer) -> Finding:
    off_s = abs(answer.ahead_s)
    side = "behind" if answer.ahead_s > 0 else "ahead of"
    found = f"this machine's clock is {off_s:.1f} s {side} the host's"
    fix = "set it, for example with: sudo timedatectl set-ntp true"
    # Written so that NaN, which only a broken host sends, fails.
    if off_s <= CLOCK_GOOD_S:
        return Finding("clock", Level.OK, found)
    if off_s <= CLOCK_MOST_S:
        return Finding("clock", Level.WARN, found, fix)
    return Finding("clock", Level.FAIL, f"{found}: all its messages would be refused as expired or too early", fix)


def _open_door(puzzle_bits: int) -> Finding:
    name = "admission"
    if puzzle_bits > MOST_BITS:
        found = f"the run is open to anybody, and asks for a puzzle of {puzzle_bits} bits; expected at most {MOST_BITS}"
        return Finding(name, Level.FAIL, found, "ask the run's owner to lower puzzle_bits")
    wait = duration(max(1.0, TRY_S * 2**puzzle_bits))
    found = f"the run is open to anybody; a join solves a puzzle first, about {wait} of one core"
    return Finding(name, Level.OK, f"{found}, and then finds out whether others can connect")


def _reach(reach: ReachReport | PortTaken | OwnPeer | Unread | None) -> Finding:
    name = "reachable"
    if reach is None:
        return Finding(
            name, Level.OK, "others cannot connect, as --no-listen asks; the work counts in full all the same"
        )
    if isinstance(reach, Unread):
        return unread(name, reach)
    if isinstance(reach, OwnPeer):
        return _own_peer(reach)
    if isinstance(reach, PortTaken):
        fix = (
            "end the program that listens there (a peer of yours?), or give another with --listen-port or --listen-host"
        )
        return Finding(name, Level.FAIL, reach.found, fix)
    if not reach.is_reached:
        return outbound_only(reach)
    found = f"direct: the host connected to {reach.seen_as} port {reach.port}"
    if reach.is_own_address or reach.announce_host:
        return Finding(name, Level.OK, found)
    fix = f"announce that address: --announce-host {reach.seen_as} --listen-port {reach.port}"
    return Finding(name, Level.WARN, f"{found}, which is a router's address", fix)


def _own_peer(own: OwnPeer) -> Finding:
    name = "reachable"
    ports = " and ".join(
        f"TCP {port} ({use})" for port, use in ((own.port, "peers"), (own.bulk_port, "weights and data")) if port
    )
    if not own.is_outbound_only:
        found = f"the peer that runs here listens on {ports or 'ports of its own'}; the host can try them only while it is stopped"
        return Finding(name, Level.OK, found)
    found = f"others cannot connect to the peer that runs here, which listens on {ports or 'ports of its own'}"
    fix = "end it and run potluck doctor again, which says what to open; or let it be: the work counts in full all the same"
    return Finding(name, Level.WARN, found, fix)


def _bulk(bulk: ReachReport | PortTaken | Unread) -> Finding:
    """Judge the port for weights and data. If it cannot be reached, libp2p carries them over the other port."""
    name = "bulk"
    if isinstance(bulk, Unread):
        return unread(name, bulk)
    if isinstance(bulk, PortTaken):
        return Finding(
            name, Level.FAIL, bulk.found, "end the program that listens there, or give another with --bulk-port"
        )
    if bulk.is_reached:
        found = f"direct: weights and data come on {bulk.seen_as} port {bulk.port}"
        if bulk.is_own_address or bulk.announce_host:
            return Finding(name, Level.OK, found)
        return Finding(
            name, Level.WARN, f"{found}, which is a router's address", f"keep it with --bulk-port {bulk.port}"
        )
    found = f"the host could not connect back to {bulk.seen_as} port {bulk.port}: weights and data come over libp2p"
    where = "open TCP port {} in the firewall" if bulk.is_own_address else "forward TCP port {} of the router, too,"
    fix = f"{where.format(bulk.port)} and join with --bulk-port {bulk.port}: it costs less processor time"
    return Finding(name, Level.WARN, found, fix)


def outbound_only(reach: ReachReport) -> Finding:
    """The finding for a peer that the host could not connect back to."""
    found = f"others cannot connect: the host could not connect back to {reach.seen_as} port {reach.port}"
    other = "; or join with --no-listen: the work counts in full all the same"
    return Finding("reachable", Level.WARN, found, f"{open_way(reach)}{other}")


def open_way(reach: ReachReport) -> str:
    """How the owner lets others connect."""
    if reach.listen_host in ("127.0.0.1", "::1", "localhost"):
        return "take connections with --listen-host ::"
    ports = f"{reach.port} and {reach.data_port}" if reach.data_port else f"{reach.port}"
    if reach.is_own_address:
        return f"open TCP {ports} in the firewall and join with --listen-port {reach.port}"
    return f"forward TCP {ports} to it and join with --listen-port {reach.port} --announce-host {reach.seen_as}"


def _line(line: Line | Unread, needed_bits_per_s: float) -> Finding:
    name = "bandwidth"
    if isinstance(line, Unread):
        return unread(name, line)
    found = f"{_rate(line.up)} up to the host, {_rate(line.down)} down"
    slower = min(line.up.bits_per_s, line.down.bits_per_s)
    if slower < needed_bits_per_s:
        found = f"{found}: a round of the run does not finish in time below {needed_bits_per_s / 1e6:g} Mbit/s each way"
        return Finding(name, Level.WARN, found, "a faster line, or ask the host for a smaller codec or longer rounds")
    if slower < BITS_FEW_PER_S:
        return Finding(
            name,
            Level.WARN,
            found,
            "rounds will wait for this line: use a cable instead of wireless, or share it with fewer",
        )
    return Finding(name, Level.OK, found)


def _rate(flow: Flow) -> str:
    return f"{flow.bits_per_s / 1e6:.1f} Mbit/s"
