"""A card that can be had again is on the board, is watched, and trains from the next round on, or in the next life of the peer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from peer.cards.card_return import LOOK_AGAIN_S
from peer.cards.own_cards import OwnCards
from peer.session.run_layout import keep_cards
from peer.status.status_board import StatusBoard
from peer.training.plan.card_state import CardState
from peer.training.plan.layout import Layout, Mesh, World
from peer.training.plan.layout_core import LayoutChoice
from peer.training.plan.owned_cards_core import LeftOut
from tests.peer.cards.test_own_cards import CARDS
from tests.peer.scores.test_task_scoring import ME
from tests.virtual import InlineOffload, VirtualClock

BOTH = World(devices=("cuda:0", "cuda:1"), mesh=Mesh(shard=2))
FIRST = CardState(device="cuda:0", rank=0)
LEFT = CardState(device="cuda:1", rank=1, left_out="the card is lost")
BUSY = LeftOut(CARDS.cards[1], "other programs hold 20.0 GB of its memory")


def _never() -> None:
    raise AssertionError("the peer begins anew")


async def test_a_card_that_can_be_had_again_is_on_the_board_and_trains_with_the_others(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    board = StatusBoard(ME, VirtualClock(), 0.0)
    found, taken = OwnCards(CARDS.cards), list[World]()
    board.own_cards = OwnCards(CARDS.cards, again=lambda: found)

    def choose(own: OwnCards) -> LayoutChoice:
        return LayoutChoice(Layout(worlds=(BOTH,), reason="one replica"), (own.cards,))

    with trio.move_on_after(LOOK_AGAIN_S * 1.5):
        await keep_cards(board, choose, lambda: (FIRST, LEFT), taken.append, _never, InlineOffload())
    assert taken == [BOTH]
    assert board.own_cards == found
    assert board.layout is not None
    assert board.layout.layout.worlds == (BOTH,)
    assert [watched.uuid for watched in board.machine.watches()] == ["GPU-0", "GPU-1"]
    assert "cards: one replica" in capsys.readouterr().out


ISLANDS = (World(devices=("cuda:0",)), World(devices=("cuda:1",)))


def _islands(own: OwnCards) -> LayoutChoice:
    return LayoutChoice(Layout(worlds=ISLANDS), tuple((card,) for card in own.cards))


@pytest.mark.parametrize("has_islands", [True, False], ids=["islands", "one card"])
async def test_for_a_card_that_would_have_a_replica_of_its_own_the_peer_begins_anew_with_it_once(
    autojump_clock: trio.testing.MockClock, has_islands: bool
) -> None:
    board, begun, taken = StatusBoard(ME, VirtualClock(), 0.0), list[OwnCards](), list[World]()
    found = OwnCards(CARDS.cards)
    board.own_cards = OwnCards(CARDS.cards[:1], (BUSY,), again=lambda: replace(found, again=lambda: found))
    regroup = None if has_islands else taken.append

    def begin_anew() -> None:
        begun.append(board.own_cards)

    with trio.move_on_after(LOOK_AGAIN_S * 1.5):
        await keep_cards(board, _islands, lambda: (FIRST,), regroup, begin_anew, InlineOffload())
    assert begun == [], "it does not train yet"
    board.say("training", "training")
    with trio.move_on_after(LOOK_AGAIN_S * 3.5):
        await keep_cards(board, _islands, lambda: (FIRST,), regroup, begin_anew, InlineOffload())
    assert begun == [found], "in its next life the card is not new, whether it trains or not"
    assert taken == []
    assert (board.state, board.reason) == (
        "leaving",
        "to come back with card 1 (RTX 3060, 12 GB), which can train now",
    )


async def test_for_an_island_that_is_left_out_nothing_begins_anew_since_it_is_tried_again_by_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board = StatusBoard(ME, VirtualClock(), 0.0)
    board.own_cards = OwnCards(CARDS.cards, again=lambda: OwnCards(CARDS.cards))
    board.say("training", "training")
    with trio.move_on_after(LOOK_AGAIN_S * 1.5):
        await keep_cards(board, _islands, lambda: (FIRST, LEFT), None, _never, InlineOffload())
    assert board.state == "training"


async def test_a_peer_begun_on_one_card_takes_a_second_one_where_both_share_a_replica(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board, taken = StatusBoard(ME, VirtualClock(), 0.0), list[World]()
    board.own_cards = OwnCards(CARDS.cards[:1], (BUSY,), again=lambda: OwnCards(CARDS.cards))

    def choose(own: OwnCards) -> LayoutChoice:
        return LayoutChoice(Layout(worlds=(BOTH,)), (own.cards,))

    with trio.move_on_after(LOOK_AGAIN_S * 1.5):
        await keep_cards(board, choose, lambda: (FIRST,), taken.append, _never, InlineOffload())
    assert taken == [BOTH]
