"""Tokenizers from a file: a Hugging Face tokenizer.json, or byte-level BPE trained on the training text.

The host and peers that show text need the tokenizers package; training only needs token numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from averaging.data.shards import MAX_TOKENIZER_BYTES
from averaging.data.sources.texts import Text, cut_pieces, not_installed
from averaging.data.tokenizer import VOCAB_SIZE, ByteTokenizer, Tokenizer, Tokens
from protocol.errors import ConfigError, MachineError
from protocol.plain_file import check_plain_file
from protocol.run.data_section import DataSection

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Rules

BPE_END: Final = "<|end|>"

_USUAL_ENDS: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]", BPE_END)
"""Names of the end of a document in well-known tokenizers, the most common first."""

_TRAINED_BYTES: Final = 1 << 27
"""BPE learns from the first 128 MiB of the training text. The most frequent pieces occur there, and more text takes much longer.
"""

_ENCODED_BYTES: Final = 1 << 18
"""Texts are encoded in parts of this length, because tokenizers needs much memory for each token of one call."""


class FileTokenizer:
    """A tokenizer from the bytes of a tokenizer.json. Its special tokens in a text are encoded as text."""

    def __init__(self, data: bytes, place: str, end: str | int = "") -> None:
        """Parse it. `place` is its name in errors; `end` is the end mark's name or number, or empty for one of the usual names.

        Raises:
            ConfigError: not a tokenizer, or one without the end mark.
            MachineError: tokenizers is not installed.
        """
        self._rules = _read_rules(data, place)
        self.file: bytes | None = data
        tokens: dict[str, int] = self._rules.get_vocab(with_added_tokens=True)
        if not tokens:
            raise ConfigError(f"{place} has no tokens", "a tokenizer with a vocabulary", "check the file")
        self.vocab_size = max(tokens.values()) + 1
        self.end = end if isinstance(end, int) else _end_of(tokens, end, place)

    def encode(self, text: bytes) -> Tokens:
        """(tokens,) uint32 of a text. Invalid UTF-8 becomes the replacement character."""
        parts = [np.empty(0, dtype=np.uint32)]
        for piece in cut_pieces(text[i : i + _ENCODED_BYTES] for i in range(0, len(text), _ENCODED_BYTES)):
            ids = self._rules.encode(piece.decode(errors="replace"), add_special_tokens=False).ids
            parts.append(np.array(ids, dtype=np.uint32))
        return np.concatenate(parts)

    def decode(self, tokens: Tokens) -> str:
        """Decode tokens. End marks become line breaks."""
        pieces: list[list[int]] = [[]]
        for token in tokens:
            if token == self.end:
                pieces.append([])
            else:
                pieces[-1].append(int(token))
        return "\n".join(str(self._rules.decode(piece, skip_special_tokens=False)) for piece in pieces)


def _read_rules(data: bytes, place: str) -> Rules:
    try:
        from tokenizers import Tokenizer as Rules
    except ImportError as error:
        raise not_installed("tokenizers", "any tokenizer but bytes") from error
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _no_tokenizer(place, "it is no JSON, or cut off") from error
    if not isinstance(values, dict) or "model" not in values:
        raise _no_tokenizer(place, "it names no model")
    try:
        rules = Rules.from_str(data.decode())
    except Exception as error:  # the library raises nothing more exact
        raise _no_tokenizer(place, str(error).splitlines()[0][:200]) from error
    rules.no_truncation()
    rules.no_padding()
    rules.encode_special_tokens = True
    return rules


def _no_tokenizer(place: str, cause: str) -> ConfigError:
    return ConfigError(f"{place} is no tokenizer: {cause}", "a Hugging Face tokenizer.json", "check data.tokenizer")


def _end_of(tokens: dict[str, int], end_token: str, place: str) -> int:
    for name in (end_token,) if end_token else _USUAL_ENDS:
        if name in tokens:
            return tokens[name]
    looked_for = f"no token {end_token!r}" if end_token else "no end mark of a usual name"
    raise ConfigError(f"{place} has {looked_for}", "a token that ends a document", "name it in data.end_token")


def train_bpe(texts: Iterable[Text], vocab_size: int) -> FileTokenizer:
    """Train byte-level BPE of at most `vocab_size` tokens on the training part. The same text gives the same file, byte for byte.

    Raises:
        ConfigError: the vocabulary is too small for every byte and an end mark.
        MachineError: tokenizers is not installed.
    """
    if vocab_size < VOCAB_SIZE:
        raise ConfigError(
            f"model.vocab_size is {vocab_size}", f'at least {VOCAB_SIZE} with data.tokenizer = "bpe"', "raise it"
        )
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
        tokenizer = FileTokenizer(_read(path), str(path), data.end_token)
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
