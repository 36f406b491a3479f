from __future__ import annotations

from dataclasses import replace

import pytest
import structlog

from coordinator.audits.step_watch import FEW_ROUNDS, StepWatch, watched_steps
from protocol.host.work_rules import LEAST_STEPS
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.run.manifest import parse_run_config
from tests.e2e.run_file import run_toml
from tests.protocol.rounds.messages.test_wire import RECORD

STEP_TOKENS = 64


def _rounds(*steps: int) -> list[ChainLink]:
    """Commits whose contributors took so many steps each."""
    return [
        ChainLink(
            RECORD.unit,
            CommitId(bytes(32)),
            number,
            (),
            0,
            1,
            replace(
                RECORD, contributors=tuple(replace(each, tokens=STEP_TOKENS * num) for each in RECORD.contributors)
            ),
        )
        for number, num in enumerate(steps)
    ]


def _warnings(*looks: list[ChainLink]) -> list[str]:
    watch = StepWatch(STEP_TOKENS)
    with structlog.testing.capture_logs() as logs:
        for links in looks:
            watch.saw(links)
    return [str(each["reason"]) for each in logs]


def test_a_host_whose_peers_take_too_few_steps_for_audits_is_warned_once() -> None:
    few = LEAST_STEPS - 1
    (reason,) = _warnings(_rounds(few, few), _rounds(*[few] * 3 * FEW_ROUNDS))
    assert f"{few} steps" in reason
    assert f"audits need {LEAST_STEPS}" in reason


def test_a_few_short_rounds_are_no_reason_and_a_run_that_becomes_short_again_is_warned_again() -> None:
    few, enough = [LEAST_STEPS - 1] * FEW_ROUNDS, LEAST_STEPS
    assert _warnings(_rounds(*few[1:], enough, *few[1:])) == []
    assert len(_warnings(_rounds(*few, enough, *few))) == 2


@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_a_run_without_audits_is_warned_of_at_its_start_and_others_once_their_rounds_are_short(codec: str) -> None:
    numbers = {"target_tokens": 200_000, "robust": "clip-agree", "mode": "blocking", "codec": codec}
    config = parse_run_config(run_toml("open", 10**10, round=numbers, admission={"open": True}))
    with structlog.testing.capture_logs() as logs:
        watched_steps(config)(_rounds(*[1] * 2 * FEW_ROUNDS))
    (warning,) = logs
    assert ("audits need" in str(warning["reason"])) == (codec == "int8")
