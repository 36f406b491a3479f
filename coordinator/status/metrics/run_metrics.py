"""The metrics of the run: one table, base units, closed label sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from averaging.metrics.metric_table import Samples, one
from coordinator.presence.presence import live_peers, mean_train_loss
from coordinator.progress.heldout_core import expert_kind
from coordinator.progress.run_core import Phase
from coordinator.progress.run_view import lanes_and_stages, tokens_per_s
from coordinator.progress.stage_commits import partial_lanes
from coordinator.progress.stage_view import StageSummary
from coordinator.progress.unit_holders import UnitHolders
from coordinator.scores.score_core import TaskPoint
from coordinator.status.metrics.moment import CoordinatorMetric, Moment
from coordinator.status.metrics.peer_series import PeerSeries, peer_series
from protocol.grids import GRAMS_PER_KG, JOULES_PER_KWH


def _newest(moment: Moment, kind: str) -> float | None:
    points = [p for p in moment.picture.loss_points if p.kind == kind]
    return max(points, key=lambda p: p.tokens).nats if points else None


def _of_experts(moment: Moment) -> Samples:
    for expert, unit in enumerate(moment.picture.units):
        nats = _newest(moment, expert_kind(expert))
        if nats is not None:
            yield (unit.unit,), nats


def _tasks(value: Callable[[TaskPoint], float | None], moment: Moment) -> Samples:
    for curve in moment.scores:
        number = value(curve.newest) if curve.newest is not None and curve.task.section.kind != "prompts" else None
        if number is not None:
            yield (curve.task.section.name,), number


def _missing_parts(moment: Moment) -> Samples:
    return tuple(((c.task.section.name,), float(len(c.points[-1].missing))) for c in moment.scores if c.points)


def _units(value: Callable[[UnitHolders], float], moment: Moment) -> Samples:
    return tuple(((unit.unit,), float(value(unit))) for unit in moment.picture.units)


def _stages(value: Callable[[StageSummary], float], moment: Moment) -> Samples:
    stages = lanes_and_stages(moment.picture, moment.now_s).stages
    return tuple(((stage.unit,), float(value(stage))) for stage in stages)


def _lanes(moment: Moment) -> Samples:
    picture = moment.picture
    return one(len(lanes_and_stages(picture, moment.now_s).lanes) if picture.are_stages else None)


def _partial_lanes(moment: Moment) -> Samples:
    picture = moment.picture
    return one(len(partial_lanes(picture.stage_commits)) if picture.are_stages else None)


PEER_LABELS: Final = ("name", "peer")
"""A peer's name, and the end of its id: two peers may have one name."""


def _by_peer(value: Callable[[PeerSeries], float | None], moment: Moment) -> Samples:
    for row in peer_series(moment.picture, moment.past, moment.now_s):
        number = value(row)
        if number is not None:
            yield (row.name, row.peer), float(number)


def _chosen(moment: Moment) -> Samples:
    for row in peer_series(moment.picture, moment.past, moment.now_s):
        if row.chosen:
            yield (row.peer, row.chosen.nickname, row.chosen.team), 1.0


RUN_METRICS: Final = (
    CoordinatorMetric(
        "potluck_run_phase",
        "gauge",
        "1 for the present phase.",
        lambda m: tuple(((phase.value,), float(phase is m.picture.state.phase)) for phase in Phase),
        ("phase",),
    ),
    CoordinatorMetric("potluck_run_round_index", "gauge", "Round of the head.", lambda m: one(m.picture.state.index)),
    CoordinatorMetric("potluck_run_tokens", "gauge", "Tokens committed.", lambda m: one(m.picture.state.total_tokens)),
    CoordinatorMetric(
        "potluck_run_target_tokens", "gauge", "Tokens at which the run ends.", lambda m: one(m.picture.target_tokens)
    ),
    CoordinatorMetric(
        "potluck_run_live_peers",
        "gauge",
        "Peers that reported recently.",
        lambda m: one(len(live_peers(m.picture.peers, m.now_s))),
    ),
    CoordinatorMetric(
        "potluck_run_hidden_peers", "gauge", "Live peers that nobody can reach.", lambda m: one(m.reach.num_hidden)
    ),
    CoordinatorMetric(
        "potluck_run_helper_peers",
        "gauge",
        "Helpers at work that peers can connect to.",
        lambda m: one(m.reach.num_helpers),
    ),
    CoordinatorMetric(
        "potluck_run_peer_counted_tokens",
        "gauge",
        "Tokens that count of a peer that is here; under the name others those of all further contributors.",
        partial(_by_peer, lambda row: row.counted.tokens),
        PEER_LABELS,
    ),
    CoordinatorMetric(
        "potluck_run_peer_counted_rounds",
        "gauge",
        "Rounds that count a peer that is here; under the name others the sum over all further contributors.",
        partial(_by_peer, lambda row: row.counted.rounds),
        PEER_LABELS,
    ),
    CoordinatorMetric(
        "potluck_run_peer_left_out_ratio",
        "gauge",
        "Share of the work of a peer that is here that disagreed with most others' in the newest rounds and was left out.",
        partial(_by_peer, lambda row: row.left_out),
        PEER_LABELS,
    ),
    CoordinatorMetric(
        "potluck_run_peer_heard_ago_seconds",
        "gauge",
        "Time since the newest report of a peer that is here.",
        partial(_by_peer, lambda row: row.silent_s),
        PEER_LABELS,
    ),
    CoordinatorMetric(
        "potluck_peer_info",
        "gauge",
        "1 for a peer that is here and has chosen a nickname or a team.",
        _chosen,
        ("peer", "nickname", "team"),
    ),
    CoordinatorMetric(
        "potluck_run_min_members",
        "gauge",
        "Ready peers with which the run starts.",
        lambda m: one(m.picture.min_members),
    ),
    CoordinatorMetric(
        "potluck_run_tokens_per_second",
        "gauge",
        "Training speed of live peers.",
        lambda m: one(tokens_per_s(m.picture, m.now_s)),
    ),
    CoordinatorMetric(
        "potluck_run_train_loss_nats",
        "gauge",
        "Mean training loss of live peers, nats per byte.",
        lambda m: one(mean_train_loss(m.picture.peers, m.now_s)),
    ),
    CoordinatorMetric(
        "potluck_run_heldout_loss_nats",
        "gauge",
        "Newest held-out loss, nats per byte.",
        lambda m: one(_newest(m, "heldout")),
    ),
    CoordinatorMetric(
        "potluck_run_expert_heldout_loss_nats",
        "gauge",
        "Newest held-out loss of an expert on the documents that the run sends to it, nats per byte.",
        _of_experts,
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_expert_live_peers",
        "gauge",
        "Live peers that hold an expert; it is frozen without any.",
        partial(_units, lambda unit: len(unit.holders)),
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_expert_round_index",
        "gauge",
        "Newest round of an expert that any peer reported.",
        partial(_units, lambda unit: unit.index),
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_expert_kept_round_index",
        "gauge",
        "Newest round of an expert that the host can give to a new holder.",
        partial(_units, lambda unit: unit.kept_index),
        ("unit",),
    ),
    CoordinatorMetric("potluck_run_lanes", "gauge", "Lanes of a pipeline run that live peers serve in.", _lanes),
    CoordinatorMetric(
        "potluck_run_partial_lanes",
        "gauge",
        "Recent lane rounds that a stage of a pipeline run lacks.",
        _partial_lanes,
    ),
    CoordinatorMetric(
        "potluck_run_stage_serving_peers",
        "gauge",
        "Live replicas of a stage that serve in a lane.",
        partial(_stages, lambda stage: stage.num_serving),
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_stage_spare_peers",
        "gauge",
        "Live spare replicas of a stage, which serve in no lane.",
        partial(_stages, lambda stage: stage.num_spare),
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_stage_tokens_per_second",
        "gauge",
        "Throughput of the lanes at a stage.",
        partial(_stages, lambda stage: stage.tokens_per_s),
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_stage_could_tokens_per_second",
        "gauge",
        "Throughput of a stage's live replicas if they never waited for other stages; 0 while unknown.",
        partial(_stages, lambda stage: stage.capacity_tokens_per_s),
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_stage_is_bottleneck",
        "gauge",
        "1 for the stage that limits the lanes.",
        partial(_stages, lambda stage: stage.is_bottleneck),
        ("unit",),
    ),
    CoordinatorMetric(
        "potluck_run_prose_loss_nats",
        "gauge",
        "Newest loss on prose, nats per byte.",
        lambda m: one(_newest(m, "prose")),
    ),
    CoordinatorMetric(
        "potluck_run_task_accuracy_ratio",
        "gauge",
        "Share of a task's questions whose right choice is the likeliest, at the newest commit that was measured whole.",
        partial(_tasks, lambda point: point.acc),
        ("task",),
    ),
    CoordinatorMetric(
        "potluck_run_task_normalised_accuracy_ratio",
        "gauge",
        "The same by likelihood for each byte of a choice.",
        partial(_tasks, lambda point: point.acc_norm),
        ("task",),
    ),
    CoordinatorMetric(
        "potluck_run_energy_joules",
        "counter",
        "Energy that peers with a meter reported since this process began to hear them.",
        lambda m: one(m.energy.kwh * JOULES_PER_KWH if m.energy.num_peers else None),
    ),
    CoordinatorMetric(
        "potluck_run_carbon_grams",
        "gauge",
        "CO2 of the energy whose grid is known, in grams.",
        lambda m: one(m.energy.carbon_kg * GRAMS_PER_KG if m.energy.carbon_kg is not None else None),
    ),
    CoordinatorMetric(
        "potluck_run_task_round_index",
        "gauge",
        "Round of that commit.",
        partial(_tasks, lambda point: point.index),
        ("task",),
    ),
    CoordinatorMetric(
        "potluck_run_task_missing_parts",
        "gauge",
        "Parts of a task without a score, at the newest commit that has one of any part.",
        _missing_parts,
        ("task",),
    ),
    CoordinatorMetric(
        "potluck_run_round_coverage_ratio",
        "gauge",
        "Share of members times chunks that the last round summed.",
        lambda m: one(m.picture.rounds[-1].row.coverage if m.picture.rounds else None),
    ),
    CoordinatorMetric(
        "potluck_run_round_lost_ratio",
        "gauge",
        "Share of the last round's mean, by its squares, that the codec of results left out.",
        lambda m: one(m.picture.rounds[-1].row.lost if m.picture.rounds else None),
    ),
    CoordinatorMetric(
        "potluck_run_round_left_out_ratio",
        "gauge",
        "Share of the last round's work that disagreed with most members' and was left out of the mean.",
        lambda m: one(m.picture.rounds[-1].row.left_out if m.picture.rounds else None),
    ),
    CoordinatorMetric(
        "potluck_run_missing_heads",
        "gauge",
        "Commits that a peer reported and nobody has sent.",
        lambda m: one(len(m.picture.missing)),
    ),
    CoordinatorMetric(
        "potluck_run_lone_rounds",
        "gauge",
        "Rounds committed without a quorum, among the newest 500.",
        lambda m: one(sum(timed.row.is_lone for timed in m.picture.rounds)),
    ),
    CoordinatorMetric(
        "potluck_run_forks",
        "gauge",
        "Forks, other than the head's lineage, that may still be followed.",
        lambda m: one(m.picture.num_forks),
    ),
    CoordinatorMetric("potluck_run_bans", "gauge", "Peers banned permanently.", lambda m: one(m.picture.num_bans)),
)
