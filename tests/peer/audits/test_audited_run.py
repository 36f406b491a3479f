from __future__ import annotations

from collections.abc import Mapping

import pytest

from peer.audits.audited_run import why_not_here
from protocol.run.manifest import parse_run_config
from tests.e2e.run_file import run_toml


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "blocking"}, ""),
        ({"mode": "blocking", "codec": "int4"}, ""),
        ({}, ""),
        ({"mode": "streaming", "fragments": 2}, "fragments"),
        ({"mode": "blocking", "codec": "topk"}, "sparse"),
        ({"mode": "blocking", "error_feedback": 0.5}, "rests"),
    ],
)
def test_audits_are_possible_in_rounds_of_the_whole_model_and_a_dense_codec_and_otherwise_the_reason_is_named(
    changes: Mapping[str, object], words: str
) -> None:
    layers = {"num_layers": 2} if "fragments" in changes else {}
    config = parse_run_config(run_toml("audited", 100_000, round={"target_tokens": 1000, **changes}, model=layers))
    why_not = why_not_here(config, trains_alone=True)
    assert words in why_not
    assert bool(why_not) == bool(words)


def test_several_cards_or_islands_of_one_peer_audit_nobody() -> None:
    config = parse_run_config(run_toml("audited", 100_000, round={"target_tokens": 1000, "mode": "blocking"}))
    assert "several processes" in why_not_here(config, trains_alone=False)
