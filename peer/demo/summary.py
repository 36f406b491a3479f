"""The demo's observations of its run, and its verdict on the promises. Pure: everything it judges is an argument."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import BaseModel, ConfigDict

from peer.status.status import PeerStatus
from protocol.tensors.expert_schema import expert_unit
from protocol.tensors.stage_schema import stage_unit

VICTIM: Final = 2
"""Number of the peer that is killed. It trains at full speed, so that its absence shows."""

HELDOUT_GOAL_NATS: Final = 2.3
"""The model must end below this held-out loss per byte, and below the pair-frequency model."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The peers of one demo.

    Attributes:
        num_peers: numbered from 1.
        experts: the expert of each peer, by its number; empty if every peer holds the whole model.
        num_stages: number of stages of the model, one per peer; 0 if it is not cut.
        slow_peer: the peer that runs at a third of its speed. Lanes have none, because they are as fast as their slowest member.
        title: of the screen and of the plot.
        one_round: the run ends with its first round. Nobody is slowed or killed, and the loss is not judged.
        is_loss_judged: whether the run has the tokens that a loss below the pair model takes.
    """

    title: str
    num_peers: int = 3
    experts: tuple[int, ...] = ()
    num_stages: int = 0
    slow_peer: int | None = 3
    one_round: bool = False
    is_loss_judged: bool = True

    @property
    def units(self) -> tuple[str, ...]:
        """The experts or stages; each has holders of its own."""
        experts = tuple(expert_unit(expert) for expert in sorted(set(self.experts)))
        return experts + tuple(stage_unit(stage) for stage in range(self.num_stages))

    def for_one_round(self) -> Cast:
        """The peers for a run of one round: two where all hold the whole model, else one for each place that the run needs."""
        return replace(self, one_round=True, slow_peer=None, num_peers=self.num_peers if self.units else 2)


CASTS: Final = {
    "data": Cast("a host, three volunteers, one model"),
    "expert": Cast("a host, four volunteers, a trunk of all and two experts", num_peers=4, experts=(0, 1, 0, 1)),
    "pipeline": Cast("a host, six volunteers, three stages in two lanes", num_peers=6, num_stages=3, slow_peer=None),
}
"""By kind of shards. Every expert and stage has two holders, so that the run goes on without the victim."""


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Omission(_Read):
    """A peer that a round left out, and why."""

    peer: str
    reason: str = ""


class RoundRow(_Read):
    """One committed round; `weights` are the members' shares, which sum to 1."""

    index: int
    commit: str
    members: tuple[str, ...] = ()
    weights: dict[str, float] = {}
    omitted: tuple[Omission, ...] = ()
    unix_s: float = 0.0


class LossPoint(_Read):
    """A loss in nats per byte at this many committed tokens; `index` is the round of a held-out loss."""

    index: int = 0
    tokens: int
    nats: float


class CheckpointRow(_Read):
    """One checkpoint on the host's disk."""

    index: int
    commit: str
    root: str
    path: str


class Baselines(_Read):
    """The loss of a compressor and of a pair-frequency model on the same held-out text."""

    zlib_bits_per_byte: float
    pairs_nats_per_byte: float


class HostStatus(_Read):
    """The fields used of the host's /api/status."""

    phase: str
    reason: str = ""
    head: str = ""
    index: int = 0
    total_tokens: int = 0
    target_total_tokens: int = 0
    eta_s: float | None = None
    rounds: tuple[RoundRow, ...] = ()
    heldout: tuple[LossPoint, ...] = ()
    heldout_experts: dict[str, tuple[LossPoint, ...]] = {}
    train_loss: tuple[LossPoint, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    yardsticks: Baselines | None = None


@dataclass
class Seen:
    """Everything seen of the run so far; peers by their numbers, rounds by their indices.

    Attributes:
        host: the newest status of the host, None before the first.
        peers: the newest status of each peer. The victim's is removed when it is restarted.
        peer_ids: kept even then.
        exits: exit codes of the processes that have ended.
        rounds: every committed round, also those that left the host's list; `heldout` likewise.
        lost_bytes: up and down, by the victim's killed process.
    """

    host: HostStatus | None = None
    peers: dict[int, PeerStatus] = field(default_factory=dict)
    peer_ids: dict[int, str] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    rounds: dict[int, RoundRow] = field(default_factory=dict)
    heldout: dict[int, LossPoint] = field(default_factory=dict)
    lost_bytes: tuple[int, int] = (0, 0)

    def add_host(self, host: HostStatus) -> None:
        """Add one status of the host."""
        self.host = host
        self.rounds |= {row.index: row for row in host.rounds}
        self.heldout |= {point.index: point for point in host.heldout}

    @property
    def index(self) -> int:
        """The newest committed round, 0 before the first."""
        return self.host.index if self.host else 0

    @property
    def share(self) -> float:
        """The committed share of the run's tokens, from 0 to 1."""
        return self.host.total_tokens / max(1, self.host.target_total_tokens) if self.host else 0.0

    @property
    def checkpoint(self) -> CheckpointRow | None:
        """The checkpoint of the latest round."""
        return max(self.host.checkpoints, key=lambda row: row.index, default=None) if self.host else None

    def rounds_after(self, index: int, *, with_victim: bool) -> list[RoundRow]:
        """The rounds later than `index` with or without the victim among their members."""
        later = [row for number, row in sorted(self.rounds.items()) if number > index]
        return [row for row in later if (self.peer_ids.get(VICTIM) in row.members) == with_victim]


class DemoSummary(BaseModel):
    """The result, in base units; losses in nats per byte.

    Attributes:
        ok: whether every promise of the demo was kept; `failures` names the others.
        members_per_round: number of peers that each committed round counted, in order.
        rounds_before_kill: how many of them were committed when a peer was killed.
        weights_per_round: the members' shares of each round, by peer id.
        state_roots: each peer's last state root by peer id, in hex: of the trunk in a run of experts, of its stage in a pipeline.
        heldout_experts_end: the newest held-out loss of each expert on the documents routed to it.
        unit_roots: the last roots of each expert or stage. Its holders should end with one common root.
        rejoin_s: from the start of the killed peer's new process to the first round that counts it; None if none did.
        others_paused_s: for how long the others waited for it.
        bytes_up: payload that the peers sent, the killed process included; `bytes_down` is the payload received.
    """

    model_config = ConfigDict(frozen=True)

    ok: bool = False
    failures: tuple[str, ...] = ()
    heldout_loss_start: float | None
    heldout_loss_end: float | None
    heldout_loss_pairs: float | None
    heldout_experts_end: dict[str, float] = {}
    rounds_committed: int
    members_per_round: tuple[int, ...]
    rounds_before_kill: int = 0
    weights_per_round: tuple[dict[str, float], ...]
    state_roots: dict[str, str]
    unit_roots: dict[str, tuple[str, ...]] = {}
    rejoin_s: float | None = None
    others_paused_s: float = 0.0
    bytes_up: int
    bytes_down: int
    checkpoint: str
    checkpoint_root: str
    plot: str = ""
    seconds: float = 0.0


def summarise(seen: Seen, final: Mapping[int, PeerStatus], cast: Cast) -> DemoSummary:
    """Sum up the run. `final` holds the status that each peer left when it ended, by number."""
    rounds = [seen.rounds[index] for index in sorted(seen.rounds)]
    losses = [seen.heldout[index].nats for index in sorted(seen.heldout)]
    experts = seen.host.heldout_experts if seen.host else {}
    last = {**seen.peers, **final}  # a peer that is stopped when the demo gives up leaves no status
    return DemoSummary(
        heldout_loss_start=losses[0] if losses else None,
        heldout_loss_end=losses[-1] if losses else None,
        heldout_loss_pairs=seen.host.yardsticks.pairs_nats_per_byte if seen.host and seen.host.yardsticks else None,
        heldout_experts_end={unit: curve[-1].nats for unit, curve in experts.items() if curve},
        rounds_committed=len(rounds),
        members_per_round=tuple(len(row.members) for row in rounds),
        weights_per_round=tuple(row.weights for row in rounds),
        state_roots={status.peer: status.state_root for status in final.values()},
        unit_roots={unit: _roots_of(unit, final) for unit in cast.units},
        bytes_up=seen.lost_bytes[0] + sum(status.bytes_up for status in last.values()),
        bytes_down=seen.lost_bytes[1] + sum(status.bytes_down for status in last.values()),
        checkpoint=seen.checkpoint.path if seen.checkpoint else "",
        checkpoint_root=seen.checkpoint.root if seen.checkpoint else "",
    )


def _roots_of(unit: str, final: Mapping[int, PeerStatus]) -> tuple[str, ...]:
    """The different last roots of the holders of an expert or stage."""
    roots = {part.state_root for status in final.values() for part in status.units if part.unit == unit}
    return tuple(sorted(roots | {status.state_root for status in final.values() if status.unit == unit}))


def broken_promises(
    summary: DemoSummary, cast: Cast, stored_roots: Mapping[str, str], *, is_verified: bool, went_on: bool
) -> Iterator[str]:
    """One sentence for each broken promise.

    Args:
        summary: the summary of the run.
        cast: the peers of the demo.
        stored_roots: of the experts or stages in the newest checkpoint.
        is_verified: whether `potluck checkpoint verify` accepts that checkpoint.
        went_on: whether a round was committed while the victim was dead.
    """
    roots, has_one_root = set(summary.state_roots.values()), not cast.num_stages
    if len(summary.state_roots) != cast.num_peers or "" in roots or (len(roots) != 1 and has_one_root):
        yield f"the peers did not end on one state root ({_shown(summary.state_roots.values())})"
    if not summary.checkpoint_root:
        yield "no checkpoint was written"
    elif not is_verified:
        yield "the checkpoint on disk does not verify against its root"
    elif roots and summary.checkpoint_root not in roots and has_one_root:
        yield f"the last checkpoint has root {summary.checkpoint_root[:8]}, not the peers'"
    for unit in cast.units:
        found, stored = summary.unit_roots[unit], stored_roots.get(unit, "none")
        if len(found) != 1 or not found[0]:
            yield f"the holders of {unit} did not end on one state root ({_shown(found)})"
        elif stored != found[0]:
            yield f"{unit} of the last checkpoint has root {stored[:8]}, not its holders'"
    if not cast.one_round:
        yield from _broken_promises_of_a_whole_run(summary, went_on=went_on, is_loss_judged=cast.is_loss_judged)


def _broken_promises_of_a_whole_run(summary: DemoSummary, *, went_on: bool, is_loss_judged: bool) -> Iterator[str]:
    """Those that one round cannot keep: on the loss, and on the killed peer."""
    end, pairs = summary.heldout_loss_end, summary.heldout_loss_pairs
    if end is None or pairs is None:
        yield "the held-out loss of the model or of the pair model is missing"
    elif is_loss_judged:
        for goal, name in ((HELDOUT_GOAL_NATS, "the goal"), (pairs, "the pair model")):
            if end >= goal:
                yield f"held-out loss ended at {end:.3f} nats per byte, not below {goal:.3f} of {name}"
    if summary.rejoin_s is None:
        yield "the killed peer was not counted again"
    if not went_on:
        yield f"no round was committed while peer {VICTIM} was dead: the others did not go on without it"


def _shown(roots: Collection[str]) -> str:
    return ", ".join(root[:8] or "none" for root in roots) or "no reports"
