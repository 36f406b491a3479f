"""That the machine says why: what it waits for, and what of a refused message was found and expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from protocol.ids import CommitId, UnitName, short
from protocol.rounds.events import AckLogged, LeaveOrdered, PromiseLogged, RoundTicked, SwitchPrepared
from protocol.rounds.messages.messages import (
    Ack,
    Leave,
    Mend,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    ResultReady,
    RoundMessage,
    Settle,
    SliceSpec,
)
from protocol.rounds.messages.record import Ballot
from protocol.rounds.orders import BeginExchange, LogPromise
from protocol.rounds.schedule.target import RoundTarget
from protocol.rounds.state import RoundStep
from tests.protocol.rounds.made_commits import commit_on
from tests.protocol.rounds.reasons import says_why
from tests.protocol.rounds.round_table import (
    NUM_CHUNKS,
    TARGET_TOKENS,
    UNIT,
    Seat,
    Table,
    acquaint,
    consents,
    heartbeat_of,
    wanted,
)

ELSEWHERE = UnitName("fragment-9")
OTHER_BASE = CommitId(b"x" * 32)


@dataclass
class Scene:
    """A member that has joined the opener's attempt 0; nothing that is ordered from here on is done."""

    seat: Seat
    opener: Seat
    third: Seat
    proposal: Proposal

    @property
    def base(self) -> CommitId:
        return self.proposal.base

    @property
    def settle(self) -> Settle:
        record = commit_on(self.seat.head, self.seat.table.live()).certificate.record
        return Settle(UNIT, self.base, self.proposal.ballot, record, ())

    @property
    def mend(self) -> Mend:
        whole = (SliceSpec(0, NUM_CHUNKS, self.opener.peer),)
        return Mend(UNIT, self.base, self.proposal.ballot, 1, whole)


def _scene() -> Scene:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    seat, third = table.others(opener)
    table.gathers = False
    table.run_until(lambda: bool(seat.ordered(BeginExchange)), 10.0)
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    proposal = seat.state.open.proposal
    assert proposal is not None
    seat.state = replace(seat.state, open=replace(seat.state.open, gathering=None))
    return Scene(seat, opener, third, proposal)


REFUSED: dict[str, tuple[Callable[[Scene], RoundMessage], tuple[str, ...]]] = {
    "another unit": (
        lambda s: PromiseRequest(ELSEWHERE, s.base, Ballot(1, s.third.peer)),
        ("of unit fragment-9", f"this is {UNIT}"),
    ),
    "an ack on a base that is not known": (
        lambda s: Ack(UNIT, OTHER_BASE, s.proposal.ballot, OTHER_BASE),
        (short(OTHER_BASE), "which we do not know"),
    ),
    "an absurd ballot": (
        lambda s: PromiseRequest(UNIT, s.base, Ballot(9999, s.third.peer)),
        ("attempt 9999", "at most 1024"),
    ),
    "a proposal that is known": (
        lambda s: replace(s.proposal, ballot=Ballot(0, s.third.peer)),
        ("attempt 0", "the first of the base roster"),
    ),
    "a mend of somebody else": (lambda s: s.mend, ("mends attempt 0", "by its leader")),
    "a result of no attempt": (
        lambda s: ResultReady(UNIT, s.base, Ballot(5, s.third.peer), b""),
        ("result of attempt 5", "expected attempt 0"),
    ),
    "a record settled under another's ballot": (lambda s: s.settle, ("under a ballot of", "expected its own")),
    "a question under another's ballot": (
        lambda s: PreVoteRequest(UNIT, s.base, Ballot(1, s.opener.peer), 5.0),
        ("a ballot of", "expected its own"),
    ),
    "a promise asked under another's ballot": (
        lambda s: PromiseRequest(UNIT, s.base, Ballot(1, s.opener.peer)),
        ("not its own to ask", "attempt 1 of", "expected attempt 1 or more, of its own"),
    ),
    "a pre-vote that nobody asked for": (
        lambda s: PreVote(UNIT, s.base, Ballot(1, s.seat.peer), ""),
        ("a pre-vote of", "attempt 1", "expected none"),
    ),
    "a promise that nobody asked for": (
        lambda s: Promise(UNIT, s.base, Ballot(1, s.seat.peer)),
        ("a promise of", "attempt 1", "expected none"),
    ),
    "a refusal of nothing": (
        lambda s: Refusal(UNIT, s.base, Ballot(1, s.opener.peer)),
        ("a refusal of", "attempt 1", "expected none"),
    ),
    "an ack of nothing": (
        lambda s: Ack(UNIT, s.base, s.proposal.ballot, OTHER_BASE),
        ("acked attempt 0", short(OTHER_BASE), "nothing of ours is settled"),
    ),
    "a goodbye for another": (
        lambda s: Leave(s.opener.member, UNIT, s.base, None, None),
        ("said goodbye for", "expected its own goodbye"),
    ),
    "a heartbeat in another's name": (lambda s: heartbeat_of(s.opener), ("in the name of", "expected its own")),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_message_says_what_was_found_and_what_was_expected(kind: str) -> None:
    scene = _scene()
    make, words = REFUSED[kind]
    before = len(scene.seat.reasons)
    assert scene.seat.hear(scene.third, make(scene)) == ()
    (said,) = scene.seat.reasons[before:]
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"revision": 1}, ("in revision 1", "expected one after 1")),
        (
            {"slices": (SliceSpec(0, NUM_CHUNKS - 1, UNIT),)},
            (f"over {NUM_CHUNKS - 1} chunks", f"expected {NUM_CHUNKS}"),
        ),
        ({"ballot": Ballot(3, UNIT)}, ("mends attempt 3", "expected attempt 0")),
    ],
)
def test_a_mend_that_does_not_fit_says_what_would(change: dict[str, object], words: tuple[str, ...]) -> None:
    scene = _scene()
    scene.seat.hear(scene.opener, scene.mend)
    assert scene.seat.hear(scene.opener, replace(scene.mend, **{"revision": 2, **change})) == ()  # type: ignore[arg-type]
    assert [word for word in words if word not in scene.seat.reasons[-1]] == []


def test_a_proposal_and_a_settle_below_a_promise_are_answered_with_both_ballots() -> None:
    scene = _scene()
    high = wanted(scene.seat.table, Ballot(7, scene.third.peer))
    assert [type(order) for order in scene.seat.hear(scene.third, high)] == [LogPromise]
    low = PromiseRequest(UNIT, scene.base, Ballot(1, scene.third.peer))
    for sender, message in ((scene.opener, scene.proposal), (scene.opener, scene.settle), (scene.third, low)):
        (order,) = scene.seat.hear(sender, message)
        assert f"refused attempt {message.ballot.attempt} of" in order.reason
        assert "attempt 7 of" in order.reason


def test_who_leaves_says_so_to_whoever_asks_for_a_vote() -> None:
    scene = _scene()
    scene.seat.feed(LeaveOrdered())
    higher = Ballot(3, scene.opener.peer)
    for sender, message in (
        (scene.opener, scene.settle),
        (scene.third, PromiseRequest(UNIT, scene.base, Ballot(1, scene.third.peer))),
        (scene.opener, replace(scene.proposal, ballot=higher, pre_votes=consents(scene.seat.table, higher))),
    ):
        assert scene.seat.hear(sender, message) == ()
        assert "we are leaving" in scene.seat.reasons[-1]


def test_what_was_written_for_a_base_that_was_left_is_passed_over_with_a_reason() -> None:
    scene = _scene()
    for event, word in (
        (AckLogged(OTHER_BASE, scene.proposal.ballot, OTHER_BASE), "an ack on"),
        (PromiseLogged(OTHER_BASE, scene.proposal.ballot), "a promise on"),
        (SwitchPrepared(OTHER_BASE), "not wanted now"),
    ):
        assert scene.seat.feed(event) == ()
        assert word in scene.seat.reasons[-1]


def test_a_tick_says_what_is_waited_for_and_the_same_until_that_changes() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(2))
    said = [step.waiting for seat in table.live() for event, step in seat.steps if isinstance(event, RoundTicked)]
    assert any(f"opened at {TARGET_TOKENS:,} ready tokens" in waiting for waiting in said)
    quiet = Table(3, target=RoundTarget(10**9))
    acquaint(quiet)
    quiet.run_until(lambda: quiet.all_at(1))
    quiet.run_for(1.0)
    for seat in quiet.live():
        seat.steps.clear()
    quiet.run_for(20.0)
    for seat in quiet.live():
        assert len({step.waiting for event, step in seat.steps if isinstance(event, RoundTicked)}) == 1


def test_who_waits_for_an_opener_that_is_silent_names_it() -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    table.kill(opener)
    (seat, _) = table.others(opener)
    table.run_for(1.0)
    said = [step.waiting for event, step in seat.steps if isinstance(event, RoundTicked)]
    assert any(short(opener.peer) in waiting for waiting in said)


def test_the_check_of_every_table_tells_a_step_without_a_reason() -> None:
    seat = Table(3).live()[0]
    promise = LogPromise(seat.head.commit, Ballot(1, seat.peer))
    assert not says_why(RoundTicked(), RoundStep(seat.state))
    assert not says_why(SwitchPrepared(OTHER_BASE), RoundStep(seat.state))
    assert not says_why(LeaveOrdered(), RoundStep(seat.state, (promise,), "leaving"))
    assert says_why(LeaveOrdered(), RoundStep(seat.state, (replace(promise, reason="we go"),)))
