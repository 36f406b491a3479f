"""The end of a document is the token that the files name, and no file is believed against another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from averaging.data.vocabulary import open_tokenizer
from protocol.errors import ConfigError
from protocol.run.data_section import DataSection

VOCAB = {"pot": 0, "</s>": 1, "<|im_end|>": 2, "<s>": 3, "[UNK]": 4, "<|endoftext|>": 5}


def _added(name: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": VOCAB[name], "content": name, "special": True, **flags}


def _write(folder: Path, *special: str, after: str = "", **files: object) -> Path:
    processor = None
    if after:
        names = ("<s>", after)
        processor = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": after, "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {n: {"id": n, "ids": [VOCAB[n]], "tokens": [n]} for n in names},
        }
    values = {
        "version": "1.0",
        "added_tokens": [_added(name) for name in sorted(special, key=VOCAB.__getitem__)],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": processor,
        "model": {"type": "WordLevel", "vocab": VOCAB, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(values))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / "tokenizer.json"


def _end(file: Path, **keys: str) -> tuple[int, str]:
    tokenizer = open_tokenizer(DataSection(tokenizer=file.name, **keys), file.parent, (), 10)
    return tokenizer.end, getattr(tokenizer, "doubt")  # noqa: B009 - of a tokenizer file alone


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"eos_token": "<|im_end|>"}},
        {"tokenizer_config": {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": False}}},
        {"tokenizer_config": {"eos_token": "</s>"}, "special_tokens_map": {"eos_token": "<|im_end|>"}},
        {
            "tokenizer_config": {"eos_token": "<|im_end|>", "added_tokens_decoder": {"2": _added("<|im_end|>") | {"id": ...}}},
            "special_tokens_map": {"eos_token": "</s>"},
        },
        {"tokenizer_config": {"eos_token": "<|im_end|>"}, "generation_config": {"eos_token_id": [2, 5]}},
    ],
    ids=["config", "as an object", "map over config", "config with added tokens over map", "one of several stops"],
)  # fmt: skip
def test_end_mark_is_the_one_that_transformers_reads(tmp_path: Path, files: dict[str, dict[str, object]]) -> None:
    added = files["tokenizer_config"].get("added_tokens_decoder")
    if isinstance(added, dict):
        added["2"].pop("id")
    files["tokenizer_config"]["tokenizer_class"] = "PreTrainedTokenizerFast"
    file = _write(tmp_path, "</s>", "<|im_end|>", "<|endoftext|>", **files)
    theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert _end(file) == (theirs.eos_token_id, "") == (2, "")


def test_end_mark_of_a_tokenizer_alone_is_the_one_that_it_appends(tmp_path: Path) -> None:
    assert _end(_write(tmp_path, "</s>", "<|im_end|>", "<s>", after="<|im_end|>")) == (2, "")


def test_end_mark_is_the_models_where_the_tokenizer_names_none(tmp_path: Path) -> None:
    assert _end(_write(tmp_path, "</s>", config={"eos_token_id": 2})) == (2, "")
    both = {"generation_config": {"eos_token_id": 5}, "config": {"eos_token_id": 2}}
    assert _end(_write(tmp_path, "</s>", **both)) == (5, "")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config": {"eos_token": "</s>"}, "generation_config": {"eos_token_id": 2}}, "token 1 .* 2; expected the same"),
        ({"tokenizer_config": {"eos_token": "<end>"}}, "no token '<end>'; expected the eos_token of its tokenizer_config"),
        ({"generation_config": {"eos_token_id": 77}}, "no token 77; expected the eos_token_id of its generation_config"),
        ({"generation_config": {"eos_token_id": [2, 5]}}, "names tokens 2 and 5"),
        ({"generation_config": {"eos_token_id": "2"}}, "no token '2'"),
        ({"tokenizer_config": []}, "is no JSON object"),
    ],
)  # fmt: skip
def test_files_that_name_different_ends_are_refused_with_both(
    tmp_path: Path, files: dict[str, object], said: str
) -> None:
    file = _write(tmp_path, "</s>", "<|im_end|>", **files)
    with pytest.raises(ConfigError, match=said):
        _end(file)
    if files != {"tokenizer_config": []}:
        assert _end(file, end_token="<|im_end|>") == (2, "")


def test_usual_name_is_taken_with_a_doubt_and_only_if_it_is_alone(tmp_path: Path) -> None:
    end, doubt = _end(_write(tmp_path, "</s>", "<s>"))
    assert end == 1
    assert "'</s>' does, as is usual for its name" in doubt
    with pytest.raises(ConfigError, match=r"has several: '<\|endoftext\|>', '</s>'.*data\.end_token"):
        _end(_write(tmp_path, "</s>", "<|endoftext|>"))


def test_configs_beside_a_file_of_another_name_are_of_something_else(tmp_path: Path) -> None:
    file = _write(tmp_path, "</s>", config={"eos_token_id": 2})
    assert _end(file.rename(tmp_path / "words.json"))[0] == 1
