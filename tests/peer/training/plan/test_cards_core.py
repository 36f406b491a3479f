from __future__ import annotations

import pytest

from peer.training.plan.card_plan import Precision
from peer.training.plan.cards_core import Card, native_precision

GIB = 1 << 30


@pytest.mark.parametrize(
    ("card", "precision"),
    [
        (Card("cuda", "H100", 80 * GIB, (9, 0)), "bf16"),
        (Card("cuda", "RTX 3060", 12 * GIB, (8, 6)), "bf16"),
        (Card("cuda", "RTX 2080", 8 * GIB, (7, 5)), "fp16"),
        (Card("cuda", "V100", 16 * GIB, (7, 0)), "fp16"),
        (Card("cuda", "P100", 16 * GIB, (6, 0)), "fp16"),
        (Card("cuda", "GTX 1080", 8 * GIB, (6, 1)), "fp32"),
        (Card("rocm", "MI250", 64 * GIB, architecture="gfx90a:sramecc+:xnack-"), "bf16"),
        (Card("rocm", "RX 7900", 24 * GIB, architecture="gfx1100"), "bf16"),
        (Card("rocm", "RX 9070", 16 * GIB, architecture="gfx1201"), "bf16"),
        (Card("rocm", "RX 6800", 16 * GIB, architecture="gfx1030"), "fp16"),
        (Card("rocm", "VII", 16 * GIB, architecture="gfx906:sramecc-:xnack-"), "fp32"),
        (Card("rocm", "?", 16 * GIB), "fp32"),
        (Card("mps", "Apple M3 Pro", 36 * GIB, architecture="Apple M3 Pro"), "bf16"),
        (Card("mps", "Apple M10", 36 * GIB, architecture="Apple M10"), "bf16"),
        (Card("mps", "Apple M1", 16 * GIB, architecture="Apple M1"), "fp32"),
        (Card("mps", "Apple", 16 * GIB), "fp32"),
        (Card("cpu", "x86_64", 16 * GIB), "fp32"),
    ],
)
def test_a_card_computes_in_the_type_that_it_multiplies_natively(card: Card, precision: Precision) -> None:
    assert native_precision(card) == precision
