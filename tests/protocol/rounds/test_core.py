from __future__ import annotations

from dataclasses import replace

from protocol.rounds.messages import Committed, Member, Proposal, Settle
from protocol.rounds.state import (
    AnswerWithCertificate,
    Applied,
    BytesHeld,
    CatchUp,
    Commit,
    CommitStalled,
    ContributionFailed,
    GatherBytes,
    MessageArrived,
    PrepareContribution,
    Progressed,
    Ticked,
)
from protocol.wire import encode_message
from tests.protocol.rounds.round_table import Table, heartbeat_of


def _committed(table: Table, rounds: int = 1) -> None:
    table.run_until(lambda: all(seat.head.index >= rounds for seat in table.live()))


def test_three_members_commit_round_after_round_on_one_chain() -> None:
    table = Table(3)
    _committed(table, 5)
    heads = {seat.head.index: seat.head.commit for seat in table.live()}
    assert len({seat.head.commit for seat in table.live() if seat.head.index == max(heads)}) == 1
    record = table.live()[0].head.record
    assert record is not None
    assert len(record.contributors) == 3


def test_a_round_below_the_target_waits_until_the_longest_interval() -> None:
    table = Table(3)
    for seat in table.live():
        seat.tokens = 10
    for _ in range(100):
        table.tick()
    assert all(seat.head.index == 0 for seat in table.live())
    table.run_until(lambda: all(seat.head.index == 1 for seat in table.live()), 40.0)


def test_nothing_is_opened_after_the_runs_last_token() -> None:
    table = Table(3)
    for seat in table.live():
        seat.state = replace(seat.state, config=replace(seat.state.config, total_tokens=300))
    _committed(table)
    for _ in range(200):
        table.tick()
    assert {seat.head.index for seat in table.live()} == {1}


def test_one_contribution_serves_all_attempts_on_a_base() -> None:
    table = Table(3)
    table.drops = lambda sender, to, message: isinstance(message, Settle) and message.ballot.attempt == 0
    _committed(table)
    for seat in table.live():
        prepared = [a for a in seat.orders if isinstance(a, PrepareContribution) and a.base == table_genesis(table)]
        assert len(prepared) == 1


def table_genesis(table: Table) -> bytes:
    from protocol.wire import genesis_id

    return genesis_id(table.start_record)


def test_a_proposal_that_names_another_session_of_ours_is_not_joined() -> None:
    table = Table(3)
    seat = table.live()[0]
    opener = table.live()[1]
    table.run_until(lambda: any(isinstance(a, PrepareContribution) for a in seat.orders))
    proposal = seat.state.open.proposal or _any_proposal(table)
    other = tuple(Member(m.peer, m.incarnation, 99) if m.peer == seat.peer else m for m in proposal.members)
    fresh = Table(3).seats[seat.peer]
    forged = replace(proposal, members=other)
    actions = fresh.feed(MessageArrived(forged.ballot.peer, forged, b""))
    assert actions == ()
    assert "another session" in fresh.reasons[-1]
    assert opener.is_up


def _any_proposal(table: Table) -> Proposal:
    for seat in table.live():
        for action in seat.orders:
            message = getattr(action, "message", None)
            if isinstance(message, Proposal):
                return message
    raise AssertionError("nobody proposed")


def test_a_message_about_a_committed_base_is_answered_with_its_certificate() -> None:
    table = Table(3)
    _committed(table, 2)
    seat = table.live()[0]
    proposal = _any_proposal(table)
    actions = seat.feed(MessageArrived(proposal.ballot.peer, proposal, b""))
    assert actions == (AnswerWithCertificate(proposal.ballot.peer, proposal.base),)


def test_a_heartbeat_from_further_along_makes_us_catch_up_and_nothing_else() -> None:
    table = Table(3)
    behind = table.live()[0]
    table.drops = lambda sender, to, message: to == behind.peer
    table.run_until(lambda: max(seat.head.index for seat in table.live()) >= 2)
    ahead = next(seat for seat in table.live() if seat.head.index >= 2)
    before = behind.state.open
    actions = behind.feed(MessageArrived(ahead.peer, heartbeat_of(ahead), b""))
    assert actions == (CatchUp(ahead.peer),)
    assert behind.state.open == before


def test_a_certificate_that_is_no_quorum_is_dropped_with_a_reason() -> None:
    table = Table(3)
    _committed(table)
    seat = Table(3).live()[0]
    certificate = table.live()[0].certificates[0]
    short = replace(certificate, acks=certificate.acks[:1])
    actions = seat.feed(MessageArrived(table.live()[1].peer, Committed("fragment-0", short), b""))  # type: ignore[arg-type]
    assert actions == ()
    assert "quorum" in seat.reasons[-1]
    assert seat.head.index == 0


def test_a_stalled_commit_is_taken_up_again_from_the_next_who_brings_it() -> None:
    table = Table(3)
    _committed(table)
    giver = table.live()[1]
    certificate = table.live()[0].certificates[0]
    late = Table(3)
    seat = late.live()[0]
    late.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    message = Committed(seat.state.config.unit, certificate)
    (order,) = seat.feed(MessageArrived(giver.peer, message, b""))
    assert isinstance(order, Commit)
    assert seat.feed(MessageArrived(giver.peer, message, b"")) == ()
    seat.feed(CommitStalled(order.link.commit, "nobody has the bytes"))
    (again,) = seat.feed(MessageArrived(giver.peer, message, b""))
    assert isinstance(again, Commit)


def test_a_member_whose_trainer_is_away_still_reduces() -> None:
    table = Table(3)
    seat = table.live()[0]
    table.run_until(lambda: seat.state.open.proposal is not None or seat.head.index > 0)
    fresh = Table(3).seats[seat.peer]
    fresh.table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    proposal = _any_proposal(table)
    fresh.feed(MessageArrived(proposal.ballot.peer, proposal, b""))
    actions = fresh.feed(ContributionFailed(proposal.base))
    assert [type(a).__name__ for a in actions] == ["BeginExchange"]


def test_applying_an_older_commit_twice_changes_nothing() -> None:
    table = Table(3)
    _committed(table, 2)
    seat = table.live()[0]
    certificate = seat.certificates[0]
    before = seat.state
    link = replace(seat.head, index=1)
    assert seat.feed(Applied(link, certificate, before.state_root)) == ()
    assert seat.state == before


def test_late_answers_about_an_older_base_change_nothing() -> None:
    table = Table(3)
    _committed(table)
    seat = table.live()[0]
    settle = next(a.settle for a in seat.orders if isinstance(a, GatherBytes))
    before = seat.state
    assert seat.feed(BytesHeld(settle)) == ()
    assert seat.state == before


def test_progress_and_time_alone_open_nothing_without_a_quorum_of_the_roster() -> None:
    table = Table(3)
    alone = table.live()[0]
    for seat in table.live()[1:]:
        table.kill(seat)
    for _ in range(400):
        table.now_s += 0.5
        alone.feed(Progressed(10_000, True))
        alone.feed(Ticked())
        table.talk()
    assert alone.head.index == 0


def test_the_payload_of_every_message_sent_at_the_table_survives_the_wire() -> None:
    from protocol.wire import decode_message

    table = Table(4)
    _committed(table, 2)
    for seat in table.live():
        for action in seat.orders:
            message = getattr(action, "message", None)
            if message is not None:
                assert decode_message(encode_message(message)) == message
