from __future__ import annotations

import numpy as np

from averaging.data.tokenizer import END, VOCAB_SIZE, decode_tokens, encode_document


def test_every_byte_is_its_own_token_and_the_document_ends_with_the_mark() -> None:
    tokens = encode_document(bytes(range(256)))
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [*range(256), END]
    assert END == VOCAB_SIZE - 1
    assert encode_document(b"").tolist() == [END]


def test_text_comes_back_with_a_line_break_for_the_mark() -> None:
    text = "größer\n"
    assert decode_tokens(encode_document(text.encode())) == text + "\n"


def test_broken_text_is_shown_rather_than_refused() -> None:
    assert decode_tokens(np.array([0xC3, 0x41], dtype=np.uint16)) == "\ufffdA"
