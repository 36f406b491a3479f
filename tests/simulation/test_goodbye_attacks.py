"""Goodbyes that make a quorum smaller than the votes of their peer allow, at a table of honest peers. And those that a power cut may
not take away.

Rules: R3, R14, R16, R19 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from protocol.rounds.events import LeaveOrdered
from protocol.rounds.lineage.quorum import tie_holder
from protocol.rounds.messages.messages import Ack, Certificate, Committed, Leave, RoundMessage, Settle
from protocol.rounds.messages.record import LAST_ATTEMPT
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import ReportDoubleVote
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Seat, Table


@dataclass
class Decided:
    """A commit of three that its leader alone knows of: it has its own ack and that of `voter`. The leader is gone, and if the voter
    left, `third` would be a quorum alone.
    """

    table: Table
    leader: Seat
    voter: Seat
    third: Seat


def _decided() -> Decided:
    for index in range(1, 12):
        table = Table(3, longest_interval_s=5.0)
        table.run_until(lambda table=table, index=index: table.all_at(index), 300.0)  # type: ignore[misc]
        leader = table.opener()
        third = next(seat for seat in table.others(leader))
        if tie_holder(RUN_ID, [leader.peer, third.peer]) != third.peer:
            (third,) = table.others(leader, third)
        if tie_holder(RUN_ID, [leader.peer, third.peer]) == third.peer:
            break
    (voter,) = table.others(leader, third)
    base = leader.head.index

    def drops(sender: str, to: str, message: RoundMessage) -> bool:
        is_told = isinstance(message, Committed) and sender == leader.peer != to
        return is_told or (isinstance(message, Ack | Settle) and third.peer in (sender, to))

    table.drops = drops  # type: ignore[assignment]
    table.run_until(lambda: leader.head.index == base + 1, 60.0)
    assert voter.head == third.head != leader.head
    table.kill(leader)
    table.drops = lambda sender, to, message: False
    return Decided(table, leader, voter, third)


def test_a_peer_that_leaves_with_a_new_disk_makes_no_quorum_smaller_for_it_may_have_voted() -> None:
    scene = _decided()
    table, voter, third = scene.table, scene.voter, scene.third
    known = list(third.disk.chain)
    table.restart(voter, loses_disk=True)
    voter.disk.chain = known
    voter.start()
    table.tick()
    voter.feed(LeaveOrdered())
    table.talk()
    (leave,) = voter.sent(Leave)
    assert isinstance(leave, Leave)
    assert leave.promised is not None
    assert leave.promised.attempt == LAST_ATTEMPT
    table.kill(voter)
    base = third.head.index
    table.run_until(lambda: third.head.index > base, 60.0)
    assert third.disk.chain[base][0].is_lone
    decided = scene.leader.head
    table.restart(scene.leader)
    table.run_until(lambda: table.all_at(base + 3), 200.0)
    assert decided in [link for link, _ in third.disk.chain]


@pytest.mark.parametrize(("newer", "version"), [(1, LEAVE_VERSION), (1, 0), (0, 0)])
def test_a_goodbye_of_a_new_disk_or_of_an_older_release_that_promised_nothing_counts_for_nobody(
    newer: int, version: int
) -> None:
    scene = _decided()
    voter, third = scene.voter, scene.third
    member = replace(voter.member, incarnation=voter.member.incarnation + newer, session=voter.member.session + 1)
    third.hear(voter, Leave(member, UNIT, third.head.commit, version=version))
    assert third.state.open.leaves == {}
    assert third.state.peers[voter.peer].left


@pytest.mark.parametrize("who_meets", ["leader", "third"])
def test_a_voter_whose_goodbye_hides_its_ack_is_convicted_when_both_commits_meet(
    who_meets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = _decided()
    table, leader, voter, third = scene.table, scene.leader, scene.voter, scene.third
    noted: list[Certificate] = []
    monkeypatch.setattr(table, "_note", noted.append)
    table.kill(voter)
    base = third.head
    third.hear(voter, Leave(voter.member, UNIT, base.commit, version=LEAVE_VERSION))
    table.run_until(lambda: third.head.index > base.index, 60.0)
    seat, other = (leader, third) if who_meets == "leader" else (third, leader)
    table.restart(leader)
    seat.hear(other, Committed(UNIT, other.disk.chain[base.index][1]))
    assert seat.state.barred.expelled == {voter.peer}
    (report,) = seat.ordered(ReportDoubleVote)
    assert isinstance(report, ReportDoubleVote)
    assert "its goodbye hides that" in report.reason


@pytest.mark.parametrize("is_ack_first", [True, False])
def test_a_leader_that_hears_an_ack_and_a_goodbye_that_hides_it_expels_the_voter(is_ack_first: bool) -> None:
    table = Table(5, longest_interval_s=5.0)
    leader = table.opener()
    voter, *others = table.others(leader)
    silent = {seat.peer for seat in (others if is_ack_first else (voter, *others))}
    table.drops = lambda sender, to, message: isinstance(message, Ack) and sender in silent
    table.run_until(lambda: bool(voter.sent(Ack)), 60.0)
    (ack,) = voter.sent(Ack)
    hides = Leave(voter.member, UNIT, leader.head.commit, version=LEAVE_VERSION)
    leader.hear(voter, hides)
    if not is_ack_first:
        leader.hear(voter, ack)
    assert leader.state.barred.expelled == {voter.peer}
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: all(seat.head.index >= 3 for seat in table.others(voter)), 240.0)


@pytest.mark.parametrize("hears", ["the leader", "everybody"])
def test_goodbyes_that_an_acked_record_relies_on_outlive_a_power_cut_of_all_who_heard_them(hears: str) -> None:
    """Two of five left, and the record drops both. No ack of the others arrived at its leader."""
    table = Table(5, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(1), 60.0)
    leader = table.opener()
    gone, base = table.others(leader)[:2], leader.head
    rest = table.others(*gone)
    cut = {seat.peer for seat in gone}

    def drops(sender: str, to: str, message: RoundMessage) -> bool:
        is_unheard = isinstance(message, Leave) and hears == "the leader" and to != leader.peer
        return is_unheard or isinstance(message, Ack) or (sender in cut and not isinstance(message, Leave))

    table.drops = drops  # type: ignore[assignment]
    for seat in gone:
        seat.feed(LeaveOrdered())
        table.talk()
        table.kill(seat)
    table.run_until(lambda: all(seat.state.open.acked is not None for seat in rest), 60.0)
    acked = {seat.state.open.acked.record for seat in rest if seat.state.open.acked is not None}
    assert [len(decode_record(record).roster) for record in acked] == [3]
    for seat in rest:
        table.kill(seat)
    table.drops = lambda sender, to, message: False
    for seat in rest:
        table.restart(seat)
    table.run_until(lambda: all(seat.head.index >= base.index + 3 for seat in rest), 240.0)
    assert not any(link.is_lone for seat in rest for link, _ in seat.disk.chain)
    assert acked == {rest[0].disk.chain[base.index][1].record}, "what was acked is finished"
