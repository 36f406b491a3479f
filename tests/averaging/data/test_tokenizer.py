from __future__ import annotations

import numpy as np

from averaging.data.tokenizer import END, VOCAB_SIZE, decode_tokens, encode_bytes


def test_every_byte_is_its_own_token_and_the_end_mark_is_none_of_them() -> None:
    tokens = encode_bytes(bytes(range(256)))
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [*range(256)]
    assert END == VOCAB_SIZE - 1 == 256
    assert encode_bytes(b"").tolist() == []


def test_text_comes_back_with_a_line_break_for_the_mark() -> None:
    text = "größer\n"
    assert decode_tokens(np.append(encode_bytes(text.encode()), np.uint16(END))) == text + "\n"


def test_broken_text_is_shown_rather_than_refused() -> None:
    assert decode_tokens(np.array([0xC3, 0x41], dtype=np.uint16)) == "\ufffdA"
