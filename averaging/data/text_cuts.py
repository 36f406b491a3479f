"""Finds places where a text may be cut so that its parts have the same tokens as the whole.

Most tokenizers depend on what is before and behind a place: a mark at the beginning of a text, a run of spaces, a merge across
words. Some are known to end a word between a letter and the space or line break behind it, whatever else is in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_GAP_BEFORE_LETTER: Final = re.compile(rb"[ \n][A-Za-z]")
"""A place to cut, in a reversed text."""

_SPLITS: Final = frozenset(
    [
        # Llama 3
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # Qwen 2 and 3
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
"""Patterns of well-known tokenizers. Each ends a run of letters before a space or line break, and none looks back."""


def last_cut(text: bytes) -> int:
    """The last place between an ASCII letter and a space or line break behind it; 0 if there is none."""
    found = _GAP_BEFORE_LETTER.search(text[::-1])
    return len(text) - found.start() - 1 if found else 0


def keeps_tokens_when_cut(values: Mapping[str, object]) -> bool:
    """Whether a text may be cut at `last_cut` for the tokenizer of this tokenizer.json: a byte-level one that splits text into
    words by a pattern that is known here, and encodes each word by itself.
    """
    normalizer = values.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        return False
    added = values.get("added_tokens")
    return _splits_at_letters(values.get("pre_tokenizer")) and all(
        _stays_within_words(token) for token in (added if isinstance(added, list) else ())
    )


def _splits_at_letters(pre_tokenizer: object) -> bool:
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
            return False
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return True
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern in _SPLITS
    return False


def _stays_within_words(token: object) -> bool:
    """Whether an added token is never found across a cut. Special tokens in a text are encoded as text."""
    match token:
        case {"special": True}:
            return True
        case {"content": str(content), "lstrip": False, "rstrip": False}:
            return not any(letter.isspace() for letter in content)
    return False
