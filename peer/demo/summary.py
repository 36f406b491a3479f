"""The demo's summary for machines, and its verdict. Pure: everything it judges is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

from peer.demo.observation import CheckpointRow, HostStatus, Observation, PeerReport, UnitRow
from peer.demo.script_core import VICTIM, WHOLE_MODEL, Cast
from protocol.tensors.expert_schema import expert_unit
from protocol.tensors.stage_schema import MAX_STAGES, stage_unit

_STAGES: Final = frozenset(stage_unit(stage) for stage in range(MAX_STAGES))
HELDOUT_GOAL_NATS: Final = 2.3
"""The demo's model must end at or below this, and below the pair-frequency model."""


class DemoSummary(BaseModel):
    """What happened, in base units; losses in nats per byte.

    Attributes:
        ok: whether every promise of the demo held; `failures` names those that did not.
        members_per_round: how many peers each committed round counted, in order.
        weights_per_round: the members' shares of each round, by peer id.
        state_roots: each peer's last state root, by peer id, as hex; in a run of experts that of the trunk, in one of stages that
            of its stage.
        heldout_experts_end: the newest held-out loss of each expert on the documents that go to it.
        unit_roots: the last root of each expert, or stage, one for each that its holders ended on.
        rejoin_s: from the killed peer's new process to the first round that counts it; None when it never was.
        others_paused_s: for how long the others waited for it, 0 where there was no need.
        bytes_up: payload bytes that the peers sent, those before the kill included; of a peer that left no report when it ended, as
            where the demo gave up, what it told last.
        bytes_down: payload bytes that they received.
    """

    model_config = ConfigDict(frozen=True)

    ok: bool
    failures: tuple[str, ...]
    heldout_loss_start: float | None
    heldout_loss_end: float | None
    heldout_loss_pairs: float | None
    heldout_experts_end: dict[str, float] = {}
    rounds_committed: int
    members_per_round: tuple[int, ...]
    weights_per_round: tuple[dict[str, float], ...]
    state_roots: dict[str, str]
    unit_roots: dict[str, tuple[str, ...]] = {}
    rejoin_s: float | None
    others_paused_s: float = 0.0
    bytes_up: int
    bytes_down: int
    checkpoint: str
    checkpoint_root: str
    plot: str
    seconds: float


class Facts(BaseModel):
    """What the shell measured beside the observations.

    Attributes:
        checkpoint_verified: whether `potluck checkpoint verify` found the newest checkpoint equal to its root.
        lost_bytes_up: what the killed process had sent before it was killed; its successor counts from zero.
        lost_bytes_down: what it had received.
        checkpoint_units: roots of the experts, or stages, in the newest checkpoint.
        rounds_while_down: committed between the kill and the restart.
        others_paused_s: for how long the others were paused, so that the run did not end before the killed peer was back.
    """

    model_config = ConfigDict(frozen=True)

    checkpoint_verified: bool
    checkpoint_units: dict[str, str] = {}
    rounds_while_down: int = 0
    rejoin_s: float | None
    others_paused_s: float = 0.0
    lost_bytes_up: int = 0
    lost_bytes_down: int = 0
    plot: str
    seconds: float


def summarise(
    seen: Observation,
    final: Mapping[int, PeerReport],
    facts: Facts,
    gave_up: str = "",
    cast: Cast = WHOLE_MODEL,
) -> DemoSummary:
    """Judge the run: `final` are the reports that the peers left behind when they exited, by number."""
    rounds = [seen.rounds[index] for index in sorted(seen.rounds)]
    points = [seen.heldout[index].nats for index in sorted(seen.heldout)]
    checkpoint = newest_checkpoint(seen.host)
    pairs = seen.host.yardsticks.pairs_nats_per_byte if seen.host and seen.host.yardsticks else None
    roots = {report.peer: report.state_root for report in final.values()}
    last = {**seen.reports, **final}  # who is ended as the demo gives up leaves no report behind
    checkpoint_root = checkpoint.root if checkpoint else ""
    # What it was given up for is told alone: all else that is missing then follows from it.
    failures = (
        [gave_up]
        if gave_up
        else [
            *_root_failures(final, checkpoint_root, cast, verified=facts.checkpoint_verified),
            *_part_failures(final, facts.checkpoint_units, cast),
            *_loss_failures(points[-1] if points else None, pairs),
            *(["the killed peer was not counted again"] if facts.rejoin_s is None else []),
            *_outage_failures(seen, facts, cast),
        ]
    )
    return DemoSummary(
        ok=not failures,
        failures=tuple(failures),
        heldout_loss_start=points[0] if points else None,
        heldout_loss_end=points[-1] if points else None,
        heldout_loss_pairs=pairs,
        heldout_experts_end={
            unit: curve[-1].nats for unit, curve in (seen.host.heldout_experts if seen.host else {}).items() if curve
        },
        rounds_committed=len(rounds),
        members_per_round=tuple(len(row.members) for row in rounds),
        weights_per_round=tuple(dict(row.weights) for row in rounds),
        state_roots=roots,
        unit_roots=_unit_roots(final),
        rejoin_s=facts.rejoin_s,
        others_paused_s=facts.others_paused_s,
        bytes_up=facts.lost_bytes_up + sum(report.bytes_up for report in last.values()),
        bytes_down=facts.lost_bytes_down + sum(report.bytes_down for report in last.values()),
        checkpoint=checkpoint.path if checkpoint else "",
        checkpoint_root=checkpoint_root,
        plot=facts.plot,
        seconds=facts.seconds,
    )


def newest_checkpoint(host: HostStatus | None) -> CheckpointRow | None:
    """The checkpoint of the latest round, None when there is none."""
    return max(host.checkpoints, key=lambda row: row.index, default=None) if host else None


def _unit_roots(final: Mapping[int, PeerReport]) -> dict[str, tuple[str, ...]]:
    """The different roots of each expert, or stage, that its holders ended with: one, if all is well."""
    held = [unit for report in final.values() for unit in report.units]
    held += [
        UnitRow(unit=report.unit, state_root=report.state_root) for report in final.values() if report.unit in _STAGES
    ]
    return {
        unit: tuple(sorted({part.state_root for part in held if part.unit == unit}))
        for unit in sorted({part.unit for part in held})
    }


def _part_failures(final: Mapping[int, PeerReport], stored: Mapping[str, str], cast: Cast) -> list[str]:
    """The holders of every expert, or stage, end on one root, which is that of the checkpoint."""
    roots, failures = _unit_roots(final), list[str]()
    experts = [expert_unit(expert) for expert in range(cast.num_experts)]
    for unit in (*experts, *(stage_unit(stage) for stage in range(cast.num_stages))):
        found = roots.get(unit, ())
        if len(found) != 1 or not found[0]:
            shown = ", ".join(root[:8] or "none" for root in found)
            failures.append(f"the holders of {unit} did not end on one state root ({shown or 'no reports'})")
        elif stored.get(unit) != found[0]:
            failures.append(f"{unit} of the last checkpoint has root {stored.get(unit, 'none')[:8]}, not its holders'")
    return failures


def _root_failures(final: Mapping[int, PeerReport], checkpoint_root: str, cast: Cast, *, verified: bool) -> list[str]:
    roots = {report.state_root for report in final.values()}
    failures = []
    if len(final) != cast.num_peers or (len(roots) != 1 and not cast.num_stages) or "" in roots:
        shown = ", ".join(
            f"peer {number}: {report.state_root[:8] or 'none'}" for number, report in sorted(final.items())
        )
        failures.append(f"the peers did not end on one state root ({shown or 'no reports'})")
    if not checkpoint_root:
        failures.append("no checkpoint was written")
    elif not verified:
        failures.append("the checkpoint on disk does not verify against its root")
    elif roots and checkpoint_root not in roots and not cast.num_stages:
        failures.append(f"the last checkpoint has root {checkpoint_root[:8]}, not the peers'")
    return failures


def _outage_failures(seen: Observation, facts: Facts, cast: Cast) -> list[str]:
    victim = seen.peer_ids.get(VICTIM)
    if cast.num_stages and facts.rounds_while_down > 0:
        return []
    if victim is None or any(victim not in row.members for row in seen.rounds.values()):
        return []
    return [f"no round was committed while peer {VICTIM} was dead: the others did not go on without it"]


def _loss_failures(end: float | None, pairs: float | None) -> list[str]:
    if end is None:
        return ["no held-out loss was measured"]
    failures = []
    if end > HELDOUT_GOAL_NATS:
        failures.append(f"held-out loss ended at {end:.3f} nats per byte, above {HELDOUT_GOAL_NATS}")
    if pairs is None:
        failures.append("the pair model's loss is not known")
    elif end >= pairs:
        failures.append(f"held-out loss ended at {end:.3f} nats per byte, not below the pair model's {pairs:.3f}")
    return failures
