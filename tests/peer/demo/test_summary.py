from __future__ import annotations

import re
from dataclasses import replace

import pytest

from peer.demo.script_core import EXPERTS
from peer.demo.summary import DemoSummary, Facts, summarise
from tests.peer.demo_world import UNIT_ROOTS, holder, observation, report, round_row

SEEN = observation((round_row(1), round_row(2, ("one", "three"))), heldout=(5.6, 2.4, 2.0))
FINAL = {number: report(number) for number in (1, 2, 3)}
FACTS = Facts(checkpoint_verified=True, rejoin_s=12.5, plot="p.png", seconds=170.0, lost_bytes_up=7, lost_bytes_down=9)


def test_summary_is_ok_when_every_promise_held() -> None:
    summary = summarise(SEEN, FINAL, FACTS)
    assert summary.ok
    assert summary.failures == ()
    assert (summary.heldout_loss_start, summary.heldout_loss_end, summary.heldout_loss_pairs) == (5.6, 2.0, 2.5)
    assert summary.members_per_round == (3, 2)
    assert summary.weights_per_round[1] == {"one": 0.5, "three": 0.5}
    assert len(set(summary.state_roots.values())) == 1


def test_summary_counts_the_bytes_of_the_killed_process_too() -> None:
    summary = summarise(SEEN, FINAL, FACTS)
    assert (summary.bytes_up, summary.bytes_down) == (307, 609)


def test_summary_counts_what_peers_told_last_that_left_no_report_because_the_demo_gave_up() -> None:
    seen = observation((round_row(1),))
    told = {number: each.model_copy(update={"bytes_up": 40, "bytes_down": 50}) for number, each in seen.reports.items()}
    none_left = summarise(replace(seen, reports=told), {}, FACTS, "not finished within 9 s")
    assert (none_left.bytes_up, none_left.bytes_down) == (7 + 3 * 40, 9 + 3 * 50)
    one_left = summarise(replace(seen, reports=told), {3: FINAL[3]}, FACTS, "not finished within 9 s")
    assert (one_left.bytes_up, one_left.bytes_down) == (7 + 2 * 40 + 100, 9 + 2 * 50 + 200)


def test_summary_has_every_documented_key() -> None:
    documented = {
        "ok", "heldout_loss_start", "heldout_loss_end", "heldout_loss_pairs", "rounds_committed", "members_per_round",
        "weights_per_round", "state_roots", "rejoin_s", "bytes_up", "bytes_down", "checkpoint", "checkpoint_root",
        "plot", "seconds",
    }  # fmt: skip
    assert documented <= set(DemoSummary.model_fields)


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (summarise(SEEN, FINAL | {2: report(2, root="cd" * 32)}, FACTS), "one state root"),
        (summarise(SEEN, {1: FINAL[1], 2: FINAL[2]}, FACTS), "one state root"),
        (summarise(SEEN, {number: report(number, root="") for number in FINAL}, FACTS), "one state root"),
        (summarise(SEEN, {number: report(number, root="cd" * 32) for number in FINAL}, FACTS), "not the peers'"),
        (summarise(SEEN, FINAL, FACTS.model_copy(update={"checkpoint_verified": False})), "does not verify"),
        (summarise(SEEN, FINAL, FACTS.model_copy(update={"rejoin_s": None})), "not counted again"),
        (summarise(observation((round_row(1),), (5.6, 2.4)), FINAL, FACTS), "above 2.3"),
        (summarise(observation((round_row(1),), (5.6, 2.6)), FINAL, FACTS), "pair model"),
        (summarise(observation((round_row(1),)), FINAL, FACTS), "no held-out loss"),
        (summarise(observation((round_row(1), round_row(2)), (5.6, 2.0)), FINAL, FACTS), "go on without it"),
        (summarise(SEEN, FINAL, FACTS, "not finished within 9 s"), "not finished"),
    ],
    ids=[
        "roots differ", "report missing", "no root", "other root", "bad checkpoint", "not rejoined", "above goal",
        "above pairs", "no loss", "nobody went on", "gave up",
    ],
)  # fmt: skip
def test_summary_names_the_promise_that_did_not_hold(summary: DemoSummary, expected: str) -> None:
    assert not summary.ok
    assert any(expected in failure for failure in summary.failures)


def test_what_the_demo_was_given_up_for_is_told_alone() -> None:
    summary = summarise(observation(()), {}, FACTS.model_copy(update={"rejoin_s": None}), "not finished within 9 s")
    assert summary.failures == ("not finished within 9 s",)


HOLDERS = {number: holder(number) for number in (1, 2, 3, 4)}
OF_EXPERTS = FACTS.model_copy(update={"checkpoint_units": {"trunk": "ab" * 32, **UNIT_ROOTS}})


def test_a_run_of_experts_is_ok_when_each_experts_holders_end_on_the_root_of_the_checkpoint() -> None:
    summary = summarise(SEEN, HOLDERS, OF_EXPERTS, cast=EXPERTS)
    assert summary.failures == ()
    assert summary.unit_roots == {unit: (root,) for unit, root in UNIT_ROOTS.items()}
    assert len(summary.state_roots) == 4


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (summarise(SEEN, HOLDERS | {4: holder(4, root="cd" * 32)}, OF_EXPERTS, cast=EXPERTS), "the peers did not end"),
        (
            summarise(SEEN, HOLDERS | {4: holder(4, unit_root="cd" * 32)}, OF_EXPERTS, cast=EXPERTS),
            "of expert-1 did not",
        ),
        (summarise(SEEN, {1: HOLDERS[1], 3: HOLDERS[3]}, OF_EXPERTS, cast=EXPERTS), "expert-1 did not .*no reports"),
        (summarise(SEEN, HOLDERS, FACTS, cast=EXPERTS), "expert-0 of the last checkpoint has root none"),
    ],
    ids=["trunks differ", "holders differ", "nobody holds one", "other root"],
)
def test_an_expert_whose_holders_or_whose_checkpoint_differ_is_named(summary: DemoSummary, expected: str) -> None:
    assert not summary.ok
    assert any(re.search(expected, failure) for failure in summary.failures)
