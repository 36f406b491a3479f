from __future__ import annotations

import pytest

from peer.forecast.known_cards_core import CARDS, known_card, short_name
from peer.training.plan.cards_core import native_precision
from peer.training.plan.speed_core import peak_flops
from protocol.errors import ConfigError


def test_a_card_is_found_however_its_name_is_written() -> None:
    assert known_card("RTX 3090").card is known_card("rtx-3090").card is known_card("rtx3090").card
    assert known_card("rtx3090ti").card.name == "RTX 3090 TI"
    assert short_name("Quadro RTX 8000") == "quadrortx8000"


@pytest.mark.parametrize("name", CARDS)
def test_every_card_of_the_table_has_a_peak_in_the_type_that_it_trains_in(name: str) -> None:
    known = CARDS[name]
    assert peak_flops(known.card, native_precision(known.card)) is not None
    assert 4 <= known.card.memory_bytes >> 30 <= 512
    assert 50 <= known.watts <= 2000


@pytest.mark.parametrize(
    ("name", "gib"), [("h200", 139.80), ("h100", 79.21), ("b200", 178.35), ("mi300x", 191.98), ("mi325x", 255.98)]
)
def test_a_large_card_has_the_memory_that_torch_finds_on_it(name: str, gib: float) -> None:
    assert known_card(name).card.memory_bytes >> 30 == int(gib)


@pytest.mark.parametrize(("wrong", "near"), [("3090", "rtx3090"), ("rtx3009", "rtx3090"), ("a100", "a10040gb")])
def test_an_unknown_card_is_one_line_with_the_nearest_names(wrong: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        known_card(wrong)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["", "?!", "abacus"])
def test_a_card_like_no_other_is_still_one_line_that_says_what_to_do(wrong: str) -> None:
    with pytest.raises(ConfigError, match="potluck doctor --speed"):
        known_card(wrong)
