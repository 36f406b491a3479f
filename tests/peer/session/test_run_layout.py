"""A card that can be had again is on the board, is watched, and trains from the next round on, or its owner is told how."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from peer.cards.card_return import LOOK_AGAIN_S
from peer.cards.card_status import card_statuses
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
LEFT = CardState(device="cuda:1", rank=1, left_out="the card is lost")


async def test_a_card_that_can_be_had_again_is_on_the_board_and_trains_with_the_others(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    board = StatusBoard(ME, VirtualClock(), 0.0)
    found, taken = OwnCards(CARDS.cards), list[World]()
    board.own_cards = OwnCards(CARDS.cards, again=lambda: found)

    def choose(own: OwnCards) -> LayoutChoice:
        return LayoutChoice(Layout(worlds=(BOTH,), reason="one replica"), (own.cards,))

    with trio.move_on_after(LOOK_AGAIN_S * 1.5):
        await keep_cards(
            board, choose, lambda: (CardState(device="cuda:0", rank=0), LEFT), taken.append, InlineOffload()
        )
    assert taken == [BOTH]
    assert board.own_cards == found
    assert board.layout is not None
    assert board.layout.layout.worlds == (BOTH,)
    assert [watched.uuid for watched in board.machine.watches()] == ["GPU-0", "GPU-1"]
    assert "cards: one replica" in capsys.readouterr().out


ISLANDS = (World(devices=("cuda:0",)), World(devices=("cuda:1",)))


@pytest.mark.parametrize("has_islands", [True, False], ids=["islands", "one card"])
async def test_a_card_that_would_have_a_replica_of_its_own_is_left_to_others_and_the_status_says_what_to_do(
    autojump_clock: trio.testing.MockClock, has_islands: bool
) -> None:
    board = StatusBoard(ME, VirtualClock(), 0.0)
    released, taken = list[str](), list[World]()
    found = OwnCards(CARDS.cards, release=released.extend)
    one = CardState(device="cuda:0", rank=0)
    busy = LeftOut(CARDS.cards[1], "other programs hold 20.0 GB of its memory")
    board.layout = LayoutChoice(Layout(worlds=ISLANDS[:1]), (CARDS.cards[:1],), (busy,))
    board.own_cards = OwnCards(CARDS.cards[:1], (busy,), again=lambda: found)

    def choose(own: OwnCards) -> LayoutChoice:
        return LayoutChoice(Layout(worlds=ISLANDS), tuple((card,) for card in own.cards))

    with trio.move_on_after(LOOK_AGAIN_S * 2.5):
        await keep_cards(board, choose, lambda: (one,), None if has_islands else taken.append, InlineOffload())
    assert taken == []
    assert released == ["GPU-1"] * 2, "another peer may train on it"
    statuses = card_statuses(board.layout, [one], {})
    assert [card.left_out for card in statuses] == ["", "it can train now: start this peer again to use it"]
    assert board.layout.cards == (CARDS.cards[:1],)


async def test_an_island_that_is_left_out_is_not_told_of_since_it_is_tried_again_by_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board = StatusBoard(ME, VirtualClock(), 0.0)
    board.own_cards = OwnCards(CARDS.cards, again=lambda: OwnCards(CARDS.cards))
    board.layout = LayoutChoice(Layout(worlds=ISLANDS), tuple((card,) for card in CARDS.cards))
    before, states = board.layout, (CardState(device="cuda:0", rank=0), LEFT)

    def choose(own: OwnCards) -> LayoutChoice:
        return before

    with trio.move_on_after(LOOK_AGAIN_S * 1.5):
        await keep_cards(board, choose, lambda: states, None, InlineOffload())
    assert board.layout == before


async def test_a_peer_begun_on_one_card_takes_a_second_one_where_both_share_a_replica(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board, taken = StatusBoard(ME, VirtualClock(), 0.0), list[World]()
    busy = LeftOut(CARDS.cards[1], "another peer trains on it")
    board.own_cards = OwnCards(CARDS.cards[:1], (busy,), again=lambda: OwnCards(CARDS.cards))

    def choose(own: OwnCards) -> LayoutChoice:
        return LayoutChoice(Layout(worlds=(BOTH,)), (own.cards,))

    one = CardState(device="cuda:0", rank=0)
    with trio.move_on_after(LOOK_AGAIN_S * 1.5):
        await keep_cards(board, choose, lambda: (one,), taken.append, InlineOffload())
    assert taken == [BOTH]
