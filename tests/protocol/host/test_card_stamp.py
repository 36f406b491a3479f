"""Stamps on cards: work for one host, run and day."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.host.card_stamp import DAY_S, day_of, find_stamp, is_stamped, why_no_day
from protocol.host.run_card import RunCard, SignedCard, open_card, seal_card
from protocol.identity.identity import Identity
from protocol.ids import PeerId, RunId
from tests.protocol.host.test_run_card import CARD, HOST, NOW, OTHER, RUN, VERIFIER

BITS = 4


def stamped_card(host: Identity = HOST, now_unix_s: float = NOW, bits: int = BITS) -> RunCard:
    """A card with a stamp of today."""
    stamp = find_stamp(host.peer_id, RUN, day_of(now_unix_s), 0, 1 << 16, bits)
    assert stamp is not None
    return replace(CARD, stamp=stamp, stamp_day=day_of(now_unix_s))


def _signed(card: RunCard, host: Identity = HOST) -> SignedCard:
    return open_card(seal_card(host, RUN, card, NOW), verifier=VERIFIER, now_unix_s=NOW)


def test_a_stamp_holds_for_its_host_run_and_day_alone() -> None:
    card = stamped_card()
    good = _signed(card)
    assert good.card == card
    assert is_stamped(good, BITS)
    others = [
        replace(good, host=OTHER.peer_id),
        replace(good, run_id=RunId(b"x" * 32)),
        replace(good, card=replace(card, stamp_day=card.stamp_day + 1)),
    ]
    assert sum(is_stamped(each, 2 * BITS + 4) for each in others) == 0
    assert not is_stamped(replace(good, host=PeerId("junk")), 0)


@pytest.mark.parametrize(("days", "is_fine"), [(-2, False), (-1, True), (0, True), (1, False)])
def test_a_stamp_is_of_today_or_yesterday(days: int, is_fine: bool) -> None:
    card = replace(CARD, stamp_day=day_of(NOW) + days)
    assert (why_no_day(card, NOW) == "") == is_fine
    assert day_of(NOW + DAY_S) == day_of(NOW) + 1


def test_a_card_of_an_older_release_has_no_stamp_and_is_told_what_it_lacks() -> None:
    assert (CARD.stamp, CARD.stamp_day) == (0, 0)
    assert "no stamp of today" in why_no_day(CARD, NOW)
