from __future__ import annotations

from typing import get_args

import pytest

from protocol.rounds.messages.record import OuterStep
from protocol.run.default_run import DEFAULT_TOML, EDITS, default_toml
from protocol.run.experts_section import Shards
from protocol.run.manifest import parse_run_config
from tests.benchmarks.convergence_ways import SHIPPED


def test_the_file_that_init_writes_is_a_valid_run() -> None:
    config = parse_run_config(DEFAULT_TOML)
    assert config.round.target_tokens == 3 * 20 * config.inner.batch_tokens


def test_the_file_that_init_writes_has_what_cost_least_in_the_table_of_losses() -> None:
    config, shipped = parse_run_config(DEFAULT_TOML), SHIPPED[0].way
    chosen = config.outer
    assert config.inner.optimizer == shipped.optimizer
    assert (config.round.codec, config.result_codec) == (shipped.codec, shipped.result_codec)
    assert OuterStep(chosen.kind, chosen.learning_rate, chosen.momentum) == shipped.outer
    assert (config.round_target.ramp_share, shipped.ramp.share) == (0.0, 0.0)
    assert config.round.target_tokens == 3 * shipped.ramp.last * config.inner.batch_tokens


@pytest.mark.parametrize("shards", get_args(Shards))
def test_the_file_of_every_kind_of_run_is_valid_and_differs_by_what_that_kind_needs(shards: Shards) -> None:
    config = parse_run_config(default_toml(shards))
    assert config.run.shards == shards
    for before, after in EDITS[shards]:
        assert DEFAULT_TOML.count(before) == 1, before
        assert after in default_toml(shards)


def test_a_pipeline_run_has_a_founder_for_each_stage_and_rounds_of_whole_lanes() -> None:
    config = parse_run_config(default_toml("pipeline"))
    assert config.stages is not None
    assert config.pipeline is not None
    assert config.stages.num_stages == config.run.min_members == 3
    assert config.round.target_tokens == 3 * config.pipeline.inner_steps * config.inner.batch_tokens


def test_the_commonest_edit_takes_two_lines_that_are_there() -> None:
    text = DEFAULT_TOML.replace('source = "python-stdlib" ', 'source = "text" ').replace("# glob = ", "glob = ")
    assert parse_run_config(text).data.glob == "corpus/**/*.txt"
