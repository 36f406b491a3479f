"""A card that can be had again is on the board, is watched, and trains from the next round on."""

from __future__ import annotations

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
