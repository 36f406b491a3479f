from __future__ import annotations

import trio
import trio.testing

from averaging.rounds.audit.false_accusations import MOST_FALSE
from coordinator.ledger.accused_reducers import MOST_OF_ONE, MOST_WAITING, AccusedReducers
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.messages import FalseSum

ONE, OTHER = PeerId("one"), PeerId("other")


def _notice(number: int) -> FalseSum:
    name = number.to_bytes(32)
    return FalseSum(UnitName("unit"), CommitId(b"b" * 32), PeerId("liar"), Root(b"r" * 32), name)


async def test_an_accusation_is_taken_once_the_oldest_first_also_by_who_waits_already(
    autojump_clock: trio.testing.MockClock,
) -> None:
    accused, taken = AccusedReducers(), list[tuple[PeerId, FalseSum]]()

    async def take() -> None:
        for _ in range(2):
            taken.append(await accused.next())

    with trio.fail_after(10.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await trio.sleep(1.0)
            accused.heard(ONE, [_notice(1)])
            accused.heard(OTHER, [_notice(1), _notice(2)])
    assert taken == [(ONE, _notice(1)), (OTHER, _notice(2))]


async def test_no_member_fills_the_queue_and_what_failed_is_not_asked_for_again() -> None:
    accused = AccusedReducers()
    accused.heard(ONE, [_notice(number) for number in range(10)])
    assert len(accused._waiting) == MOST_OF_ONE
    for number in range(10, 200):
        accused.heard(PeerId(f"peer {number}"), [_notice(number)])
    assert len(accused._waiting) == MOST_WAITING
    source, notice = await accused.next()
    accused.note_failed(source, notice)
    accused.heard(OTHER, [notice])
    assert notice.proof_hash not in accused._waiting


async def test_a_member_that_accuses_falsely_a_few_times_is_not_listened_to_any_more() -> None:
    accused = AccusedReducers()
    for number in range(MOST_FALSE):
        accused.heard(ONE, [_notice(number)])
        source, notice = await accused.next()
        accused.note_failed(source, notice)
    accused.heard(ONE, [_notice(100)])
    assert not accused._waiting
    accused.heard(OTHER, [_notice(100)])
    assert accused._waiting, "the same accusation of another is looked at"
