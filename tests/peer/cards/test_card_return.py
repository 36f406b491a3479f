"""A card that was left out is looked for now and then, and trains once it can be had; nothing is asked where none is missing."""

from __future__ import annotations

from dataclasses import replace

import trio
import trio.testing

from peer.cards.card_return import LOOK_AGAIN_S, watch_for_return
from peer.cards.own_cards import OwnCards
from peer.training.plan.layout import Layout, Mesh, World
from peer.training.plan.layout_core import LayoutChoice
from peer.training.plan.owned_cards_core import NOT_NAMED, LeftOut
from protocol.errors import MachineError
from tests.peer.cards.test_own_cards import CARDS
from tests.virtual import InlineOffload

BOTH = OwnCards(CARDS.cards)
FIRST = OwnCards(CARDS.cards[:1], (LeftOut(CARDS.cards[1], "other programs hold 20.0 GB of its memory"),))


def _choice(own: OwnCards) -> LayoutChoice:
    assert own.cards, "a layout is of one card at least"
    devices = tuple(card.device for card in own.cards)
    return LayoutChoice(Layout(worlds=(World(devices=devices, mesh=Mesh(shard=len(devices))),)), (own.cards,))


class _Machine:
    """The findings of looks at the machine, one after the other; the last one again and again."""

    def __init__(self, *found: OwnCards | MachineError) -> None:
        self._found = list(found)
        self.looks = 0
        self.at_work = ["cuda:0"]
        self.taken: list[tuple[str, ...]] = []
        self.can_take = True

    def again(self) -> OwnCards:
        """As `OwnCards.again`."""
        self.looks += 1
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if isinstance(found, MachineError):
            raise found
        return replace(found, again=self.again)

    def take(self, own: OwnCards, choice: LayoutChoice) -> bool:
        """Train on them, if that can be."""
        self.taken.append(choice.layout.worlds[0].devices)
        if self.can_take:
            self.at_work = list(choice.layout.worlds[0].devices)
        return self.can_take

    async def watch(self, began: OwnCards, looks: float) -> None:
        """Watch for so many times the interval."""
        with trio.move_on_after(LOOK_AGAIN_S * looks):
            own = replace(began, again=self.again)
            await watch_for_return(own, _choice, lambda: self.at_work, self.take, InlineOffload())


async def test_a_card_that_other_programs_held_trains_once_they_are_done_and_then_nothing_is_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    machine = _Machine(FIRST, MachineError("torch does not tell", "an answer", "wait"), BOTH)
    await machine.watch(FIRST, 10.5)
    assert machine.taken == [("cuda:0", "cuda:1")]
    assert machine.looks == 3


async def test_a_look_at_which_a_failed_driver_tells_of_no_card_ends_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    machine = _Machine(FIRST, OwnCards(), BOTH)
    await machine.watch(FIRST, 10.5)
    assert machine.taken == [("cuda:0", "cuda:1")]
    assert machine.looks == 3


async def test_a_look_that_lists_only_some_cards_moves_no_replica_and_forgets_none_of_its_cards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def never() -> OwnCards:
        raise AssertionError("a card that trains is held by this peer, which those that were read do not know")

    machine = _Machine(BOTH)
    machine.at_work = ["cuda:0"]
    partial_looks = [OwnCards(CARDS.cards[1:], again=never), OwnCards((), (LeftOut(CARDS.cards[0], "held"),))]

    def again() -> OwnCards:
        return partial_looks.pop(0) if partial_looks else machine.again()

    with trio.move_on_after(LOOK_AGAIN_S * 5.5):
        own = replace(FIRST, again=again)
        await watch_for_return(own, _choice, lambda: machine.at_work, machine.take, InlineOffload())
    assert machine.taken == [("cuda:0", "cuda:1")]


async def test_a_replica_that_went_to_the_processor_comes_back_to_its_card(
    autojump_clock: trio.testing.MockClock,
) -> None:
    machine = _Machine(OwnCards(), OwnCards(CARDS.cards[:1]))
    machine.at_work = ["cpu"]
    await machine.watch(FIRST, 5.5)
    assert machine.taken == [("cuda:0",)]


async def test_cards_that_cannot_be_taken_are_offered_again_with_those_of_the_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    machine = _Machine(BOTH)
    machine.can_take = False
    await machine.watch(FIRST, 3.5)
    assert machine.taken == [("cuda:0", "cuda:1")] * 3


async def test_a_card_that_is_lost_while_it_trains_is_looked_for_too(autojump_clock: trio.testing.MockClock) -> None:
    machine = _Machine(OwnCards(CARDS.cards[:1]), BOTH)
    await machine.watch(BOTH, 5.5)
    assert machine.taken == [("cuda:0", "cuda:1")]


async def test_a_peer_whose_cards_all_train_never_looks(autojump_clock: trio.testing.MockClock) -> None:
    machine = _Machine(BOTH)
    machine.at_work = ["cuda:0", "cuda:1"]
    await machine.watch(BOTH, 5.5)
    machine.at_work = ["cuda:0"]
    await machine.watch(OwnCards(CARDS.cards[:1], (LeftOut(CARDS.cards[1], NOT_NAMED),)), 5.5)
    assert machine.looks == 0
    with trio.fail_after(1.0):
        await watch_for_return(OwnCards(), _choice, lambda: (), machine.take, InlineOffload())
