"""The lines of dry runs about stages: their sizes and memory, and the bytes that a lane's member moves in a round."""

from __future__ import annotations

from protocol.estimates.dry_run import estimate_lines
from protocol.estimates.pipeline_estimates import lane_round_bytes, stage_estimates
from protocol.run.manifest import default_run_toml, parse_run_config
from protocol.tensors.stage_schema import stage_schema
from tests.protocol.run.test_pipeline_section import pipeline_run


def test_a_middle_stage_moves_both_directions_of_every_token_and_copies_of_training_states() -> None:
    run = pipeline_run(pipeline={"forward_codec": "bf16"})
    assert run.stages is not None
    tokens, both = 10 * run.inner.batch_tokens, 2 * run.model.dim + run.model.dim + 2
    sizes = [stage_schema(run.stages, stage).num_elements for stage in range(3)]
    num_copies = 3  # at the beginning, and after 5 and 10 steps
    assert lane_round_bytes(run, 1) == (
        tokens * both + num_copies * 12 * sizes[1],
        tokens * both + num_copies * 12 * sizes[0],
    )
    assert lane_round_bytes(run, 0)[0] == tokens * 2 * run.model.dim + num_copies * 12 * sizes[0]


def test_each_stage_is_told_with_what_it_has_and_takes() -> None:
    lines = estimate_lines(stage_estimates(pipeline_run(pipeline={"stages": None, "layers": "1, 2, 1"})))
    assert [line.split(",")[0].split(": ")[1] for line in lines[:3]] == [
        "1 layer and the embedding",
        "2 layers",
        "1 layer and the head",
    ]
    assert all(" GB of memory" in line for line in lines[:3])
    assert "in a lane  up " in lines[3]


def test_other_runs_have_no_stages_to_tell_of() -> None:
    assert stage_estimates(parse_run_config(default_run_toml())) == ()
