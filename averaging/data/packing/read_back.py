"""Reads back what a tokenizer encoded: text that a tokenizer drops, or takes for unknown, is never trained on.

Every piece of text is decoded again and compared. White space at either end of it does not count, since many tokenizers add
some there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from averaging.data.tokenizer import Bits, Tokenizer, Tokens
from protocol.errors import ConfigError

MOST_LOST: Final = 0.1
"""Largest share of the letters, without white space, that may be lost. A text that lacks more is another text."""

_EARLY_LETTERS: Final = 1 << 22
"""After this many letters a tokenizer that loses more is refused at once, and not when all text is packed."""

_SHOWN: Final = 5


class ReadableTokenizer(Tokenizer, Protocol):
    """A tokenizer whose tokens can be decoded. `unknown` is the token for text that it does not know; None if it has none."""

    @property
    def unknown(self) -> int | None:
        """The token for text that it does not know."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of tokens."""
        ...

    def decode_marked(self, tokens: Tokens) -> str:
        """The text of tokens of `encode_marked`."""
        ...


@dataclass
class ReadBackTokenizer:
    """A tokenizer that decodes whatever it encodes, and counts the letters that do not come back."""

    tokenizer: ReadableTokenizer
    num_letters: int = 0
    _lost: Counter[str] = field(default_factory=Counter)
    _num_dark: int = 0
    """Lost letters without white space, upper and lower case being the same."""

    @property
    def vocab_size(self) -> int:
        """As the tokenizer's."""
        return self.tokenizer.vocab_size

    @property
    def end(self) -> int:
        """As the tokenizer's."""
        return self.tokenizer.end

    @property
    def file(self) -> bytes | None:
        """As the tokenizer's."""
        return self.tokenizer.file

    def encode(self, text: bytes) -> Tokens:
        """As the tokenizer's.

        Raises:
            ConfigError: a part of the text has no token, or too many letters of the texts so far were lost.
        """
        tokens = self.tokenizer.encode(text)
        self._compare(text.decode(errors="replace"), self.tokenizer.decode(self._known(tokens)))
        return tokens

    def encode_marked(self, text: bytes, counted: Sequence[tuple[int, int]]) -> tuple[Tokens, Bits]:
        """As the tokenizer's. Raises as `encode`."""
        tokens, bits = self.tokenizer.encode_marked(text, counted)
        self._compare(text.decode(errors="replace"), self.tokenizer.decode_marked(self._known(tokens)))
        return tokens, bits

    def _known(self, tokens: Tokens) -> Tokens:
        unknown = self.tokenizer.unknown
        return tokens if unknown is None else tokens[tokens != unknown]

    def _compare(self, text: str, back: str) -> None:
        self._count(text, back)
        if self.num_letters >= _EARLY_LETTERS:
            self.check()

    def _count(self, text: str, back: str) -> None:
        self.num_letters += len(text)
        if back == text:
            return
        self._lost += Counter(text.strip()) - Counter(back.strip())
        dark = Counter(text.casefold()) - Counter(back.casefold())
        self._num_dark += sum(count for letter, count in dark.items() if not letter.isspace())

    @property
    def loss(self) -> str:
        """A sentence about the letters that were lost; empty if all came back."""
        num_lost = sum(self._lost.values())
        if not num_lost:
            return ""
        most = " ".join(ascii(letter) for letter, _ in self._lost.most_common(_SHOWN))
        share = num_lost / self.num_letters
        return (
            f"the tokenizer loses {share:.2%} of the text: {num_lost:,} of {self.num_letters:,} letters, such as {most}"
        )

    def check(self) -> None:
        """Refuse a tokenizer that lost too much.

        Raises:
            ConfigError: more than `MOST_LOST` of the letters did not come back.
        """
        if self._num_dark > MOST_LOST * self.num_letters:
            raise ConfigError(
                f"data.tokenizer: {self.loss}",
                f"at most {MOST_LOST:.0%}",
                "take a tokenizer that has all bytes, or one made for such text",
            )
