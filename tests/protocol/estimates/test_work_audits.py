"""Runs with audits of work, and the memory that a dry run and a plan tell for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from coordinator.status.dry_run_core import each_peer_estimates
from peer.checks.dry_run_core import OfferedResources, peer_estimates
from peer.forecast.crew_core import parse_crew
from peer.forecast.forecast_core import Conditions, forecast
from peer.forecast.forecast_words import forecast_estimates, forecast_json
from protocol.estimates.dry_run import Estimate
from protocol.estimates.work_audits import audit_bytes, audit_estimates
from protocol.host.work_rules import why_no_audits
from protocol.memory_costs import AUDIT_BYTES
from protocol.run.manifest import RunConfig, parse_run_config
from protocol.tables import in_bytes
from tests.e2e.run_file import run_toml
from tests.protocol.run.test_experts_section import expert_toml

OFFER = OfferedResources(cache_bytes=2_000_000_000, no_listen=False, daily_quota_gb=0.0)


def _run(is_open: bool = True, **changes: object) -> RunConfig:
    layers = {"num_layers": 2} if "fragments" in changes else {}
    rounds = {"target_tokens": 1000, "mode": "blocking", "robust": "clip", **changes}
    return parse_run_config(run_toml("audited", 100_000, round=rounds, model=layers, admission={"open": is_open}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"mode": "overlap"}, ""),
        ({"mode": "streaming", "fragments": 2}, "fragments"),
        ({"codec": "topk"}, "sparse"),
        ({"error_feedback": 0.5}, "rests"),
    ],
)
def test_in_modes_whose_work_begins_at_no_common_state_nobody_audits_and_the_reason_is_said(
    changes: Mapping[str, object], words: str
) -> None:
    run = _run(**changes)
    assert words in why_no_audits(run)
    assert bool(why_no_audits(run)) == bool(words)
    assert bool(audit_bytes(run)) == bool(audit_estimates(run)) == (not words)


def test_in_a_run_of_experts_nobody_audits() -> None:
    assert "peers hold expert" in why_no_audits(parse_run_config(expert_toml()))


def test_a_run_by_invitation_has_no_audits_and_takes_no_memory_for_them() -> None:
    assert why_no_audits(_run()) == why_no_audits(_run(is_open=False)) == ""
    assert audit_bytes(_run()) == AUDIT_BYTES * _run().num_elements
    assert audit_bytes(_run(is_open=False)) == 0


def test_both_dry_runs_tell_the_memory_of_audits_in_one_line_where_the_run_has_them() -> None:
    told = in_bytes(audit_bytes(_run()))
    for of in (lambda run: peer_estimates(run, 0, OFFER), each_peer_estimates):
        (line,) = [each.expected for each in of(_run()) if each.name == "audits"]
        assert line.startswith(f"up to {told} more memory")
        assert not [each for each in of(_run(is_open=False)) if each.name == "audits"]


def test_a_peer_whose_owner_wants_no_audits_is_told_of_none() -> None:
    estimates = peer_estimates(_run(), 0, replace(OFFER, audit_share=0.0))
    assert not [each for each in estimates if each.name == "audits"]


def test_a_plan_tells_the_memory_of_audits_in_text_and_json_where_the_run_has_them() -> None:
    conditions, crew = Conditions(), parse_crew("4xrtx4090")
    found, invited = (forecast(_run(is_open=is_open), crew, conditions) for is_open in (True, False))
    assert forecast_json(found)["audit_bytes"] == audit_bytes(_run())
    assert forecast_json(invited)["audit_bytes"] == 0
    (line,) = [each for each in forecast_estimates(found, conditions) if "audits" in each.expected]
    assert line == Estimate(
        "", f"and up to {in_bytes(audit_bytes(_run()))} more for audits of others' work, where that is free"
    )
    assert not [each for each in forecast_estimates(invited, conditions) if "audits" in each.expected]
