from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from averaging.data.tokenizer import END, VOCAB_SIZE, encode_document
from averaging.data.yardsticks import pairs_nats_per_token, zlib_bits_per_byte


def test_zlib_counts_the_bytes_of_the_text_alone() -> None:
    text = b"potluck " * 50
    tokens = np.concatenate([encode_document(text), encode_document(b"")])
    assert zlib_bits_per_byte(tokens) == pytest.approx(8 * len(zlib.compress(text, 9)) / len(text))


def test_pairs_are_counted_on_the_training_part_with_one_added() -> None:
    train = np.array([1, 2, 1, 2, 1, 3], dtype=np.uint16)
    heldout = np.array([1, 2, END], dtype=np.uint16)
    # 1 is followed by 2 twice of three times; 2 by END never of two.
    after_1, after_2 = 3 / (3 + VOCAB_SIZE), 1 / (2 + VOCAB_SIZE)
    assert pairs_nats_per_token(train, heldout) == pytest.approx(-(math.log(after_1) + math.log(after_2)) / 2)


def test_text_without_a_pattern_costs_what_its_alphabet_costs() -> None:
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, 600_000).astype(np.uint16)
    assert pairs_nats_per_token(tokens, tokens[:1000]) == pytest.approx(math.log(VOCAB_SIZE), abs=0.1)
