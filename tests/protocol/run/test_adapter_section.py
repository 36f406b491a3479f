"""The section [adapter] of run.toml: what it trains, and what does not go with it."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.run.manifest import RunFile, default_run_toml, parse_run_config

TOML = default_run_toml().replace("[run]\n", '[run]\nstart_from = "base"\n', 1)
ADAPTER = "\n[adapter]\nrank = 4\n"


def _parsed(text: str, *changes: tuple[str, str]) -> RunFile:
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    return parse_run_config(text)


def test_a_run_with_an_adapter_trains_and_averages_the_adapter_alone() -> None:
    run, whole = parse_run_config(TOML + ADAPTER), parse_run_config(TOML)
    assert run.base_elements == whole.num_elements
    assert run.num_elements == run.held_elements < whole.num_elements / 10
    assert whole.base_elements == 0


def test_a_run_without_an_adapter_has_no_word_of_it_in_its_manifest() -> None:
    assert "adapter" not in parse_run_config(TOML).model_dump(mode="json")


def test_a_manifest_has_the_keys_that_are_used() -> None:
    assert parse_run_config(TOML + ADAPTER).model_dump(mode="json")["adapter"] == {"rank": 4, "alpha": 16.0}
    named = parse_run_config(TOML + ADAPTER + 'targets = ["q_proj"]')
    assert named.model_dump(mode="json")["adapter"] == {"rank": 4, "alpha": 16.0, "targets": ["q_proj"]}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ((("rank = 4", "rank = 0"),), "adapter.rank is 0; expected greater than or equal to 1"),
        ((("rank = 4", "rank = 4\nalpha = 0"),), "adapter.alpha is 0; expected greater than 0"),
        ((("rank = 4", "rank = 4\nalpha = -1.5"),), "adapter.alpha is -1.5; expected greater than 0"),
        ((("rank = 4", "rank = 65"),), "adapter.rank 65 with k_proj of 64 x 128: expected at most 64"),
        (
            (("rank = 4", 'rank = 4\ntargets = ["head"]'),),
            'adapter.targets has "head", which no layer of the model has',
        ),
        ((('start_from = "base"', ""),), "the section [adapter] without run.start_from"),
        ((('start_from = "base"', 'start_from = "base"\nshards = "expert"'),), '[adapter] with run.shards = "expert"'),
        (
            (('start_from = "base"', 'start_from = "base"\nshards = "pipeline"'),),
            '[adapter] with run.shards = "pipeline"',
        ),
        ((("[round]", '[round]\nmode = "streaming"'),), 'round.mode = "streaming" with a section [adapter]'),
    ],
)
def test_a_section_that_cannot_work_is_refused_in_a_line(changes: tuple[tuple[str, str], ...], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _parsed(TOML + ADAPTER, *changes)
    assert line in caught.value.one_line()
