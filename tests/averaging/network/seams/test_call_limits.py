from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from averaging.network.seams.call_limits import (
    LET_IN_FOR_S,
    MAX_PER_STRANGER,
    MAX_STRANGERS,
    MAX_STRANGERS_REQUEST_BYTES,
    MAX_VERDICTS,
    MEMBER_WITHIN_S,
    NOT_ASKED_FOR_S,
    REFUSED_FOR_S,
    STRANGER_WITHIN_S,
    CallAdmission,
    CallLimiter,
    CallSlot,
    RecentVerdicts,
)
from averaging.network.seams.frames import Status
from averaging.network.seams.interfaces import MAX_CONTROL_BYTES
from protocol.errors import PotluckError, StorageError
from protocol.ids import PeerId

ALICE, BOB = PeerId("alice"), PeerId("bob")


def _run(story: Callable[[], Coroutine[object, object, None]]) -> None:
    """The door lives on the asyncio thread."""
    asyncio.run(asyncio.wait_for(story(), 10))


class Judge:
    """Lets in whom it knows, and remembers who was asked about."""

    def __init__(self, *members: PeerId) -> None:
        self.members = set(members)
        self.asked: list[PeerId] = []
        self.now_s = 100.0
        self.verdicts = RecentVerdicts(self.admits, lambda: self.now_s)

    async def admits(self, peer: PeerId) -> bool:
        self.asked.append(peer)
        await asyncio.sleep(0)
        return peer in self.members


def _entered(admission: CallAdmission, peer: PeerId) -> CallSlot:
    visit = admission.enter(peer)
    assert visit is not None
    return visit


def test_a_gate_counts_each_peer_and_all_together() -> None:
    gate = CallLimiter(2, 3)
    assert [gate.enter(ALICE) for _ in range(3)] == [True, True, False]
    assert [gate.enter(BOB) for _ in range(2)] == [True, False]
    gate.leave(ALICE)
    assert gate.enter(BOB)
    assert not gate.enter(ALICE)
    for peer in (ALICE, BOB, BOB):
        gate.leave(peer)
    assert [gate.enter(ALICE) for _ in range(2)] == [True, True]


def test_a_refusal_counts_for_a_moment_and_a_welcome_from_visit_to_visit() -> None:
    async def story() -> None:
        judge = Judge(ALICE)
        assert judge.verdicts.known(ALICE) is None
        assert await judge.verdicts.judge(ALICE)
        assert not await judge.verdicts.judge(BOB)
        for _ in range(3):
            judge.now_s += LET_IN_FOR_S - 1
            assert judge.verdicts.known(ALICE) is True
        judge.now_s += LET_IN_FOR_S
        assert judge.verdicts.known(ALICE) is None
        judge.members = {BOB}
        assert not await judge.verdicts.judge(ALICE)
        assert await judge.verdicts.judge(BOB)

    _run(story)


def test_a_refused_peer_is_asked_about_again_when_the_moment_is_over() -> None:
    async def story() -> None:
        judge = Judge()
        for _ in range(5):
            assert not await judge.verdicts.judge(BOB)
            judge.now_s += REFUSED_FOR_S / 10
        assert judge.asked == [BOB]
        judge.now_s += REFUSED_FOR_S
        judge.members.add(BOB)
        assert await judge.verdicts.judge(BOB)

    _run(story)


def test_a_peer_that_could_not_be_asked_is_asked_again_long_before_one_that_was_refused() -> None:
    asked: list[PeerId] = []
    now_s = 100.0

    async def admits(peer: PeerId) -> bool | None:
        asked.append(peer)
        return None if len(asked) == 1 else True

    async def story() -> None:
        nonlocal now_s
        verdicts = RecentVerdicts(admits, lambda: now_s)
        assert not await verdicts.judge(ALICE)
        assert not await verdicts.judge(ALICE)
        assert asked == [ALICE], "not at every message either"
        now_s += NOT_ASKED_FOR_S
        assert NOT_ASKED_FOR_S < REFUSED_FOR_S / 10
        assert await verdicts.judge(ALICE)

    _run(story)


def test_all_who_wait_for_a_verdict_share_one_question() -> None:
    async def story() -> None:
        judge = Judge(ALICE)
        assert await asyncio.gather(*(judge.verdicts.judge(ALICE) for _ in range(5))) == [True] * 5
        assert judge.asked == [ALICE]

    _run(story)


def test_one_who_waits_no_longer_does_not_spoil_the_verdict_for_the_others() -> None:
    async def story() -> None:
        may_answer = asyncio.Event()

        async def admits(_: PeerId) -> bool:
            await may_answer.wait()
            return True

        verdicts = RecentVerdicts(admits)
        first, second = (asyncio.ensure_future(verdicts.judge(ALICE)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        may_answer.set()
        assert await second
        assert first.cancelled()

    _run(story)


def test_a_question_that_fails_is_no_verdict() -> None:
    async def story() -> None:
        async def admits(_: PeerId) -> bool:
            raise StorageError("a ledger that cannot be read", "one that can")

        verdicts = RecentVerdicts(admits)
        for _ in range(2):
            with pytest.raises(PotluckError):
                await verdicts.judge(ALICE)
            assert verdicts.known(ALICE) is None

    _run(story)


def test_verdicts_are_bounded_and_the_oldest_goes_first() -> None:
    async def story() -> None:
        judge = Judge(ALICE, BOB)
        await judge.verdicts.judge(ALICE)
        await judge.verdicts.judge(BOB)
        assert judge.verdicts.known(ALICE)  # a visit makes it younger than the other
        for number in range(MAX_VERDICTS - 1):
            await judge.verdicts.judge(PeerId(f"stranger {number}"))
        assert judge.verdicts.known(ALICE)
        assert judge.verdicts.known(BOB) is None

    _run(story)


def _admission(admits: Callable[[PeerId], Awaitable[bool]], members: CallLimiter | None = None) -> CallAdmission:
    return CallAdmission(RecentVerdicts(admits), members or CallLimiter(16, 16), frozenset({"open"}))


def test_a_stranger_reaches_open_channels_unjudged_with_small_requests_and_little_time() -> None:
    async def story() -> None:
        judge = Judge()
        admission = _admission(judge.admits)
        visit = _entered(admission, BOB)
        assert await admission.pass_to(visit, "open") is Status.FINE
        assert judge.asked == []
        assert (visit.within_s, visit.max_request_bytes) == (STRANGER_WITHIN_S, MAX_STRANGERS_REQUEST_BYTES)

    _run(story)


def test_a_stranger_at_another_channel_is_judged_and_turned_away() -> None:
    async def story() -> None:
        judge = Judge()
        admission = _admission(judge.admits)
        visit = _entered(admission, BOB)
        assert await admission.pass_to(visit, "round") is Status.FAILED
        assert not visit.is_member

    _run(story)


def test_who_is_let_in_gives_its_strangers_place_back_and_has_a_members_rights() -> None:
    async def story() -> None:
        judge = Judge(ALICE)
        admission = _admission(judge.admits)
        for _ in range(MAX_PER_STRANGER + 1):
            visit = _entered(admission, ALICE)
            assert await admission.pass_to(visit, "round") is Status.FINE
            assert (visit.within_s, visit.max_request_bytes) == (MEMBER_WITHIN_S, MAX_CONTROL_BYTES)
        assert judge.asked == [ALICE]

    _run(story)


def test_a_member_beyond_its_places_is_told_to_wait_and_comes_in_when_one_is_free() -> None:
    async def story() -> None:
        admission = _admission(Judge(ALICE).admits, CallLimiter(1, 1))
        first, second = _entered(admission, ALICE), _entered(admission, ALICE)
        assert await admission.pass_to(first, "round") is Status.FINE
        assert await admission.pass_to(second, "round") is Status.BUSY
        second.leave()
        assert admission.enter(ALICE) is None
        first.leave()
        first.leave()  # a second time changes nothing
        assert _entered(admission, ALICE).is_member
        assert admission.enter(ALICE) is None

    _run(story)


def test_strangers_have_few_places_each_and_together_and_take_none_of_the_members() -> None:
    async def story() -> None:
        judge = Judge(ALICE)
        admission = _admission(judge.admits)
        assert await admission.pass_to(_entered(admission, ALICE), "round") is Status.FINE
        visits = [admission.enter(BOB) for _ in range(MAX_PER_STRANGER + 1)]
        assert [visit is not None for visit in visits] == [True] * MAX_PER_STRANGER + [False]
        others = [admission.enter(PeerId(f"stranger {number}")) for number in range(MAX_STRANGERS)]
        assert sum(visit is not None for visit in others) == MAX_STRANGERS - MAX_PER_STRANGER
        assert _entered(admission, ALICE).is_member

    _run(story)
