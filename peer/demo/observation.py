"""What the demo can see: the JSON that host and peers serve over HTTP, as typed values. Unknown keys are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PeerRow(_Read):
    """One peer as the host sees it."""

    peer: str
    name: str = ""
    tokens_per_s: float = 0.0
    tokens_ready: int = 0
    loss: float | None = None
    last_seen_s: float | None = None
    state: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    state_root: str = ""
    state_commit: str = ""


class Omission(_Read):
    """A peer left out of a round, and why."""

    peer: str
    reason: str = ""


class RoundRow(_Read):
    """One committed round; `weights` are the members' shares, summing to 1."""

    index: int
    commit: str
    members: tuple[str, ...] = ()
    weights: dict[str, float] = {}
    coverage: float | None = None
    omitted: tuple[Omission, ...] = ()
    unix_s: float = 0.0


class HeldoutPoint(_Read):
    """Held-out loss in nats per byte of the committed model of round `index`."""

    index: int
    tokens: int
    nats: float


class TrainPoint(_Read):
    """Mean training loss in nats per byte at this many committed tokens."""

    tokens: int
    nats: float


class CheckpointRow(_Read):
    """One checkpoint on the host's disk."""

    index: int
    commit: str
    root: str
    path: str
    unix_s: float = 0.0


class UnitRow(_Read):
    """A unit beside the spine that a peer holds."""

    unit: str
    index: int = 0
    holders: int = 0
    state_root: str = ""


class CheckpointFile(_Read):
    """What a checkpoint's own manifest says of its units, the trunk first; None for a run of one unit."""

    units: tuple[UnitRow, ...] | None = None


class Baselines(_Read):
    """What a compressor and a pair-frequency model reach on the same held-out text."""

    zlib_bits_per_byte: float
    pairs_nats_per_byte: float


class HostStatus(_Read):
    """The host's /api/status."""

    phase: str
    reason: str = ""
    head: str = ""
    index: int = 0
    total_tokens: int = 0
    target_total_tokens: int = 0
    eta_s: float | None = None
    peers: tuple[PeerRow, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    heldout: tuple[HeldoutPoint, ...] = ()
    heldout_experts: dict[str, tuple[HeldoutPoint, ...]] = {}
    train_loss: tuple[TrainPoint, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    yardsticks: Baselines | None = None


class PeerReport(_Read):
    """A peer's own /status.json, also left in `final_status.json` when it exits."""

    peer: str
    name: str = ""
    state: str = ""
    reason: str = ""
    unit: str = ""
    head: str = ""
    index: int = 0
    state_root: str = ""
    state_commit: str = ""
    worker_state: str = ""
    tokens_per_s: float = 0.0
    tokens_ready: int = 0
    loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    rounds_counted: int = 0
    first_counted_unix_s: float | None = None
    units: tuple[UnitRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything seen in one look.

    Attributes:
        host: None while the host does not answer.
        reports: the newest report of each peer by its number, from 1; absent while it does not answer.
        peer_ids: the peers' ids by number, once known.
        exits: exit codes of the peers that have ended, by number.
        rounds: every committed round seen so far, by index.
        heldout: every held-out point seen so far, by index.
    """

    host: HostStatus | None
    reports: dict[int, PeerReport]
    peer_ids: dict[int, str]
    exits: dict[int, int]
    rounds: dict[int, RoundRow] = field(default_factory=dict)
    heldout: dict[int, HeldoutPoint] = field(default_factory=dict)
