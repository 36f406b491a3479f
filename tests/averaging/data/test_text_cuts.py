"""A text is cut only where no tokenizer that may be cut gives other tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from averaging.data import vocabulary
from averaging.data.text_cuts import _SPLITS, keeps_tokens_when_cut, last_cut
from averaging.data.vocabulary import FileTokenizer

WORDS = [
    "don't",
    "größer",
    "  deep",
    "x1",
    "\n",
    "\n\n  ",
    "\t",
    "猫",
    "end.",
    "''s",
    "He",
    "re",
    " ",
    "\r\n",
    "🐈",
    "12345",
    "cafe\u0301",
]
TEXTS = ["".join(random.Random(seed).choices(WORDS, k=400)) for seed in range(20)]


def _tokenizer(pattern: str | None, *, is_normalized: bool = False) -> FileTokenizer:
    rules = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if is_normalized:
        rules.normalizer = normalizers.NFC()
    rules.pre_tokenizer = (
        byte_level
        if pattern is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    )
    rules.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["</s>"], initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    rules.train_from_iterator(TEXTS, trainer)
    return FileTokenizer(rules.to_str().encode(), "it")


@pytest.mark.parametrize("pattern", [None, *sorted(_SPLITS)], ids=["GPT-2", "Llama 3", "Qwen"])
def test_parts_of_a_text_have_the_tokens_of_the_whole(pattern: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = _tokenizer(pattern, is_normalized=pattern is not None)
    for text in TEXTS:
        monkeypatch.setattr(vocabulary, "_ENCODED_BYTES", 1 << 18)
        whole = tokenizer.encode(text.encode()).tolist()
        assert tokenizer.cut(text.encode())
        monkeypatch.setattr(vocabulary, "_ENCODED_BYTES", 20)
        assert tokenizer.encode(text.encode()).tolist() == whole


def test_text_is_cut_after_a_letter_and_before_a_space_or_line_break() -> None:
    assert last_cut(b"one two 3 4\n") == 7
    assert last_cut(b"one\n  two") == 3
    assert last_cut("größer als ß ".encode()) == len("größer als".encode())
    for without in (b"", b"word", b"1 2 3\n", " ß \n".encode(), b" a", b"end. \n"):
        assert last_cut(without) == 0


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Prepend", "prepend": "_"}},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}},
        {"pre_tokenizer": {**BYTE_LEVEL, "use_regex": False}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}},
        {"added_tokens": [{"content": "a b", "special": False, "lstrip": False, "rstrip": False}]},
        {"added_tokens": [{"content": "ab", "special": False, "lstrip": False, "rstrip": True}]},
    ],
)
def test_tokenizer_that_looks_further_than_a_word_is_not_cut(changes: Mapping[str, object]) -> None:
    values = {"normalizer": None, "pre_tokenizer": BYTE_LEVEL, "added_tokens": [{"content": "</s>", "special": True}]}
    assert keeps_tokens_when_cut(json.loads(json.dumps(values)))
    assert not keeps_tokens_when_cut({**values, **changes})
