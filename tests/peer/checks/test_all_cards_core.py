from __future__ import annotations

from dataclasses import replace

from peer.checks.all_cards_core import card_findings, layout_finding, layout_lines
from peer.checks.machine_core import Level
from peer.training.plan.cards_core import Card
from peer.training.plan.layout_core import Links, choose_layout
from peer.training.plan.owned_cards_core import LeftOut, OwnedCard
from peer.training.plan.stage_layout_core import stage_layout
from tests.peer.training.plan.test_layout_core import MACHINES, MODELS, _task
from tests.peer.training.plan.test_stage_layout_core import stage_task

RTX = Card("cuda", "NVIDIA GeForce RTX 3090", 24 << 30, (8, 6))
CARDS = (
    OwnedCard(0, RTX, "GPU-0", 20_000_000_000, 45.0),
    OwnedCard(1, RTX, "GPU-1", problem="the card is lost"),
    OwnedCard(2, Card("rocm", "AMD Radeon RX 7900 XTX", 24 << 30, architecture="gfx1100")),
)


def test_every_card_has_a_line_with_the_number_for_the_flag() -> None:
    found = card_findings(CARDS, "auto", "auto")
    assert [(each.name, each.level, each.found) for each in found] == [
        ("card 0", Level.OK, "RTX 3090, 24 GB, 20.0 GB free, 45 C, GPU-0"),
        ("card 1", Level.WARN, "RTX 3090, 24 GB, GPU-1, left out: the card is lost"),
        ("card 2", Level.OK, "RX 7900 XTX, 24 GB"),
    ]
    assert card_findings(CARDS[:1], "auto", "auto") == (), "one card is told as ever"


def test_a_wish_that_cannot_be_met_fails_and_one_that_can_names_the_rest() -> None:
    *_, last = card_findings(CARDS, "0,7", "cuda")
    assert (last.name, last.level) == ("gpus", Level.FAIL)
    assert "card 7 is not there" in last.found
    (none,) = card_findings((), "0", "auto")
    assert "card 0 is not there; expected one of: none" in none.found
    (mac,) = card_findings((), "0", "mps")
    assert "a Mac has one card" in mac.found
    assert card_findings((), "0,1", "cpu") == (), "processes there"
    named = card_findings(CARDS, "2", "auto")
    assert [(each.level, each.found.endswith("left out: not among --gpus")) for each in named] == [
        (Level.OK, True),
        (Level.WARN, True),
        (Level.OK, False),
    ]


def test_the_layout_is_told_with_its_reason_and_gigabytes_a_card() -> None:
    cards, links = MACHINES["2x 3090"]
    choice = choose_layout(cards, _task(MODELS["136M"]), "auto", links)
    choice = replace(choice, left_out=(LeftOut(OwnedCard(2, RTX), "another peer trains on it"),))
    lines = list(layout_lines(choice))
    assert lines[0] == choice.layout.reason
    assert lines[1:4] == [
        "card 0 (RTX 3090, 24 GB): 22.5 of 23.2 GB",
        "card 1 (RTX 3090, 24 GB): 22.5 of 23.2 GB",
        "card 2 (RTX 3090, 24 GB): left out, another peer trains on it",
    ]
    assert lines[4].startswith("at the start both are timed; the other way: ")
    assert layout_finding(choice).level is Level.OK
    smaller, apart = MACHINES["2x 3060"]
    misfit = choose_layout(smaller, _task(MODELS["12B"]), "auto", apart)
    assert layout_finding(misfit).level is Level.WARN


def test_the_cards_of_a_stage_are_told_before_it_is_known_which_stage_they_hold() -> None:
    choice = stage_layout(CARDS, stage_task(), "auto", Links())
    assert list(layout_lines(choice)) == [
        "2x RTX 3090, 24 GB: each holds the stage and a part of every micro-batch",
        "card 0 (RTX 3090, 24 GB): 1.6 of 23.5 GB",
        "card 1 (RTX 3090, 24 GB): 1.6 of 23.5 GB",
        "card 2 (RX 7900 XTX, 24 GB): left out, a stage takes cards of one kind",
    ]
    assert layout_finding(choice).level == Level.OK
