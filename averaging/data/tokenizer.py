"""Text to tokens and back: the interface of every tokenizer, and the byte tokenizer, which needs no training and no download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from protocol.errors import ConfigError

VOCAB_SIZE: Final = 257
"""Of the byte tokenizer: 256 bytes and one end mark."""

END: Final = 256
"""The end mark, after each document."""

ByteTokens: TypeAlias = npt.NDArray[np.uint16]
Tokens: TypeAlias = npt.NDArray[np.uint16 | np.uint32]

Bits: TypeAlias = npt.NDArray[np.bool_]
"""One value for each token."""


class EncodingError(ConfigError):
    """A tokenizer has no token for a word of a text. `cause` names tokenizer and word, `line` counts from 1, `text` names the text."""

    def __init__(self, cause: str, line: int, text: str = "a text") -> None:
        self.cause, self.line = cause, line
        super().__init__(
            f"{text} line {line}: {cause}",
            "a tokenizer for every text",
            "take one that has all bytes, or a token for unknown text, in data.tokenizer",
        )


class Tokenizer(Protocol):
    """Encodes text as tokens below `vocab_size`. `end` is the token after each document."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token."""
        ...

    @property
    def end(self) -> int:
        """The end mark."""
        ...

    @property
    def file(self) -> bytes | None:
        """The file that a peer needs to decode tokens; None for bytes."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """The tokens of a piece of text, without an end mark.

        Raises:
            EncodingError: there is no token for a part of it.
        """
        ...

    def encode_marked(self, text: bytes, counted: Sequence[tuple[int, int]]) -> tuple[Tokens, Bits]:
        """The tokens of a whole document, and which of them count. Special tokens in the text are encoded as such.

        Args:
            counted: the parts of the text that count, as bytes, disjoint and in order. A token counts if a part of it does.

        Raises:
            EncodingError: there is no token for a part of it.
        """
        ...


class ByteTokenizer:
    """Token = byte."""

    vocab_size = VOCAB_SIZE
    end = END
    file = None

    def encode(self, text: bytes) -> ByteTokens:
        """(len(text),) uint16."""
        return encode_bytes(text)

    def encode_marked(self, text: bytes, counted: Sequence[tuple[int, int]]) -> tuple[Tokens, Bits]:
        """As `Tokenizer.encode_marked`."""
        places = np.arange(len(text))
        return encode_bytes(text), within(places, places + 1, counted)

    def decode(self, tokens: Tokens) -> str:
        """As `decode_tokens`."""
        return decode_tokens(tokens)


def within(begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> Bits:
    """Whether each token, from `begins` to `ends`, has a part within one of these spans, which are disjoint and in order."""
    if not spans:
        return np.zeros(len(begins), dtype=np.bool_)
    first, last = np.array(spans, dtype=np.int64).T
    place = np.searchsorted(last, begins, side="right")
    is_before_an_end = place < len(last)
    return np.asarray(is_before_an_end & (first[np.minimum(place, len(first) - 1)] < ends), dtype=np.bool_)


def encode_bytes(text: bytes) -> ByteTokens:
    """(len(text),) uint16: the bytes."""
    return np.frombuffer(text, dtype=np.uint8).astype(np.uint16)


def decode_tokens(tokens: Tokens) -> str:
    """Decode tokens. End marks become line breaks, invalid UTF-8 becomes the replacement character."""
    data = bytes(int(token) if token < 256 else 10 for token in tokens)
    return data.decode("utf-8", errors="replace")
