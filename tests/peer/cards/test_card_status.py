from __future__ import annotations

from peer.cards.card_status import card_statuses, watched_cards
from peer.machine.machine import MachineUse, WatchedCard
from peer.status.metrics import metrics_text
from peer.status.status import PeerStatus
from peer.status.status_text import status_lines
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.plan.cards_core import Card
from peer.training.plan.layout import Layout, World
from peer.training.plan.layout_core import LayoutChoice
from peer.training.plan.owned_cards_core import LeftOut, OwnedCard

RTX = Card("cuda", "NVIDIA GeForce RTX 3090", 24 << 30, (8, 6))
CARDS = tuple(OwnedCard(number, RTX, f"GPU-{number}") for number in range(3))
WORLDS = (World(devices=("cuda:0",)), World(devices=("cuda:2",)))
ISLANDS = LayoutChoice(
    Layout(worlds=WORLDS, reason="2 islands"),
    ((CARDS[0],), (CARDS[2],)),
    (LeftOut(CARDS[1], "another peer trains on it"),),
)
REPORT = CardReport(
    plan=CardPlan(precision="bf16"),
    kind="cuda",
    reason="RTX 3090, 24 GB: bf16",
    expected_bytes=9_000_000_000,
    used_bytes=8_000_000_000,
    flops_per_token=1_000_000_000,
    peak_flops=71e12,
)
STATES = (
    CardState("cuda:0", "GPU-0", 0, 0, 14_200.0, 300.0, REPORT),
    CardState("cuda:2", "GPU-2", 1, 0, 4_700.0, 100.0),
)


def test_each_card_is_told_by_its_number_with_its_part_of_the_work() -> None:
    first, second, third = card_statuses(ISLANDS, STATES, {"GPU-2": MachineUse(gpu_celsius=71)})
    assert (
        first.line == "RTX 3090, 24 GB: 14,200 tokens/s, 75% of the tokens, 8.0 GB of 9.0 GB expected, 20% of its peak"
    )
    assert second.line == "RTX 3090, 24 GB: left out, another peer trains on it"
    assert third.line == "RTX 3090, 24 GB: 4,700 tokens/s, 25% of the tokens, memory not measured, 71 C"
    assert [status.number for status in (first, second, third)] == [0, 1, 2]


def test_a_card_that_its_trainer_gave_up_is_left_out() -> None:
    states = (STATES[0], CardState("cuda:2", "GPU-2", 1, left_out="the card is lost"))
    assert card_statuses(ISLANDS, states, {})[2].line == "RTX 3090, 24 GB: left out, the card is lost"


def test_one_device_has_no_lines_of_its_own_and_is_not_watched() -> None:
    assert card_statuses(None, (), {}) == ()
    assert card_statuses(LayoutChoice(Layout(), ()), STATES[:1], {}) == ()
    one = LayoutChoice(Layout(worlds=WORLDS[:1]), ((CARDS[0],),))
    assert card_statuses(one, STATES[:1], {}) == ()
    assert watched_cards(None) == watched_cards(one) == ()


def test_the_cards_that_train_are_watched_by_their_replicas() -> None:
    assert watched_cards(ISLANDS) == (WatchedCard("GPU-0", "card 0", 0), WatchedCard("GPU-2", "card 2", 1))
    shared = LayoutChoice(Layout(), ((CARDS[0], CARDS[2]),))
    assert [card.world for card in watched_cards(shared)] == [0, 0]


def test_status_and_metrics_have_a_line_a_card_and_none_for_one_device() -> None:
    cards = card_statuses(ISLANDS, STATES, {"GPU-2": MachineUse(gpu_celsius=71)})
    status = PeerStatus(peer="p", name="a name", layout="2 islands", cards=cards)
    lines = status_lines(status)
    assert "layout: 2 islands" in lines
    assert [line for line in lines if line.startswith("card ")] == [
        f"card {card.number}: {card.line}" for card in cards
    ]
    text = metrics_text(lambda: status).decode()
    assert 'potluck_card_tokens_per_second{card="2"} 4700.0' in text
    assert 'potluck_card_left_out{card="1"} 1.0' in text
    assert 'potluck_card_celsius{card="2"} 71.0' in text
    assert 'potluck_card_celsius{card="0"}' not in text, "it is not known"
    plain = PeerStatus(peer="p", name="a name")
    assert not [line for line in status_lines(plain) if line.startswith(("card", "layout"))]
    assert "{card=" not in metrics_text(lambda: plain).decode()
