"""The chat template of a run: the named file, or that of the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from averaging.data.chat.template_files import find_template
from coordinator.checkpoints.exported_tokenizer import byte_vocabulary
from protocol.errors import ConfigError, MachineError
from protocol.run.data_section import DataSection


def _section(**values: object) -> DataSection:
    return DataSection.model_validate({"source": "jsonl", "glob": "*.jsonl", "format": "chat", **values})


def test_a_named_file_wins_over_that_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "A", "bos_token": {"content": "<s>"}}))
    (tmp_path / "own.jinja").write_text("own")
    section = _section(tokenizer="tokenizer.json")
    assert find_template(section, tmp_path).source == "A"
    (tmp_path / "chat_template.jinja").write_text("B")
    found = find_template(section, tmp_path)
    assert (found.source, found.variables) == ("B", {"bos_token": "<s>"})
    named = section.model_copy(update={"chat_template": "own.jinja"})
    assert find_template(named, tmp_path).source == "own"


def test_files_may_begin_with_the_byte_order_mark_of_an_editor(tmp_path: Path) -> None:
    config = json.dumps({"chat_template": "A", "bos_token": "<s>"})
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8-sig")
    section = _section(tokenizer="tokenizer.json")
    found = find_template(section, tmp_path)
    assert (found.source, found.variables) == ("A", {"bos_token": "<s>"})
    (tmp_path / "own.jinja").write_text("own", encoding="utf-8-sig")
    assert find_template(section.model_copy(update={"chat_template": "own.jinja"}), tmp_path).source == "own"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
    found = find_template(_section(tokenizer="tokenizer.json"), tmp_path)
    assert (found.source, found.variables) == ("D", {"eos_token": "</s>"})


@pytest.mark.parametrize("lists_added", [False, True], ids=["the map wins", "the config wins"])
def test_special_tokens_of_a_template_are_those_that_transformers_takes(tmp_path: Path, *, lists_added: bool) -> None:
    (tmp_path / "tokenizer.json").write_bytes(byte_vocabulary())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    listed = {"added_tokens_decoder": {"256": {"content": "<|end|>", "special": True, **flags}}}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ bos_token }}", "bos_token": "a"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names | (listed if lists_added else {})))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "b"}))
    theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    found = find_template(_section(tokenizer="tokenizer.json"), tmp_path)
    assert found.variables["bos_token"] == theirs.bos_token == ("a" if lists_added else "b")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "has no chat template"),
        ({"tokenizer": "tokenizer.json"}, "has no chat template"),
        ({"chat_template": "binary"}, "no UTF-8"),
        ({"chat_template": "long"}, "longer than"),
    ],
)
def test_without_a_usable_template_the_run_is_refused(tmp_path: Path, values: dict[str, str], problem: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"x" * (1 << 21))
    with pytest.raises(ConfigError, match=problem):
        find_template(_section(**values), tmp_path)


def test_a_named_file_that_is_gone_is_a_matter_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"gone.jinja cannot be read"):
        find_template(_section(chat_template="gone.jinja"), tmp_path)
