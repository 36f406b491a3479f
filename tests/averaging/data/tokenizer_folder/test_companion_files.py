"""Companion files of a tokenizer.json: a text has the tokens that transformers gives it, or the tokenizer is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from averaging.data.vocabulary import open_tokenizer
from coordinator.checkpoints.exported_tokenizer import byte_vocabulary
from protocol.errors import ConfigError
from protocol.run.data_section import DataSection

TEXTS = ("some text", " a <think>word</think>", "a\n<|end|>b", "<|mine|>")
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}


def _token(text: str, *, special: bool = False) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": text, "special": special, **flags}


def _write(folder: Path, files: dict[str, dict[str, Any]], own: dict[str, int]) -> Path:
    """The byte vocabulary with some tokens of its own, and files beside it."""
    values = json.loads(byte_vocabulary())
    values["added_tokens"] += [{"id": number, **_token(text)} for text, number in own.items()]
    (folder / "tokenizer.json").write_text(json.dumps(values))
    for name, content in {"tokenizer_config": CONFIG, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / "tokenizer.json"


def _tokens(file: Path) -> list[list[int]]:
    tokenizer = open_tokenizer(DataSection(tokenizer=file.name), file.parent, (), 300)
    return [tokenizer.encode(text.encode()).tolist() for text in TEXTS]


def _listed(**tokens: int) -> dict[str, object]:
    texts = {"end": "<|end|>", "think": "<think>"}
    return {"added_tokens_decoder": {str(n): _token(texts[name], special=name == "end") for name, n in tokens.items()}}


THINK = {"<think>": 257}


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({}, {}),
        ({}, THINK),
        ({"added_tokens": THINK}, THINK),
        ({"tokenizer_config": {**CONFIG, **_listed(end=256, think=257)}}, THINK),
        ({"tokenizer_config": {**CONFIG, **_listed(end=256, think=257)}, "added_tokens": {"<|mine|>": 258}}, THINK),
        ({"tokenizer_config": {**CONFIG, "add_prefix_space": False}}, {}),
    ],
    ids=["alone", "own tokens", "the same tokens", "listed tokens", "listed tokens over others", "no space before"],
)
def test_text_has_the_tokens_that_transformers_gives_it(
    tmp_path: Path, files: dict[str, dict[str, Any]], own: dict[str, int]
) -> None:
    found = _tokens(_write(tmp_path, files, own))
    theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert found == [theirs.encode(text, add_special_tokens=False, split_special_tokens=True) for text in TEXTS]


@pytest.mark.parametrize(
    ("files", "own", "said"),
    [
        ({"added_tokens": THINK}, {}, "'<think>' is no added token of .*; expected 257, as added_tokens.json beside"),
        (
            {"tokenizer_config": {**CONFIG, **_listed(end=256, think=257)}},
            {},
            "257, as tokenizer_config.json beside it",
        ),
        ({"added_tokens": {"<think>": 258}}, THINK, "'<think>' is token 257 of .*; expected 258"),
        ({"tokenizer_config": {**CONFIG, "add_prefix_space": True}}, {}, "add_prefix_space is false in .* true, as"),
    ],
    ids=["added", "listed", "another number", "a space before"],
)
def test_files_that_change_the_tokens_of_a_text_are_refused(
    tmp_path: Path, files: dict[str, dict[str, Any]], own: dict[str, int], said: str
) -> None:
    file = _write(tmp_path, files, own)
    with pytest.raises(ConfigError, match=said):
        _tokens(file)
    alone = file.rename(tmp_path / "alone.json")
    assert _tokens(alone)


@pytest.mark.parametrize("content", ["[]", "{", '{"added_tokens_decoder": [1]}', '{"added_tokens_decoder": {"x": 1}}'])
def test_files_of_another_shape_are_one_line_or_add_nothing(tmp_path: Path, content: str) -> None:
    file = _write(tmp_path, {}, {})
    (tmp_path / "tokenizer_config.json").write_text(content)
    try:
        assert _tokens(file)
    except ConfigError as error:
        assert "tokenizer_config.json" in error.one_line()  # noqa: PT017 - either is right
