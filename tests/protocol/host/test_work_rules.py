"""In which runs work is done again, and what hosts of the others are told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from protocol.host.work_rules import LEAST_STEPS, MOST_STEPS, audit_notes, why_no_audits
from protocol.run.manifest import RunConfig, parse_run_config
from tests.e2e.run_file import run_toml

STEP_TOKENS = 64


def _config(round_: Mapping[str, object], **run: object) -> RunConfig:
    layers = {"num_layers": 2} if "fragments" in round_ else {}
    numbers = {"target_tokens": 1000 * LEAST_STEPS * STEP_TOKENS, "robust": "clip-agree", "mode": "blocking", **round_}
    inner = {"batch_tokens": STEP_TOKENS}
    text = run_toml("audited", 10_000_000, round=numbers, model=layers, inner=inner, run=run, admission={"open": True})
    return parse_run_config(text)


@pytest.mark.parametrize(
    ("round_", "words"),
    [
        ({}, ""),
        ({"codec": "int4"}, ""),
        ({"mode": "overlap"}, ""),
        ({"mode": "streaming", "fragments": 2}, "fragments"),
        ({"mode": "streaming", "fragments": 1, "alpha": 0.5}, "mixed"),
        ({"codec": "topk"}, "sparse"),
        ({"error_feedback": 0.5}, "rests"),
    ],
)
def test_work_is_done_again_in_rounds_of_the_whole_model_and_a_dense_codec_and_otherwise_the_reason_is_named(
    round_: Mapping[str, object], words: str
) -> None:
    config = _config(round_, min_members=4)
    why_not = why_no_audits(config)
    assert words in why_not
    assert bool(why_not) == bool(words)
    unseen = [f"nobody does strangers' work again, so it counts unseen: {why_not}"]
    assert audit_notes(config) == (unseen if words else [])


@pytest.mark.parametrize(
    ("num_peers", "words"),
    [(64, ""), (63, "more than 63 peers"), (4, "more than 4 peers"), (3, "a peer takes fewer than 16 steps a round")],
)
def test_a_host_is_told_how_many_peers_take_too_few_steps_for_audits_and_which_target_is_enough(
    num_peers: int, words: str
) -> None:
    config = _config({"target_tokens": num_peers * LEAST_STEPS * STEP_TOKENS}, min_members=4)
    notes = audit_notes(config)
    assert len(notes) == bool(words)
    assert all(words in note and f"target_tokens of {64 * LEAST_STEPS * STEP_TOKENS:_}" in note for note in notes)


@pytest.mark.parametrize(("num_members", "has_note"), [(2, True), (3, False)])
def test_a_host_is_told_where_few_peers_take_so_many_steps_that_strangers_never_become_members_by_work(
    num_members: int, has_note: bool
) -> None:
    config = _config({"target_tokens": (2 * MOST_STEPS + 1) * STEP_TOKENS}, min_members=num_members)
    notes = [each for each in audit_notes(config) if "with fewer than 3 peers some take more than 4096 steps" in each]
    assert len(notes) == has_note


def test_a_run_by_invite_is_told_nothing_of_audits() -> None:
    config = _config({"codec": "topk"})
    assert (
        audit_notes(config.model_copy(update={"admission": config.admission.model_copy(update={"open": False})})) == []
    )
