"""The judgement of `potluck doctor` on the way to the host, pure: what was read over the wire -> findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from peer.checks.machine_core import Finding, Level, Unread, unread

CLOCK_GOOD_S: Final = 5.0
"""Messages live for two minutes; a clock that is off by seconds costs nothing yet, and says that nobody sets it."""

CLOCK_MOST_S: Final = 120.0
"""As peer/membership/joining.py refuses it; a test says so."""

BITS_FEW_PER_S: Final = 1e6
"""A model of ten million parameters is ten megabytes a round in int8: 80 s at this rate."""

FROM_A_CHECKOUT: Final = "from a checkout"
"""As averaging/release.py says it: nobody knows then whether two of them are the same."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The host answered.

    Attributes:
        address: as the invite or the last run names it.
        ahead_s: how far its clock is ahead of ours.
        release, own_release: of Potluck, there and here.
    """

    address: str
    ahead_s: float
    release: str
    own_release: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The host could not be asked: what was found, and what to do. `is_needed` is False for a peer that has been admitted before: it
    goes on without the host.
    """

    found: str
    fix: str
    is_needed: bool


@dataclass(frozen=True, slots=True)
class HostRefusal:
    """The host answers and would not let us in: what was found, and what to do."""

    found: str
    fix: str


@dataclass(frozen=True, slots=True)
class PortTaken:
    """We could not listen where others are to reach us."""

    found: str


@dataclass(frozen=True, slots=True)
class ReachReport:
    """What came of the host's attempt to connect back.

    Attributes:
        listen_host, port: where we listened.
        seen_as: the IP address that the host sees us at.
        is_own_address: an interface of this machine has it, so no router stands between.
        announce_host: what the owner lets others be told.
    """

    listen_host: str
    port: int
    is_reached: bool
    seen_as: str
    is_own_address: bool
    announce_host: str


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes that arrived, and the seconds that they took without the round trips."""

    num_bytes: int
    seconds: float

    @property
    def bits_per_s(self) -> float:
        """The rate."""
        return 8 * self.num_bytes / self.seconds


@dataclass(frozen=True, slots=True)
class Line:
    """The line between this machine and the host."""

    up: Flow
    down: Flow


@dataclass(frozen=True, slots=True)
class HostReadings:
    """Everything that was read of the way to the host. `reach` is None where the owner takes no inbound connections; it and `line` are
    where the host did not answer, or refused to tell them. `bulk` is the port for weights and data, None where `reach` is none.
    `needed_bits_per_s` is what a round of the run takes each way, 0 where the run is not known here yet.
    """

    answer: Answer | NoAnswer
    reach: ReachReport | PortTaken | Unread | None = None
    line: Line | Unread | None = None
    refusal: HostRefusal | None = None
    bulk: ReachReport | PortTaken | Unread | None = None
    needed_bits_per_s: float = 0.0


def judge_host(readings: HostReadings) -> tuple[Finding, ...]:
    """The findings about the way to the host, in the order of the report."""
    answer = readings.answer
    if isinstance(answer, NoAnswer):
        return (_silence(answer),)
    findings = [_release(answer), _clock(answer)]
    if readings.refusal is not None:
        return (*findings, Finding("admission", Level.FAIL, readings.refusal.found, readings.refusal.fix))
    findings.append(_reach(readings.reach))
    if readings.bulk is not None:
        findings.append(_bulk(readings.bulk))
    if readings.line is not None:
        findings.append(_line(readings.line, readings.needed_bits_per_s))
    return tuple(findings)


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
            f"{found} with potluck {answer.release}, here is {answer.own_release}",
            f"install potluck {answer.release} should anything go wrong",
        )
    return Finding("host", Level.OK, f"{found}, with the same potluck {answer.release}")


def _clock(answer: Answer) -> Finding:
    off_s = abs(answer.ahead_s)
    side = "behind" if answer.ahead_s > 0 else "ahead of"
    found = f"this machine's clock is {off_s:.1f} s {side} the host's"
    fix = "set it, for example with: sudo timedatectl set-ntp true"
    # Written so that NaN, which only a broken host says, fails.
    if off_s <= CLOCK_GOOD_S:
        return Finding("clock", Level.OK, found)
    if off_s <= CLOCK_MOST_S:
        return Finding("clock", Level.WARN, found, fix)
    return Finding("clock", Level.FAIL, f"{found}: all its messages would count as expired or as too early", fix)


def _reach(reach: ReachReport | PortTaken | Unread | None) -> Finding:
    name = "reachable"
    if reach is None:
        return Finding(name, Level.OK, "outbound only, as --no-listen asks: contributes fully, reduces nothing")
    if isinstance(reach, Unread):
        return unread(name, reach)
    if isinstance(reach, PortTaken):
        fix = "end what listens there (a peer of yours?), or give another with --listen-port or --listen-host"
        return Finding(name, Level.FAIL, reach.found, fix)
    if not reach.is_reached:
        return outbound_only(reach)
    found = f"direct: the host connected to {reach.seen_as} port {reach.port}"
    if reach.is_own_address or reach.announce_host:
        return Finding(name, Level.OK, found)
    fix = f"tell others that address: --announce-host {reach.seen_as} --listen-port {reach.port}"
    return Finding(name, Level.WARN, f"{found}, which is a router's address", fix)


def _bulk(bulk: ReachReport | PortTaken | Unread) -> Finding:
    """Of the port for weights and data: where it cannot be reached they take the other one, by libp2p."""
    name = "bulk"
    if isinstance(bulk, Unread):
        return unread(name, bulk)
    if isinstance(bulk, PortTaken):
        return Finding(name, Level.FAIL, bulk.found, "end what listens there, or give another with --bulk-port")
    if bulk.is_reached:
        found = f"direct: weights and data come on {bulk.seen_as} port {bulk.port}"
        if bulk.is_own_address or bulk.announce_host:
            return Finding(name, Level.OK, found)
        return Finding(
            name, Level.WARN, f"{found}, which is a router's address", f"keep it with --bulk-port {bulk.port}"
        )
    found = f"the host could not connect back to {bulk.seen_as} port {bulk.port}: weights and data come over libp2p"
    where = "open TCP port {} in the firewall" if bulk.is_own_address else "forward TCP port {} of the router, too,"
    fix = f"{where.format(bulk.port)} and join with --bulk-port {bulk.port}: a third of the processor time"
    return Finding(name, Level.WARN, found, fix)


def outbound_only(reach: ReachReport) -> Finding:
    """Of a peer that the host could not connect back to."""
    found = (
        f"outbound only, for there are no relays: the host could not connect back to {reach.seen_as} port {reach.port}"
    )
    if reach.listen_host in ("127.0.0.1", "::1", "localhost"):
        return Finding(
            "reachable", Level.WARN, found, "--listen-host 0.0.0.0 lets others in, --no-listen says it to them"
        )
    if reach.is_own_address:
        fix = f"open TCP port {reach.port} in the firewall and join with --listen-port {reach.port}"
    else:
        flags = f"--listen-port {reach.port} --announce-host {reach.seen_as}"
        fix = f"forward TCP port {reach.port} of the router to this machine and join with {flags}"
    return Finding(
        "reachable", Level.WARN, found, f"{fix}; or join with --no-listen: it contributes fully and reduces nothing"
    )


def _line(line: Line | Unread, needed_bits_per_s: float) -> Finding:
    name = "bandwidth"
    if isinstance(line, Unread):
        return unread(name, line)
    found = f"{_rate(line.up)} up to the host, {_rate(line.down)} down"
    slower = min(line.up.bits_per_s, line.down.bits_per_s)
    if slower < needed_bits_per_s:
        found = f"{found}: a round of the run is not over in time below {needed_bits_per_s / 1e6:g} Mbit/s each way"
        return Finding(name, Level.WARN, found, "a faster line, or ask the host for a smaller codec or longer rounds")
    if slower < BITS_FEW_PER_S:
        return Finding(
            name, Level.WARN, found, "rounds will wait for this line: a cable instead of radio, or fewer who share it"
        )
    return Finding(name, Level.OK, found)


def _rate(flow: Flow) -> str:
    return f"{flow.bits_per_s / 1e6:.1f} Mbit/s"
