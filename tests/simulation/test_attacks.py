"""Attacks within a round, played against the rules that answer them; test_attack_list.py names every attack and its tests.
The table itself checks after each certificate that its base has no other one of a quorum.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from protocol.rounds.messages.messages import Ack, Committed, Heartbeat, PromiseRequest, ResultReady, Settle, SliceSpec
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import (
    PrepareContribution,
    PrepareSwitch,
    Switch,
)
from tests.protocol.rounds.made_commits import lineage_on
from tests.protocol.rounds.round_table import (
    TARGET_TOKENS,
    UNIT,
    Seat,
    Table,
    contribution_root,
    result_hash,
)


def _heads(table: Table) -> set[bytes]:
    return {seat.head.commit for seat in table.live()}


def _has_lone(seat: Seat) -> bool:
    return any(link.is_lone for link, _ in seat.disk.chain)


# --- one base, one commit -----------------------------------------------------------------------------------------------------


def test_two_openers_on_one_base_commit_once() -> None:
    table = Table(5)
    opener = table.opener()
    others = {seat.peer for seat in table.others(opener)}
    # the first opener's record reaches one other member, and its certificate nobody
    (friend, *_) = table.others(opener)
    table.drops = lambda sender, to, message: (
        isinstance(message, Settle | Committed) and sender == opener.peer and to in others - {friend.peer}
    )
    table.run_until(lambda: friend.state.open.acked is not None, 10.0)
    table.freeze(opener)
    table.run_until(lambda: all(seat.head.index == 1 for seat in table.others(opener)), 60.0)
    table.drops = lambda sender, to, message: False
    table.thaw(opener)
    table.run_until(lambda: opener.head.index >= 1, 10.0)
    assert len({seat.disk.chain[0][0].commit for seat in table.live()}) == 1
    assert not opener.ordered(Switch)


def _has_decided(seat: Seat, index: int) -> bool:
    """Whether it knows of a commit after this one, applied or not."""
    return seat.head.index > index or seat.state.open.committing is not None


def test_an_opener_that_freezes_between_its_own_commit_and_the_first_word_about_it_agrees_with_its_successor() -> None:
    table = Table(5)
    opener = table.opener()
    table.drops = lambda sender, to, message: (
        isinstance(message, Committed | Heartbeat | Ack) and sender == opener.peer != to and _has_decided(opener, 0)
    )
    table.run_until(lambda: opener.head.index == 1, 10.0)
    assert all(seat.head.index == 0 for seat in table.others(opener))
    table.freeze(opener)
    table.run_until(lambda: all(seat.head.index == 1 for seat in table.others(opener)), 30.0)
    table.drops = lambda sender, to, message: False
    table.thaw(opener)
    assert len({seat.disk.chain[0][0].commit for seat in table.live()}) == 1


def test_acks_that_a_cut_divides_in_two_halves_end_in_one_commit_whatever_comes_late() -> None:
    table = Table(4)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Settle)
    table.run_until(lambda: any("settling" in reason for reason in opener.reasons), 10.0)
    (settle, *_) = opener.sent(Settle)
    assert isinstance(settle, Settle)
    (mate, *rest) = table.others(opener)
    table.drops = lambda sender, to, message: False
    table.split(opener, mate)
    for seat in (opener, mate):
        seat.hear(opener, settle)
    table.run_for(10.0)
    # the other half hears of the old record only after it has promised a higher ballot
    for seat in rest:
        seat.hear(mate, PromiseRequest(UNIT, settle.base, Ballot(3, mate.peer)))
    table.talk()
    for seat in rest:
        seat.hear(opener, settle)
    table.talk()
    assert all(seat.state.open.acked is None for seat in rest)
    table.heal()
    table.run_until(lambda: table.all_at(1), 120.0)
    assert len({seat.disk.chain[0][0].commit for seat in table.live()}) == 1


def test_a_report_that_comes_too_late_changes_nothing_in_a_record_that_somebody_acked() -> None:
    table = Table(3)
    opener = table.opener()
    (witness, late) = table.others(opener)
    table.drops = lambda sender, to, message: (
        (isinstance(message, Settle) and to == late.peer) or isinstance(message, Ack | Committed)
    )
    table.run_until(lambda: witness.state.open.acked is not None, 10.0)
    assert witness.state.open.acked is not None
    acked = witness.state.open.acked.record
    table.kill(opener)
    late.tokens, witness.tokens = 250, 40
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1), 60.0)
    assert {seat.certificates[0].record for seat in table.live()} == {acked}


@pytest.mark.parametrize("num_rounds", [1, 0], ids=["in a later round", "in the first round"])
def test_a_voter_that_lost_its_disk_makes_no_second_quorum(num_rounds: int) -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(num_rounds))
    index = max(seat.head.index for seat in table.live())
    table.run_until(lambda: {seat.head.index for seat in table.live()} == {index}, 10.0)
    opener = table.opener()
    forgetful, third = table.others(opener)
    table.drops = lambda sender, to, message: (
        (to == third.peer and sender != to and isinstance(message, Settle | Ack | Committed | Heartbeat))
        or (isinstance(message, Committed | Heartbeat) and sender == opener.peer != to and _has_decided(opener, index))
    )
    table.run_until(lambda: opener.head.index == index + 1, 10.0)
    table.freeze(opener)
    assert forgetful.state.open.acked is not None
    chain = list(forgetful.disk.chain[:index])
    forgetful.tokens = third.tokens = TARGET_TOKENS  # due for the two alone
    table.restart(forgetful, loses_disk=True)
    forgetful.disk.chain = chain  # what is committed can be had from others; its votes cannot
    forgetful.start()
    table.drops = lambda sender, to, message: False
    table.run_for(40.0)
    assert {forgetful.head.index, third.head.index} == {index}
    table.thaw(opener)
    table.run_until(lambda: table.all_at(index + 2), 60.0)
    assert len({seat.disk.chain[index][0].commit for seat in table.live()}) == 1


def test_a_lost_disk_beside_a_dead_peer_does_not_stop_the_run_for_ever() -> None:
    table = Table(3, lone_patience_s=20.0)
    table.run_until(lambda: table.all_at(1))
    dead, forgetful, third = table.live()
    for seat in table.live():
        seat.tokens = 200
    table.kill(dead)
    table.restart(forgetful, loses_disk=True)
    table.run_until(lambda: forgetful.head == third.head, 10.0)
    before = third.head.index
    table.run_until(lambda: table.all_at(before + 3), 120.0)
    assert len(_heads(table)) <= 2
    assert forgetful.state.may_vote


@pytest.mark.parametrize("order", list(permutations(range(3)))[:6])
def test_after_a_power_cut_in_the_middle_of_a_commit_the_acked_round_is_finished_and_not_redone(
    order: tuple[int, ...],
) -> None:
    table = Table(3)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Committed) and sender != to
    table.run_until(lambda: opener.head.index == 1, 10.0)
    committed = opener.head.commit
    seats = table.live()
    for seat in seats:
        table.kill(seat)
    table.queue.clear()
    table.drops = lambda sender, to, message: False
    for place in order[:2]:  # the first two that come back are enough
        table.restart(seats[place])
        table.run_for(3.0)
    table.run_until(lambda: table.all_at(1), 60.0)
    table.restart(seats[order[2]])
    table.run_until(lambda: table.all_at(1), 60.0)
    assert {seat.disk.chain[0][0].commit for seat in table.live()} == {committed}


# --- bytes --------------------------------------------------------------------------------------------------------------------


def test_a_record_whose_bytes_only_the_dead_had_is_never_committed_and_the_round_is() -> None:
    table = Table(5)
    opener = table.opener()
    reducer = table.others(opener)[0]
    few = {opener.peer, reducer.peer}
    table.drops = lambda sender, to, message: (
        isinstance(message, ResultReady) and sender == reducer.peer and to not in few
    )
    table.no_uploads = few
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    table.run_for(1.0)
    (lost, *_) = opener.sent(Settle)
    assert isinstance(lost, Settle)
    assert all(seat.state.open.acked is None for seat in table.others(opener, reducer))
    table.kill(opener)
    table.kill(reducer)
    table.run_until(lambda: table.all_at(1), 60.0)
    assert all(seat.certificates[0].record != lost.record for seat in table.live())


def test_a_quorum_holds_all_bytes_of_a_commit_before_it_exists() -> None:
    table = Table(5)
    table.no_uploads = {seat.peer for seat in table.live()[:2]}
    table.run_until(lambda: bool(table.certified), 30.0)
    (record,) = table.certified.values()
    wanted = {part.result_hash for part in decode_record(record).slices}
    assert sum(1 for seat in table.live() if wanted <= seat.disk.results) >= 3


def test_results_of_an_attempt_that_ended_are_not_mixed_with_those_of_the_next() -> None:
    table = Table(5)
    opener = table.opener()
    table.drops = lambda sender, to, message: (
        isinstance(message, ResultReady) and message.ballot.attempt == 0 and sender != to and to == opener.peer
    )
    table.run_until(lambda: any(seat.state.open.results for seat in table.others(opener)), 10.0)
    table.kill(opener)
    table.run_until(lambda: table.all_at(1), 60.0)
    record = decode_record(table.live()[0].certificates[0].record)
    assert record.ballot.attempt >= 1
    for part in record.slices:
        spec = SliceSpec(part.first_chunk, part.stop_chunk, part.reducer)
        assert part.result_hash == result_hash(record.parent, record.ballot, spec)


def test_a_heavier_lone_lineage_costs_a_quorum_nothing_whether_its_holder_lives_or_not() -> None:
    table = Table(4, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(1))
    loud, *rest = table.live()
    heavy = lineage_on(table.genesis, [loud], 40, tokens=3000, lone=True)
    table.kill(loud)
    base = rest[0].head.index
    for made in heavy:
        rest[0].hear(loud, Committed(UNIT, made.certificate))
    assert not rest[0].ordered(PrepareSwitch)
    table.run_until(lambda: all(seat.head.index >= base + 2 for seat in rest), 60.0)
    assert not any(seat.ordered(Switch) for seat in rest)


def test_who_missed_more_rounds_than_are_replayed_takes_over_a_whole_state() -> None:
    table = Table(4)
    table.run_until(lambda: table.all_at(1))
    sleeper = table.others(table.opener())[0]
    table.freeze(sleeper)
    before = sleeper.head.index
    table.run_until(lambda: all(seat.head.index >= before + 30 for seat in table.others(sleeper)), 200.0)
    table.thaw(sleeper)
    table.run_until(lambda: sleeper.head.index >= before + 30, 20.0)
    assert sleeper.ordered(Switch)
    assert not _has_lone(sleeper)


# --- attempts that end --------------------------------------------------------------------------------------------------------


def test_a_commit_that_comes_after_its_attempt_was_given_up_counts_every_contribution_once() -> None:
    table = Table(3)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Ack)
    table.run_until(lambda: any("ran out of time while settling" in reason for reason in opener.reasons), 60.0)
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1), 120.0)
    base = table.genesis.commit
    record = decode_record(opener.certificates[0].record)
    for seat in table.live():
        taken = [order for order in seat.ordered(PrepareContribution) if order == PrepareContribution(base)]
        assert len(taken) == 1
        entry = record.contributor(seat.peer)
        assert entry is not None
        assert entry.root == contribution_root(seat.member, base)


def test_a_member_that_restarts_in_the_exchange_takes_no_part_in_it_and_in_the_next_round_again() -> None:
    table = Table(4)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, ResultReady | Settle)
    table.run_until(lambda: all(seat.state.open.exchange is not None for seat in table.live()), 10.0)
    member = table.others(opener)[0]
    table.restart(member)
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(2), 120.0)
    first, second = (decode_record(certificate.record) for certificate in opener.certificates[:2])
    roots = {entry.root for entry in first.contributors if entry.peer == member.peer}
    assert len(roots) <= 1
    assert second.contributor(member.peer) is not None


def test_an_opener_whom_half_cannot_hear_is_not_the_opener_for_ever() -> None:
    table = Table(5)
    opener = table.opener()
    cut_off = {seat.peer for seat in table.others(opener)[:3]}
    table.drops = lambda sender, to, message: (
        sender == opener.peer and to in cut_off and not isinstance(message, Heartbeat)
    )
    table.run_until(lambda: max(seat.head.index for seat in table.live()) >= 3, 200.0)
    assert len(table.certified) >= 3


def test_who_sends_but_hears_nobody_holds_up_one_attempt_and_fences_off_nobody() -> None:
    table = Table(4)
    deaf = next(seat for seat in table.live() if seat is not table.opener())
    table.cuts = {(other.peer, deaf.peer) for other in table.others(deaf)}
    began_s = table.now_s
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.others(deaf)), 60.0)
    assert table.now_s - began_s < 30.0
    table.run_until(lambda: all(seat.head.index >= 5 for seat in table.others(deaf)), 120.0)
    assert deaf.sent(PromiseRequest) == []
    assert not any(link.is_lone for seat in table.others(deaf) for link, _ in seat.disk.chain)


def test_who_hears_but_cannot_send_holds_up_nobody() -> None:
    table = Table(4)
    mute = next(seat for seat in table.live() if seat is not table.opener())
    table.cuts = {(mute.peer, other.peer) for other in table.others(mute)}
    table.run_until(lambda: all(seat.head.index >= 4 for seat in table.others(mute)), 30.0)
    assert not any(_has_lone(seat) for seat in table.live())
    table.heal()
    table.run_until(lambda: table.all_at(6), 30.0)
    assert not any(_has_lone(seat) for seat in table.live())


def test_two_members_that_cannot_reach_each_other_stay_on_one_lineage() -> None:
    table = Table(4)
    table.run_until(lambda: table.all_at(1))
    one, two = table.live()[:2]
    table.cuts = {(one.peer, two.peer), (two.peer, one.peer)}
    before = max(seat.head.index for seat in table.live())
    table.run_until(lambda: table.all_at(before + 5), 300.0)
    assert not any(_has_lone(seat) for seat in table.live())
    assert not any(seat.ordered(Switch) for seat in table.live())


def test_the_heaviest_member_missing_every_deadline_stops_no_round() -> None:
    table = Table(4)
    heavy = table.others(table.opener())[0]
    heavy.tokens, heavy.has_trainer = 10_000, False
    table.run_until(lambda: table.all_at(4), 60.0)
    for certificate in heavy.certificates:
        assert decode_record(certificate.record).contributor(heavy.peer) is None


@pytest.mark.parametrize("num_reachable", [0, 1, 2])
def test_five_members_of_whom_few_can_be_reached_still_sum_the_whole_vector(num_reachable: int) -> None:
    table = Table(5)
    for seat in table.live()[num_reachable:]:
        seat.reconfigure(is_inbound_reachable=False)
    table.run_until(lambda: table.all_at(3), 120.0)
    reducers = {part.reducer for part in decode_record(table.live()[0].certificates[-1].record).slices}
    assert reducers <= {seat.peer for seat in table.live()[:num_reachable]} or len(reducers) == 1


def test_a_roster_does_not_shrink_to_those_who_ack_first() -> None:
    table = Table(8)
    slow = {seat.peer for seat in table.live()[:3]}
    table.drops = lambda sender, to, message: isinstance(message, Ack) and sender in slow and sender != to
    table.run_until(lambda: table.all_at(5), 120.0)
    assert all(len(link.roster) == 8 for link, _ in table.live()[0].disk.chain)


def test_a_roster_does_not_shrink_to_those_whose_heartbeats_come_first() -> None:
    table = Table(8)
    for seat in table.live():
        seat.tokens = 300  # whoever opens has enough for a round by itself as soon as the last one is over
    table.run_until(lambda: table.all_at(6), 120.0)
    assert all(len(link.roster) == 8 for link, _ in table.live()[0].disk.chain[1:])


def test_rosters_that_lose_one_peer_after_another_go_on_down_to_the_last_without_a_lone_commit() -> None:
    table = Table(5)
    for left in (4, 3, 2):
        index = max(seat.head.index for seat in table.live())
        table.run_until(lambda index=index: table.all_at(index + 2), 120.0)  # type: ignore[misc]
        leaver = table.live()[0]
        table.kill(leaver)
        for seat in table.live():
            seat.tokens = 300
        assert len(table.live()) == left
    index = max(seat.head.index for seat in table.live())
    table.run_until(lambda: table.all_at(index + 2), 120.0)
    assert not any(_has_lone(seat) for seat in table.live())
