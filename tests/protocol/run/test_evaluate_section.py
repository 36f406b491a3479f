from __future__ import annotations

import json

import pytest

from protocol.errors import ConfigError
from protocol.run.evaluate_section import EvaluateSection
from protocol.run.manifest import RunConfig, default_run_toml, parse_run_config

TABLE = '[[evaluate]]\nname = "facts"\nfile = "facts.jsonl"\n'


def test_a_run_without_tasks_has_the_manifest_that_it_always_had() -> None:
    assert "evaluate" not in parse_run_config(default_run_toml()).model_dump(mode="json")


def test_several_tasks_are_in_the_manifest_without_their_defaults_and_come_back_the_same() -> None:
    second = '[[evaluate]]\nname = "words"\nfile = "words.jsonl"\nkind = "prompts"\nanswer_tokens = 8\n'
    config = parse_run_config(default_run_toml() + TABLE + second)
    values = config.model_dump(mode="json")
    assert values["evaluate"] == [
        {"name": "facts", "file": "facts.jsonl", "kind": "multiple_choice", "every_rounds": 10},
        {"name": "words", "file": "words.jsonl", "kind": "prompts", "every_rounds": 10, "answer_tokens": 8},
    ]
    assert RunConfig.model_validate_json(json.dumps(values)) == config


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (TABLE.replace('"facts"', '"The facts"'), "evaluate.0.name is 'The facts'; expected 1 to 32 small letters"),
        (TABLE + "parts = 65\n", "evaluate.0.parts is 65"),
        (TABLE + "every_rounds = 0\n", "evaluate.0.every_rounds is 0"),
        (TABLE + 'kind = "essay"\n', "evaluate.0.kind is 'essay'"),
        (TABLE + 'template = "Answer:"\n', "has no {question}"),
        (TABLE + 'kind = "prompts"\ntemplate = "Q: {question}"\n', 'a template belongs to kind = "multiple_choice"'),
        (TABLE + "chat = true\n", 'chat belongs to kind = "prompts"'),
        (TABLE + 'kind = "prompts"\nchat = true\n', "chat = true in a run without chats"),
        (TABLE + "answer_tokens = 4\n", 'answer_tokens belong to kind = "prompts"'),
        (TABLE + TABLE, 'two tables [[evaluate]] with name = "facts"'),
        ("".join(TABLE.replace("facts", f"f{n}") for n in range(17)), "17 tables [[evaluate]]: expected at most 16"),
        (TABLE + "temperature = 1\n", "evaluate.0.temperature is not a known key"),
    ],
)
def test_a_task_that_cannot_be_is_refused_in_a_line(table: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run_config(default_run_toml() + table)
    assert found in caught.value.one_line()


@pytest.mark.parametrize("chat", [True, False])
def test_a_run_on_chats_may_say_how_prompts_are_put(chat: bool) -> None:
    told = f'kind = "prompts"\nchat = {str(chat).lower()}\n'
    toml = default_run_toml().replace(
        'source = "python-stdlib"', 'source = "jsonl"\nglob = "*.jsonl"\nformat = "chat"', 1
    )
    values = parse_run_config(toml + TABLE + told).model_dump(mode="json")
    assert values["evaluate"][0]["chat"] is chat
    assert "chat" not in parse_run_config(toml + TABLE + 'kind = "prompts"\n').model_dump(mode="json")["evaluate"][0]


@pytest.mark.parametrize("shards", ["expert", "pipeline"])
def test_runs_in_which_no_peer_holds_a_whole_model_have_no_tasks(shards: str) -> None:
    toml = default_run_toml("expert" if shards == "expert" else "pipeline")
    toml = toml.replace('# shards = "expert"', 'shards = "expert"') if shards == "expert" else toml
    toml = toml.replace('# shards = "pipeline"', 'shards = "pipeline"') if shards == "pipeline" else toml
    if shards == "expert":
        for key in ("[experts]", "num_experts", "ffn_dim = 352                #"):
            toml = toml.replace(f"# {key}", key)
    with pytest.raises(ConfigError) as caught:
        parse_run_config(toml + TABLE)
    assert f'[[evaluate]] with run.shards = "{shards}"' in caught.value.one_line()


@pytest.mark.parametrize(
    ("index", "is_last", "is_due"), [(0, True, False), (3, False, False), (4, False, True), (3, True, True)]
)
def test_each_nth_commit_is_due_and_the_last_one(index: int, is_last: bool, is_due: bool) -> None:
    assert EvaluateSection(name="a", file="a", every_rounds=4).is_due(index, is_last=is_last) == is_due
