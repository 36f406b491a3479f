"""Tokenizers from a file: a Hugging Face tokenizer.json, or byte-level BPE trained on the training text.

The host and peers that show text need the tokenizers package; training only needs token numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from averaging.data.end_token import EndToken, find_end
from averaging.data.shards import MAX_TOKENIZER_BYTES
from averaging.data.sources.texts import Text, not_installed
from averaging.data.text_cuts import keeps_tokens_when_cut, last_cut
from averaging.data.tokenizer import VOCAB_SIZE, Bits, ByteTokenizer, EncodingError, Tokenizer, Tokens
from averaging.data.tokenizer_folder.companion_files import CompanionFiles, check_companions, read_companions
from protocol.errors import ConfigError, MachineError
from protocol.plain_file import check_plain_file
from protocol.run.data_section import DataSection

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Rules

BPE_END: Final = "<|end|>"

_TRAINED_BYTES: Final = 1 << 27
"""BPE learns from the first 128 MiB of the training text. The most frequent pieces occur there, and more text takes much longer.
"""

_ENCODED_BYTES: Final = 1 << 18
"""Texts that may be cut are encoded in parts of this length, because tokenizers needs much memory for each token of one call."""

_SHOWN_LETTERS: Final = 40
_MOST_REASON: Final = 200


class FileTokenizer:
    """A tokenizer from the bytes of a tokenizer.json. Its special tokens in a text are encoded as text."""

    def __init__(
        self,
        data: bytes,
        place: str,
        end: str | int = "",
        companions: CompanionFiles = MappingProxyType({}),
    ) -> None:
        """Parse it.

        Args:
            data: the file.
            place: its name in errors.
            end: the end mark's name or number; empty for the one that the files name.
            companions: its companion files, as `read_companions` returns them.

        Raises:
            ConfigError: not a tokenizer, one without the end mark, or one that its companion files contradict.
            MachineError: tokenizers is not installed.
        """
        self._rules, values = _read_rules(data, place)
        check_companions(values, companions, place)
        self._place = place
        self.file: bytes | None = data
        tokens: dict[str, int] = self._rules.get_vocab(with_added_tokens=True)
        if not tokens:
            raise ConfigError(f"{place} has no tokens", "a tokenizer with a vocabulary", "check the file")
        self.vocab_size = max(tokens.values()) + 1
        found = EndToken(end) if isinstance(end, int) else _end_of(tokens, end, place, values, companions)
        self.end, self.doubt = found.number, found.doubt
        self.unknown = _unknown_of(values, tokens)
        self._may_cut = keeps_tokens_when_cut(values)

    def encode(self, text: bytes) -> Tokens:
        """(tokens,) uint32 of a text. Invalid UTF-8 becomes the replacement character.

        Raises:
            EncodingError: the tokenizer has no token for a part of the text.
        """
        parts, begin = [np.empty(0, dtype=np.uint32)], 0
        while begin < len(text):
            stop = self._part_end(text, begin)
            try:
                ids = self._ids(text[begin:stop].decode(errors="replace"))
            except _Unsayable as error:
                raise self._not_encoded(text[begin:stop], text.count(b"\n", 0, begin), error) from error
            parts.append(np.array(ids, dtype=np.uint32))
            begin = stop
        return np.concatenate(parts)

    def encode_marked(self, text: bytes, counted: Sequence[tuple[int, int]]) -> tuple[Tokens, Bits]:
        """As `Tokenizer.encode_marked`. The text must be UTF-8."""
        letters = text.decode()
        self._rules.encode_special_tokens = False
        try:
            found = self._rules.encode(letters, add_special_tokens=False)
        except BaseException as error:
            if not _is_of_library(error):
                raise
            self._rules.encode_special_tokens = True
            raise self._not_encoded(text, 0, _Unsayable(str(error)[:_MOST_REASON])) from error
        finally:
            self._rules.encode_special_tokens = True
        tokens = np.array(found.ids, dtype=np.uint32)
        return tokens, _counted_tokens(found, len(tokens), _in_letters(text, counted))

    def decode_marked(self, tokens: Tokens) -> str:
        """The text of tokens of `encode_marked`, with special tokens by their names."""
        return str(self._rules.decode(tokens.tolist(), skip_special_tokens=False))

    def _part_end(self, text: bytes, begin: int) -> int:
        length = _ENCODED_BYTES
        while begin + length < len(text):
            if cut := self.cut(text[begin : begin + length]):
                return begin + cut
            length *= 2
        return len(text)

    def cut(self, text: bytes) -> int:
        """The last place in a text at which it may be cut in two without another token; 0 if none is known."""
        return last_cut(text) if self._may_cut else 0

    def _ids(self, text: str) -> list[int]:
        try:
            return list(self._rules.encode(text, add_special_tokens=False).ids)
        except BaseException as error:
            if not _is_of_library(error):
                raise
            raise _Unsayable(str(error).splitlines()[0][:200] if str(error) else "it failed") from error

    def _not_encoded(self, text: bytes, lines_before: int, error: _Unsayable) -> EncodingError:
        """The error for the first word that cannot be encoded by itself."""
        for number, line in enumerate(text.decode(errors="replace").split("\n"), lines_before + 1):
            for word in line.split():
                try:
                    self._ids(word)
                except _Unsayable as cause:
                    return EncodingError(f"{self._place} has no token for {word[:_SHOWN_LETTERS]!r} ({cause})", number)
        return EncodingError(f"{self._place} cannot encode it ({error})", lines_before + 1)

    def decode(self, tokens: Tokens) -> str:
        """Decode tokens. End marks become line breaks."""
        pieces, begin = list[str](), 0
        for end in (*np.flatnonzero(tokens == self.end).tolist(), len(tokens)):
            pieces.append(str(self._rules.decode(tokens[begin:end].tolist(), skip_special_tokens=False)))
            begin = end + 1
        return "\n".join(pieces)


def _in_letters(text: bytes, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of bytes of a text in UTF-8 as spans of its letters."""
    found, letter, byte = list[tuple[int, int]](), 0, 0
    for begin, end in spans:
        first = letter + len(text[byte:begin].decode())
        letter = first + len(text[begin:end].decode())
        byte = end
        found.append((first, letter))
    return found


def _counted_tokens(found: Encoding, num_tokens: int, spans: Sequence[tuple[int, int]]) -> Bits:
    """Whether each token has a part within one of these spans of letters. Only the ends of spans are looked up: the library makes an
    object of each token's place that it is asked for.
    """
    bits = np.zeros(num_tokens, dtype=np.bool_)
    for begin, end in spans:
        first = next((place for at in range(begin, end) if (place := found.char_to_token(at)) is not None), num_tokens)
        last = next(
            (place for at in range(end - 1, begin - 1, -1) if (place := found.char_to_token(at)) is not None), -1
        )
        # several tokens may be of one letter, of which the first was found
        while last >= 0 and last + 1 < num_tokens and (span := found.token_to_chars(last + 1)) and span[0] < end:
            last += 1
        bits[first : last + 1] = True
    return bits


class _Unsayable(Exception):
    """The library raised while it encoded a text."""


def _is_of_library(error: BaseException) -> bool:
    """Whether tokenizers raised it: a bare Exception, or a panic of its Rust code, which is no Exception."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def _unknown_of(values: Mapping[str, object], tokens: Mapping[str, int]) -> int | None:
    """The token for text that the tokenizer does not know; None if it has none."""
    model = values.get("model")
    if not isinstance(model, dict):
        return None
    name, number = model.get("unk_token"), model.get("unk_id")
    if isinstance(name, str):
        return tokens.get(name)
    return number if isinstance(number, int) else None


def _read_rules(data: bytes, place: str) -> tuple[Rules, dict[str, object]]:
    """The tokenizer, and the contents of its file."""
    try:
        from tokenizers import Tokenizer as Rules
    except ImportError as error:
        raise not_installed("tokenizers", "any tokenizer but bytes") from error
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _no_tokenizer(place, "it is no JSON, cut off, or has a number that is too long") from error
    if not isinstance(values, dict) or "model" not in values:
        raise _no_tokenizer(place, "it names no model")
    try:
        rules = Rules.from_str(data.decode())
    except Exception as error:  # the library raises nothing more exact
        raise _no_tokenizer(place, str(error).splitlines()[0][:200]) from error
    rules.no_truncation()
    rules.no_padding()
    rules.encode_special_tokens = True
    if getattr(rules.model, "dropout", None):
        rules.model.dropout = None  # merges left out at random, while a model is trained with other tools
    return rules, values


def _no_tokenizer(place: str, cause: str) -> ConfigError:
    return ConfigError(f"{place} is no tokenizer: {cause}", "a Hugging Face tokenizer.json", "check data.tokenizer")


def _end_of(
    tokens: dict[str, int],
    end_token: str,
    place: str,
    values: Mapping[str, object],
    companions: CompanionFiles,
) -> EndToken:
    if not end_token:
        return find_end(values, tokens, companions, place)
    if end_token not in tokens:
        raise ConfigError(
            f"{place} has no token {end_token!r}", "a token that ends a document", "name it in data.end_token"
        )
    return EndToken(tokens[end_token])


def check_bpe_size(vocab_size: int) -> None:
    """Refuse a vocabulary with no room for a token longer than a byte.

    Raises:
        ConfigError: it has every byte and an end mark, or less.
    """
    if vocab_size < VOCAB_SIZE:
        raise ConfigError(
            f"model.vocab_size is {vocab_size}", f'at least {VOCAB_SIZE} with data.tokenizer = "bpe"', "raise it"
        )
    if vocab_size == VOCAB_SIZE:
        raise ConfigError(
            f'model.vocab_size is {vocab_size} with data.tokenizer = "bpe"',
            f"more, since {VOCAB_SIZE} are the bytes and an end mark, and nothing would be learned",
            'raise it, for example to 4096, or take data.tokenizer = "bytes"',
        )


def train_bpe(texts: Iterable[Text], vocab_size: int) -> FileTokenizer:
    """Train byte-level BPE of at most `vocab_size` tokens on the training part. The same text gives the same file, byte for byte.

    Raises:
        ConfigError: as `check_bpe_size`.
        MachineError: tokenizers is not installed.
    """
    check_bpe_size(vocab_size)
    try:
        from tokenizers import Tokenizer as Rules
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise not_installed("tokenizers", "any tokenizer but bytes") from error
    rules = Rules(models.BPE())
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BPE_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rules.train_from_iterator(_training_text(texts), trainer)
    return FileTokenizer(rules.to_str().encode(), "the trained tokenizer", BPE_END)


def _training_text(texts: Iterable[Text]) -> Iterator[str]:
    left = _TRAINED_BYTES

    def is_within(text: Text) -> bool:
        nonlocal left
        left -= len(text.data) if text.split == "train" else 0
        return left >= 0

    return (text.data.decode() for text in takewhile(is_within, texts) if text.split == "train" and text.data)


def open_tokenizer(data: DataSection, base: Path, texts: Iterable[Text], vocab_size: int) -> Tokenizer:
    """The tokenizer that the data section names, trained on `texts` if it is "bpe". It fits a model of `vocab_size` tokens.

    Raises:
        ConfigError: no such tokenizer, or it has more tokens than the model.
        MachineError: its file cannot be read, or tokenizers is not installed.
    """
    tokenizer: Tokenizer
    if data.tokenizer == "bytes":
        tokenizer = ByteTokenizer()
    elif data.tokenizer == "bpe":
        tokenizer = train_bpe(texts, vocab_size)
    else:
        path = base / data.tokenizer
        tokenizer = FileTokenizer(_read(path), str(path), data.end_token, read_companions(path))
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"model.vocab_size is {vocab_size}",
            f"at least {tokenizer.vocab_size}, the tokens of data.tokenizer {data.tokenizer!r}",
            "raise it, or take another tokenizer",
        )
    return tokenizer


def _read(path: Path) -> bytes:
    check_plain_file(path, "a tokenizer.json", "check data.tokenizer")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOKENIZER_BYTES + 1)
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read: {error.strerror}", "a tokenizer.json", "check data.tokenizer"
        ) from error
    if len(data) > MAX_TOKENIZER_BYTES:
        raise _no_tokenizer(str(path), f"it is larger than {MAX_TOKENIZER_BYTES >> 20} MiB")
    return data
