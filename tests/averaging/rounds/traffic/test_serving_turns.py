from __future__ import annotations

import trio
import trio.testing

from averaging.rounds.traffic.serving_turns import AT_ONCE, EACH, HOLDS_S, MOST_WAITING, Turns
from protocol.ids import PeerId

Clock = trio.testing.MockClock


def _askers(number: int) -> list[PeerId]:
    return [PeerId(f"asker-{each}") for each in range(number)]


async def test_a_few_are_served_at_a_time_in_the_order_in_which_they_came(autojump_clock: Clock) -> None:
    turns, begun = Turns(), list[tuple[PeerId, float]]()

    async def ask(asker: PeerId) -> None:
        async with turns.turn(asker):
            begun.append((asker, trio.current_time()))
            await trio.sleep(1.0)

    askers, began_s = _askers(3 * AT_ONCE), trio.current_time()
    async with trio.open_nursery() as nursery:
        for asker in askers:
            nursery.start_soon(ask, asker)
            await trio.sleep(0.01)
    assert [asker for asker, _ in begun] == askers
    assert [round(at_s - began_s) for _, at_s in begun] == [number // AT_ONCE for number in range(len(askers))]


async def test_slow_askers_hold_up_others_only_for_a_while(autojump_clock: Clock) -> None:
    turns = Turns()

    async def ask_slowly(asker: PeerId) -> None:
        async with turns.turn(asker):
            await trio.sleep(100 * HOLDS_S)

    async with trio.open_nursery() as nursery:
        for asker in _askers(AT_ONCE):
            nursery.start_soon(ask_slowly, asker)
        await trio.sleep(0.1)
        began_s = trio.current_time()
        async with turns.turn(PeerId("quick")):
            assert trio.current_time() - began_s <= HOLDS_S
        nursery.cancel_scope.cancel()


async def test_one_that_gives_up_while_it_waits_leaves_its_place(autojump_clock: Clock) -> None:
    turns = Turns()

    async def hold(asker: PeerId) -> None:
        async with turns.turn(asker):
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        for asker in _askers(AT_ONCE):
            nursery.start_soon(hold, asker)
        await trio.sleep(0.1)
        with trio.move_on_after(0.1):
            async with turns.turn(PeerId("impatient")):
                raise AssertionError
        began_s = trio.current_time()
        async with turns.turn(PeerId("next")):
            assert trio.current_time() - began_s < 1.0


async def test_there_is_no_turn_where_many_wait_or_one_asks_for_too_much(autojump_clock: Clock) -> None:
    turns = Turns()
    greedy, late = PeerId("greedy"), PeerId("late")

    async def hold(asker: PeerId) -> None:
        async with turns.turn(asker):
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        for _ in range(EACH):
            assert not turns.has_none_for(greedy)
            nursery.start_soon(hold, greedy)
            await trio.sleep(0.0)
            await trio.testing.wait_all_tasks_blocked()
        assert turns.has_none_for(greedy)
        assert not turns.has_none_for(late)
        for asker in _askers(AT_ONCE - EACH + MOST_WAITING):
            nursery.start_soon(hold, asker)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.has_none_for(late)
    assert not turns.has_none_for(greedy)


async def test_an_asker_of_many_requests_takes_no_turns_of_others_and_has_all_of_them_answered(
    autojump_clock: Clock,
) -> None:
    turns, greedy = Turns(), PeerId("greedy")
    answered = list[float]()

    async def hold(asker: PeerId) -> None:
        async with turns.turn(asker):
            await trio.sleep(100 * HOLDS_S)
        answered.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(4 * MOST_WAITING):
            nursery.start_soon(hold, greedy)
        await trio.testing.wait_all_tasks_blocked()
        for asker in _askers(AT_ONCE - EACH):
            assert not turns.has_none_for(asker)
            with trio.fail_after(0.0):
                async with turns.turn(asker):
                    pass
    assert len(answered) == 4 * MOST_WAITING


async def test_a_request_that_ends_with_an_error_lets_the_next_of_its_asker_begin(autojump_clock: Clock) -> None:
    turns, asker, begun = Turns(), PeerId("asker"), list[int]()

    async def ask(number: int) -> None:
        with trio.move_on_after(1.0):
            async with turns.turn(asker):
                begun.append(number)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for number in range(EACH):
            nursery.start_soon(ask, number)
        await trio.sleep(0.5)
        nursery.start_soon(ask, EACH)
    assert begun[EACH:] == [EACH]
