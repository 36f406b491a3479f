from __future__ import annotations

from dataclasses import replace

import pytest

from averaging import release
from averaging.network.seams.bulk_address import BulkAddress
from peer.checks import host_core as doctor_host_core
from peer.checks.host_core import (
    Answer,
    Flow,
    HostReadings,
    HostRefusal,
    Line,
    NoAnswer,
    OwnPeer,
    PortTaken,
    ReachReport,
    judge_host,
    open_way,
)
from peer.checks.machine_core import Finding, Level, Unread
from peer.membership import joining
from peer.membership.host_ways_core import Purpose, Tried
from protocol.identity.puzzle import MOST_BITS

REACHED = ReachReport("0.0.0.0", 4001, True, "203.0.113.9", True, "")
FAST = Flow(8 << 20, 1.0)
FINE = HostReadings(Answer("10.0.0.1:7000", 0.4, "0.1.0", "0.1.0"), REACHED, Line(FAST, FAST))
ANSWER = FINE.answer


def find(readings: HostReadings, name: str) -> Finding:
    (found,) = [finding for finding in judge_host(readings) if finding.name == name]
    return found


@pytest.mark.parametrize(("is_needed", "level"), [(True, Level.FAIL), (False, Level.WARN)])
def test_host_that_does_not_answer_is_a_fail_where_nothing_begins_without_it(is_needed: bool, level: Level) -> None:
    silent = NoAnswer("no coordinator answers at 10.0.0.1:7000", "check host and firewall", is_needed)
    (found,) = judge_host(HostReadings(silent))
    assert (found.name, found.level, found.fix) == ("host", level, "check host and firewall")
    assert found.found.startswith("no coordinator answers")
    assert ("goes on without it" in found.found) == (not is_needed)


@pytest.mark.parametrize(
    ("there", "here", "level", "says"),
    [
        ("0.1.0", "0.1.0", Level.OK, "answers at 10.0.0.1:7000, with the same potluck 0.1.0"),
        ("0.2.0", "0.1.0", Level.WARN, "with potluck 0.2.0, this machine has 0.1.0; install potluck 0.2.0"),
        ("", "0.1.0", Level.OK, "with the same protocol"),
        ("from a checkout", "0.1.0", Level.OK, "with the same protocol"),
        ("0.1.0", "from a checkout", Level.OK, "with the same protocol"),
    ],
)
def test_release(there: str, here: str, level: Level, says: str) -> None:
    found = find(HostReadings(Answer("10.0.0.1:7000", 0.0, there, here)), "host")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("ahead_s", "level", "says"),
    [
        (0.4, Level.OK, "0.4 s behind the host's"),
        (-5.0, Level.OK, "5.0 s ahead of the host's"),
        (5.1, Level.WARN, "timedatectl"),
        (-120.0, Level.WARN, "120.0 s ahead of"),
        (120.1, Level.FAIL, "timedatectl"),
        (float("nan"), Level.FAIL, "timedatectl"),
    ],
)
def test_clock(ahead_s: float, level: Level, says: str) -> None:
    assert isinstance(ANSWER, Answer)
    found = find(replace(FINE, answer=replace(ANSWER, ahead_s=ahead_s)), "clock")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("reach", "level", "says"),
    [
        (REACHED, Level.OK, "direct: the host connected to 203.0.113.9 port 4001"),
        (replace(REACHED, is_own_address=False, announce_host="example.org"), Level.OK, "direct"),
        (replace(REACHED, is_own_address=False), Level.WARN, "--announce-host 203.0.113.9 --listen-port 4001"),
        (
            replace(REACHED, is_reached=False),
            Level.WARN,
            "others cannot connect: the host could not connect back to 203.0.113.9",
        ),
        (replace(REACHED, is_reached=False), Level.WARN, "open TCP 4001 in the firewall"),
        (replace(REACHED, is_reached=False, is_own_address=False), Level.WARN, "forward TCP 4001 to it"),
        (
            replace(REACHED, is_reached=False, is_own_address=False),
            Level.WARN,
            "or join with --no-listen: the work counts in full",
        ),
        (replace(REACHED, is_reached=False, listen_host="127.0.0.1"), Level.WARN, "--listen-host ::"),
        (None, Level.OK, "others cannot connect, as --no-listen asks"),
        (PortTaken("cannot listen on 0.0.0.0 port 4001 (in use)"), Level.FAIL, "--listen-port"),
        (Unread("4 checks within 60 s"), Level.WARN, "could not be read: 4 checks within 60 s"),
    ],
)
def test_reach_is_told_plainly_with_the_flag_that_mends_it(
    reach: ReachReport | PortTaken | Unread | None, level: Level, says: str
) -> None:
    found = find(replace(FINE, reach=reach), "reachable")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("line", "level", "says"),
    [
        (Line(FAST, FAST), Level.OK, "67.1 Mbit/s up to the host, 67.1 Mbit/s down"),
        (Line(Flow(124_000, 1.0), FAST), Level.WARN, "1.0 Mbit/s up to the host, 67.1 Mbit/s down; rounds will wait"),
        (Line(FAST, Flow(0, 3.0)), Level.WARN, "0.0 Mbit/s down"),
        (Unread("the host is measuring somebody else's line"), Level.WARN, "somebody else's line"),
    ],
)
def test_bandwidth(line: Line | Unread, level: Level, says: str) -> None:
    found = find(replace(FINE, line=line), "bandwidth")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


def test_a_line_that_cannot_carry_the_rounds_of_a_known_run_is_told_with_the_rate_that_can() -> None:
    line = Line(FAST, Flow(2_500_000, 2.0))
    found = find(replace(FINE, line=line, needed_bits_per_s=12e6), "bandwidth")
    assert found.level is Level.WARN
    assert found.found.endswith("10.0 Mbit/s down: a round of the run does not finish in time below 12 Mbit/s each way")
    assert find(replace(FINE, line=line, needed_bits_per_s=9e6), "bandwidth").level is Level.OK


def test_host_that_would_not_let_us_in_is_a_fail_and_nothing_more_is_told() -> None:
    refused = replace(
        FINE, reach=None, line=None, refusal=HostRefusal("the invite was used 1 of 1 times", "ask the host")
    )
    findings = judge_host(refused)
    assert [f.name for f in findings] == ["host", "clock", "admission"]
    assert (findings[-1].level, findings[-1].fix) == (Level.FAIL, "ask the host")


def test_a_stranger_at_an_open_run_hears_of_the_puzzle_and_of_one_that_a_join_would_refuse() -> None:
    findings = judge_host(replace(FINE, reach=None, line=None, puzzle_bits=10))
    assert [f.name for f in findings] == ["host", "clock", "admission"]
    assert findings[-1].level is Level.OK
    assert "about 10 s of one core" in findings[-1].found
    hard = judge_host(replace(FINE, reach=None, line=None, puzzle_bits=MOST_BITS + 1))[-1]
    assert (hard.level, hard.fix) == (Level.FAIL, "ask the run's owner to lower puzzle_bits")


def test_constants_are_those_of_the_code_that_acts_on_them() -> None:
    assert doctor_host_core.CLOCK_MOST_S == joining.MAX_CLOCK_ERROR_S
    assert doctor_host_core.FROM_A_CHECKOUT == release.FROM_A_CHECKOUT


@pytest.mark.parametrize(
    ("bulk", "level", "says"),
    [
        (replace(REACHED, port=4002), Level.OK, "weights and data come on 203.0.113.9 port 4002"),
        (replace(REACHED, port=4002, is_own_address=False), Level.WARN, "keep it with --bulk-port 4002"),
        (replace(REACHED, port=4002, is_own_address=False, announce_host="me.example"), Level.OK, "direct"),
        (replace(REACHED, port=4002, is_reached=False), Level.WARN, "open TCP port 4002 in the firewall"),
        (
            replace(REACHED, port=4002, is_reached=False, is_own_address=False),
            Level.WARN,
            "forward TCP port 4002 of the router, too, and join with --bulk-port 4002",
        ),
        (PortTaken("cannot listen on 0.0.0.0 port 4002 (in use)"), Level.FAIL, "--bulk-port"),
    ],
)
def test_port_for_weights_and_data(bulk: ReachReport | PortTaken, level: Level, says: str) -> None:
    found = find(replace(FINE, bulk=bulk), "bulk")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(("is_outbound_only", "level"), [(False, Level.OK), (True, Level.WARN)])
def test_peer_that_runs_here_is_named_with_its_ports(is_outbound_only: bool, level: Level) -> None:
    found = find(replace(FINE, reach=OwnPeer(4001, 4007, is_outbound_only)), "reachable")
    assert found.level is level
    assert "listens on TCP 4001 (peers) and TCP 4007 (weights and data)" in found.found


def test_port_for_weights_and_data_is_not_told_where_nobody_can_connect_anyway() -> None:
    assert not [finding for finding in judge_host(FINE) if finding.name == "bulk"]


def test_port_of_the_host_that_does_not_answer_fails_and_is_named() -> None:
    four, six = BulkAddress("10.9.0.2", 4101), BulkAddress("fd00:9::2", 4101)
    data = BulkAddress("10.9.0.2", 4102)
    ways = (Tried(Purpose.PEERS, four, "no answer"), Tried(Purpose.PEERS, six), Tried(Purpose.DATA, data, "refused"))
    peers = find(replace(FINE, ways=ways), "host's peers")
    assert (peers.level, peers.found) == (Level.OK, "answers at [fd00:9::2]:4101, the port for peers")
    found = find(replace(FINE, ways=ways), "host's data")
    assert found.level is Level.FAIL
    assert found.found == "10.9.0.2:4102 does not answer: refused"
    assert "forward TCP port 4102" in found.fix


@pytest.mark.parametrize(("is_needed", "level"), [(True, Level.FAIL), (False, Level.WARN)])
def test_other_ports_of_a_silent_host_are_told_where_one_answers(is_needed: bool, level: Level) -> None:
    closed = Tried(Purpose.PEERS, BulkAddress("10.9.0.2", 4101), "no answer")
    ways = (closed, Tried(Purpose.DATA, BulkAddress("10.9.0.2", 4102)))
    silent = HostReadings(NoAnswer("no answer from 10.9.0.2:4100", "try again later", is_needed), ways=ways)
    assert find(silent, "host's peers").level is level
    (found,) = judge_host(replace(silent, ways=(closed,)))
    assert (found.name, found.level) == ("host", level)


def test_port_of_a_host_on_this_machine_needs_no_router() -> None:
    ways = (
        Tried(Purpose.PEERS, BulkAddress("127.0.0.1", 4101), "Connection refused"),
        Tried(Purpose.DATA, BulkAddress("127.0.0.1", 4102)),
    )
    silent = HostReadings(NoAnswer("no answer from 127.0.0.1:4100", "try again later", True), ways=ways)
    assert "router" not in find(silent, "host's peers").fix


def test_a_refused_peer_hears_of_the_refusal_alone_and_not_of_closed_data_ports() -> None:
    port = BulkAddress("10.0.0.1", 7002)
    ways = (Tried(Purpose.PEERS, port), Tried(Purpose.DATA, port, "12D3 failed on shards: "))
    refused = replace(FINE, refusal=HostRefusal("this peer is banned from this run", "ask the host"), ways=ways)
    assert [each.name for each in judge_host(refused) if each.level is Level.FAIL] == ["admission"]
    assert find(replace(refused, refusal=None), "host's data").level is Level.FAIL


def test_the_way_to_let_others_connect_names_the_port_for_weights_and_data_too() -> None:
    closed = replace(REACHED, is_reached=False, data_port=4002)
    assert open_way(closed) == "open TCP 4001 and 4002 in the firewall and join with --listen-port 4001"
    behind = replace(closed, is_own_address=False)
    assert open_way(behind).startswith("forward TCP 4001 and 4002 to it and join with --listen-port 4001")
