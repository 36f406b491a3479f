from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from peer.training.plan.cards_core import Card
from peer.training.plan.owned_cards_core import OwnedCard, take
from protocol.errors import ConfigError, MachineError

GIB: Final = 1 << 30
_RTX = Card("cuda", "NVIDIA GeForce RTX 3060", 12 * GIB, (8, 6))
CARDS: Final = tuple(OwnedCard(number, _RTX, f"GPU-{number}111aaaa-0000", 11 * GIB) for number in range(3))


def _numbers(cards: tuple[OwnedCard, ...]) -> list[int]:
    return [card.number for card in cards]


def test_all_free_cards_train_and_those_that_cannot_are_named_with_the_reason() -> None:
    lost = replace(CARDS[0], problem="the driver has lost it")
    held = replace(CARDS[1], free_bytes=2 * GIB)
    found = take((lost, held, CARDS[2]), ("auto",))
    assert _numbers(found.cards) == [2]
    assert [(each.card.number, each.reason) for each in found.left_out] == [
        (0, "the driver has lost it"),
        (1, "other programs hold 10.7 GB of its memory"),
    ]


def test_a_card_of_another_peer_is_left_out_by_itself_and_refused_by_name() -> None:
    found = take(CARDS, ("auto",), {CARDS[1].uuid})
    assert _numbers(found.cards) == [0, 2]
    assert found.left_out[0].reason == "another peer trains on it"
    for names in (("1",), ("all",)):
        with pytest.raises(MachineError, match=r"card 1 \(RTX 3060, 12 GB\) cannot train: another peer") as caught:
            take(CARDS, names, {CARDS[1].uuid})
        assert caught.value.exit_code == 4


def test_named_cards_train_in_the_order_of_their_names() -> None:
    found = take(CARDS, ("2", "GPU-0111"))
    assert _numbers(found.cards) == [2, 0]
    assert [(each.card.number, each.reason) for each in found.left_out] == [(1, "not among --gpus")]
    assert _numbers(take(CARDS, ("all",)).cards) == [0, 1, 2]


def test_a_named_card_that_others_use_trains_all_the_same() -> None:
    held = replace(CARDS[1], free_bytes=GIB)
    assert take((CARDS[0], held), ("1",)).cards == (held,)


def test_a_card_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(MachineError, match="card 7 is not there; expected one of: 0, 1, 2") as caught:
        take(CARDS, ("0", "7"))
    assert caught.value.exit_code == 4
    with pytest.raises(MachineError, match="may be one of 3"):
        take(tuple(replace(card, uuid=f"GPU-{card.number}") for card in CARDS), ("GPU-",))


def test_a_number_and_a_uuid_of_one_card_are_that_card_twice() -> None:
    with pytest.raises(ConfigError, match="names card 1 twice"):
        take(CARDS, ("1", CARDS[1].uuid))
