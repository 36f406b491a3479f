"""The coordinator's metrics."""

from __future__ import annotations

from dataclasses import replace

from averaging.network.seams.interfaces import BulkCount, BulkKind, ControlCount, Way
from averaging.storage.disk_room import DiskRoom
from coordinator.energy.run_energy import EnergySums
from coordinator.helper.reach_core import Reach
from coordinator.ledger.ledger import LossPoint
from coordinator.presence.presence import PeerEntry
from coordinator.progress.stage_commits import StageCommits
from coordinator.progress.unit_holders import UnitHolders
from coordinator.push.push_core import PushState
from coordinator.scores.score_core import ScoredTask, TaskCurve, TaskPoint
from coordinator.status.metrics.metrics_text import COORDINATOR_METRICS, render_metrics
from coordinator.status.metrics.moment import Counts, Moment
from protocol.ids import UnitName
from protocol.run.evaluate_section import EvaluateSection
from tests.coordinator.progress.test_run_view import A, B, peer, picture, timed


def text() -> str:
    bulk = (BulkCount(BulkKind(Way.DIRECT, "shard"), 9, 6),)
    control = (ControlCount("directory", 5, 0),)
    counts = Counts(calls=(("Report", "ok", 7),), control_bytes_up=5, bulk_bytes_down=6, bulk=bulk, control=control)
    alone = replace(timed(2, 300, 100), row=replace(timed(2, 300, 100).row, is_lone=True))
    points = (
        LossPoint("prose", 1, 300, 3.5, A),
        LossPoint("prose", 2, 600, 3.25, A),
        LossPoint("heldout", 1, 300, 2.5, A),
    )
    points += (LossPoint("heldout expert-0", 1, 300, 2.25, A), LossPoint("heldout expert-0", 2, 600, 1.75, A))
    units = tuple(UnitHolders(UnitName(f"expert-{expert}"), (A,), 7, kept_index=6) for expert in range(2))
    shown = replace(picture((alone, timed(3, 300, 100)), points), min_members=2, units=units)
    return render_metrics(lambda: Moment(shown, counts, 100.0, DiskRoom(3, 30), reach=Reach(3, 2, 1))).decode()


def test_scores_are_those_of_the_newest_commit_that_was_measured_whole() -> None:
    task = ScoredTask(EvaluateSection(name="facts", file="f", parts=2), 4, 0.25)
    curve = TaskCurve(task, (TaskPoint(2, 300, 4, 2, 3), TaskPoint(4, 600, 2, 2, 2, missing=(1,))))
    push = PushState("file:///m").succeeded("x", 2, 70).failed("refused", 0.0)
    lines = render_metrics(lambda: Moment(picture(), Counts(), 100.0, scores=(curve,), push=push)).decode().splitlines()
    assert 'potluck_run_task_accuracy_ratio{task="facts"} 0.5' in lines
    assert 'potluck_run_task_normalised_accuracy_ratio{task="facts"} 0.75' in lines
    assert 'potluck_run_task_round_index{task="facts"} 2.0' in lines
    assert 'potluck_run_task_missing_parts{task="facts"} 1.0' in lines
    assert "potluck_coordinator_push_time_seconds 70.0" in lines
    assert "potluck_coordinator_failed_pushes_total 1.0" in lines


def test_every_row_of_the_table_is_rendered_with_its_help() -> None:
    shown = text()
    for row in COORDINATOR_METRICS:
        assert f"# HELP {row.name}" in shown
        assert row.help.endswith(".")


def test_values_are_read_off_the_run() -> None:
    shown = text()
    for line in (
        'potluck_run_phase{phase="training"} 1.0',
        'potluck_run_phase{phase="gathering"} 0.0',
        "potluck_run_tokens 600.0",
        "potluck_run_live_peers 1.0",
        "potluck_run_round_coverage_ratio 0.9",
        "potluck_run_round_lost_ratio 0.0",
        "potluck_run_round_left_out_ratio 0.0",
        "potluck_run_missing_heads 0.0",
        "potluck_run_lone_rounds 1.0",
        "potluck_run_forks 1.0",
        "potluck_run_heldout_loss_nats 2.5",
        "potluck_run_prose_loss_nats 3.25",
        'potluck_run_expert_heldout_loss_nats{unit="expert-0"} 1.75',
        'potluck_run_expert_live_peers{unit="expert-1"} 1.0',
        'potluck_run_expert_round_index{unit="expert-1"} 7.0',
        'potluck_run_expert_kept_round_index{unit="expert-1"} 6.0',
        "potluck_run_bans 2.0",
        "potluck_run_hidden_peers 2.0",
        "potluck_run_helper_peers 1.0",
        "potluck_run_min_members 2.0",
        "potluck_coordinator_disk_free_bytes 3.0",
        "potluck_coordinator_disk_all_bytes 30.0",
        'potluck_coordinator_calls_total{call="Report",outcome="ok"} 7.0',
        'potluck_coordinator_received_bytes_total{lane="bulk"} 6.0',
        'potluck_coordinator_control_sent_bytes_total{channel="directory"} 5.0',
        'potluck_coordinator_control_received_bytes_total{channel="directory"} 0.0',
        'potluck_coordinator_bulk_sent_bytes_total{channel="shard",codec="",unit="",way="direct"} 9.0',
    ):
        assert line in shown.splitlines()


def test_lanes_and_stages_are_told_and_the_speed_of_a_lane_counts_once() -> None:
    units = tuple(UnitHolders(UnitName(f"stage-{stage}"), (holder,), 7) for stage, holder in enumerate((A, B)))
    reported = {holder: replace(peer(), lane=7, could_tokens_per_s=could) for holder, could in ((A, 900.0), (B, 150.0))}
    entries = {holder: PeerEntry(report, 95.0) for holder, report in reported.items()}
    commits = {units[0].unit: StageCommits({}, {(7, 3): 4}, 7), units[1].unit: StageCommits({}, {}, 7)}
    shown = replace(picture(), units=units, are_stages=True, peers=entries, stage_commits=commits)
    lines = render_metrics(lambda: Moment(shown, Counts(), 100.0)).decode().splitlines()
    for line in (
        "potluck_run_lanes 1.0",
        "potluck_run_partial_lanes 1.0",
        "potluck_run_tokens_per_second 100.0",
        'potluck_run_stage_serving_peers{unit="stage-1"} 1.0',
        'potluck_run_stage_spare_peers{unit="stage-1"} 0.0',
        'potluck_run_stage_tokens_per_second{unit="stage-0"} 100.0',
        'potluck_run_stage_could_tokens_per_second{unit="stage-0"} 900.0',
        'potluck_run_stage_is_bottleneck{unit="stage-0"} 0.0',
        'potluck_run_stage_is_bottleneck{unit="stage-1"} 1.0',
    ):
        assert line in lines


def test_names_carry_base_units() -> None:
    units = (
        "_seconds",
        "_bytes",
        "_tokens",
        "_nats",
        "_ratio",
        "_second",
        "_phase",
        "_index",
        "_peers",
        "_checkpoints",
        "_calls",
        "_heads",
        "_rounds",
        "_forks",
        "_bans",
        "_members",
        "_lanes",
        "_parts",
        "_pushes",
        "_bottleneck",
        "_info",
        "_joules",
        "_grams",
    )
    assert [row.name for row in COORDINATOR_METRICS if not row.name.endswith(units)] == []


def test_energy_is_rendered_once_a_peer_has_a_meter() -> None:
    spent = EnergySums(2, kwh=2.0, carbon_kg=0.5)
    shown = render_metrics(lambda: Moment(picture(), Counts(), 100.0, energy=spent)).decode().splitlines()
    assert "potluck_run_energy_joules_total 7.2e+06" in shown
    assert "potluck_run_carbon_grams 500.0" in shown
    without = render_metrics(lambda: Moment(picture(), Counts(), 100.0)).decode().splitlines()
    assert not [line for line in without if line.startswith(("potluck_run_energy_joules_total", "potluck_run_carbon"))]
