from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from averaging.data.packing.baselines import Baselines, PairCounter
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import VOCAB_SIZE


def _fed(*texts: Text, max_bytes: int = 1 << 26) -> Baselines:
    yardsticks = Baselines(max_bytes)
    for text in texts:
        yardsticks.add(text)
    return yardsticks


def test_zlib_counts_the_bytes_of_the_held_out_text_alone() -> None:
    text = b"potluck " * 50
    fed = _fed(Text(text[:100], "heldout", is_last=False), Text(b"other", "train"), Text(text[100:], "heldout"))
    fed.add(Text(b"", "heldout"))
    expected = pytest.approx(8 * len(zlib.compress(text, 9)) / len(text))
    assert fed.zlib_bits_per_byte() == expected
    assert fed.zlib_bits_per_byte() == expected


def test_pairs_are_counted_on_the_training_part_with_one_added() -> None:
    fed = _fed(Text(b"\1\2\1\2\1\3", "train", is_last=False), Text(b"\1\2", "heldout"))
    # 1 is followed by 2 twice of three times; 2 by the end mark never of two.
    after_1, after_2 = 3 / (3 + VOCAB_SIZE), 1 / (2 + VOCAB_SIZE)
    assert fed.pairs_nats_per_byte() == pytest.approx(-(math.log(after_1) + math.log(after_2)) / 2)


def test_text_without_a_pattern_costs_what_its_alphabet_costs() -> None:
    text = np.random.default_rng(1).integers(0, 256, 600_000).astype(np.uint8).tobytes()
    fed = _fed(Text(text, "train"), Text(text[:1000], "heldout"))
    assert fed.pairs_nats_per_byte() == pytest.approx(math.log(256), abs=0.1)


def test_pairs_across_pieces_and_blocks_are_counted_once() -> None:
    text = np.random.default_rng(1).integers(0, 256, 3 << 20).astype(np.uint16)
    whole, parts = PairCounter(), PairCounter()
    whole.add(text)
    for begin in range(0, len(text), 700_001):
        parts.add(text[begin : begin + 700_001])
    assert np.array_equal(whole.table(), parts.table())
    assert whole.table().sum() == len(text) - 1


def test_what_is_beyond_the_bound_or_of_another_part_changes_nothing() -> None:
    texts = (Text(b"potluck", "train", is_last=False), Text(b"potlatch", "heldout", is_last=False))
    more = (Text(b"zzz", "train"), Text(b"zzz", "heldout"), Text(b"zzz", "prose"))
    one, other = _fed(*texts, max_bytes=7), _fed(*texts, *more, max_bytes=7)
    assert one.zlib_bits_per_byte() == other.zlib_bits_per_byte()
    assert one.pairs_nats_per_byte() == other.pairs_nats_per_byte()
