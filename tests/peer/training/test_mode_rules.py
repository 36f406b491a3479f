from __future__ import annotations

import pytest

from averaging.rounds.lineage.adoption import Mixing
from peer.training.mode_rules import mixing_of, standing_still_s
from protocol.run.manifest import RunConfig, default_run_toml, parse_run_config


def _config(*lines: str) -> RunConfig:
    return parse_run_config(default_run_toml().replace('codec = "int8"', "\n".join(('codec = "int8"', *lines))))


@pytest.mark.parametrize("mode", ["overlap", "blocking", "streaming"])
def test_commits_are_mixed_into_nothing_where_the_run_names_no_alpha(mode: str) -> None:
    """Parameters move by what a commit moved: mixing leaves a part of each member's deviation in them, which costs loss."""
    assert mixing_of(_config(f'mode = "{mode}"')) is None


def test_commits_of_a_streaming_run_with_an_alpha_are_mixed_in_within_its_delay() -> None:
    config = _config('mode = "streaming"', "alpha = 0.25", "delay_steps = 3")
    assert mixing_of(config) == Mixing(0.25, 3 * config.inner.batch_tokens)


@pytest.mark.parametrize(("mode", "is_waiting"), [("overlap", False), ("blocking", True), ("streaming", False)])
def test_training_waits_for_a_commit_in_blocking_runs_alone(mode: str, is_waiting: bool) -> None:
    config = _config(f'mode = "{mode}"')
    assert standing_still_s(config) == (config.round.longest_interval_s if is_waiting else 0.0)
