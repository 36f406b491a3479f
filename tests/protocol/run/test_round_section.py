"""When a round is due, as run.toml says it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.rounds.lineage.rule_numbers import CAP_FACTOR, NO_CAP
from protocol.rounds.schedule.sum_rules import SumRules
from protocol.run.round_section import RoundSection


@pytest.mark.parametrize(
    ("keys", "reported"),
    [
        ({"first_local_steps": 2}, r"first_local_steps 2 belongs to a ramp_share"),
        ({"target_utilisation": 0.5}, r"target_utilisation 0\.5 belongs to local_steps"),
        ({"fragments": 2}, r"fragments = 2 belongs to mode = \"streaming\", not to \"overlap\""),
        ({"mode": "streaming", "delay_steps": 2}, r"delay_steps = 2 without alpha"),
        ({"patient_every": 4}, r"patient_every 4 belongs to a close_share below 1"),
        ({"result_codec": "top12"}, r"result_codec = \"top12\" belongs to codec = \"topk\""),
    ],
)
def test_a_key_without_the_one_that_it_belongs_to_is_refused(keys: dict[str, object], reported: str) -> None:
    with pytest.raises(ValidationError, match=reported):
        RoundSection.model_validate({"target_tokens": 4096, **keys})


@pytest.mark.parametrize(("codec", "feedback"), [("int8", 0.0), ("topk", 0.95)])
def test_what_a_sparse_codec_leaves_out_is_fed_back_where_nothing_else_is_said(codec: str, feedback: float) -> None:
    assert RoundSection.model_validate({"target_tokens": 4096, "codec": codec}).feedback == feedback


def test_later_keys_are_written_only_where_they_are_used() -> None:
    assert set(RoundSection(target_tokens=1).model_dump()) == {
        "target_tokens",
        "longest_interval_s",
        "codec",
        "chunk_elements",
    }


@pytest.mark.parametrize(("weight_cap", "factor"), [(4, CAP_FACTOR), (1, 1), (0, NO_CAP)])
def test_a_weight_cap_of_zero_is_none(weight_cap: int, factor: int) -> None:
    assert RoundSection(target_tokens=1, weight_cap=weight_cap).cap_factor == factor


def test_reducers_have_the_rules_of_the_file() -> None:
    section = RoundSection(target_tokens=1, robust="clip", close_share=0.9, patient_every=5, audit_share=0.2)
    assert section.sums == SumRules(robust="clip", close_share=0.9, patient_every=5, audit_share=0.2)
    assert RoundSection(target_tokens=1).sums == SumRules(audit_share=0.01), "every run looks at some sums"
