"""Messages between the members of a lane and its keeper. Every bound is checked when a message is made.

Calls go between the keeper and each member. Large data goes from member to member on streams: activations to the next stage,
gradients to the previous one, snapshots to a neighbour. Each stream begins with a `LaneParcel`, which announces what follows
before a byte of it is read. Nothing here is signed: connections authenticate the other end, and no message is forwarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

from protocol.ids import PeerId, RunId
from protocol.pipeline.micro_batch import MicroBatch
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.received import require
from protocol.rounds.messages.bounds import require_tokens
from protocol.tensors.stage_schema import MAX_STAGES

MAX_ROUND: Final = 1 << 40
MAX_STEP: Final = 1 << 20
"""Inner steps of a round. With MAX_ROUND, a step counted over the whole run fits a micro-batch's identity."""

MAX_PASSED_BYTES: Final = (1 << 30) + 4096
"""Activations of a micro-batch, as the largest boundary message."""

MAX_COPY_BYTES: Final = 1 << 40
"""A stage's parameters and moments."""

_LARGEST: Final = (1 << 32) - 1


def require_where(lane: int, epoch: int, at: Point | None = None) -> None:
    """Check a lane, an epoch and a point that a run can reach. Raises RemoteProtocolError, as the other checks here."""
    require(
        0 <= lane <= _LARGEST and 0 <= epoch <= _LARGEST, f"lane {lane}, time line {epoch}", "whole numbers of 32 bits"
    )
    if at is not None:
        is_point = 0 <= at.round <= MAX_ROUND and 0 <= at.step <= MAX_STEP
        require(is_point, f"step {at.step} of round {at.round}", f"at most {MAX_STEP} of at most {MAX_ROUND}")


def _require_members(members: Sequence[PeerId]) -> None:
    is_each_once = 1 <= len(members) <= MAX_STAGES and len(set(members)) == len(members)
    require(is_each_once, f"a lane of {len(members)} members", f"1 to {MAX_STAGES}, each once")


def require_square(square: float) -> None:
    """Accept non-finite values: they stand for a gradient that is not finite, and all stages skip that step."""
    require(square >= 0.0 or isnan(square), f"a square of {square}", "at least 0")


def require_parcel(lane: int, epoch: int, at: Point, num_bytes: int, most_bytes: int) -> None:
    """Check as `require_where`, and the number of bytes to come."""
    require_where(lane, epoch, at)
    require(1 <= num_bytes <= most_bytes, f"{num_bytes} bytes to come", f"1 to {most_bytes}")


@dataclass(frozen=True, slots=True)
class LaneBegin:
    """Keeper to its members, in the order of their stages: the lane begins at this point of the run."""

    lane: int
    epoch: int
    at: Point
    members: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)
        _require_members(self.members)


@dataclass(frozen=True, slots=True)
class LaneSquare:
    """A member is done with the passes of the step that begins at this point; the square of its stage's gradient."""

    lane: int
    epoch: int
    at: Point
    square: float

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)
        require_square(self.square)


@dataclass(frozen=True, slots=True)
class LaneStep:
    """Keeper: all are done; take the step, clipped by the whole gradient's norm."""

    lane: int
    epoch: int
    at: Point
    whole_square: float

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)
        require_square(self.whole_square)


@dataclass(frozen=True, slots=True)
class LaneCopied:
    """A member and its neighbour hold its snapshot of this point."""

    lane: int
    epoch: int
    at: Point

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)


@dataclass(frozen=True, slots=True)
class LaneKeep:
    """Keeper: two peers hold every stage's snapshot of this point. Older ones may be deleted."""

    lane: int
    epoch: int
    at: Point

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)


@dataclass(frozen=True, slots=True)
class LaneBack:
    """Keeper: these are the members now, in the order of their stages. All go back to the snapshot of this point.

    Attributes:
        epoch: of the timeline that begins there. Messages of any other epoch are refused from now on.
        counted: inner steps of the point's round whose tokens count.
    """

    lane: int
    epoch: int
    at: Point
    counted: int
    members: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)
        _require_members(self.members)
        require(0 <= self.counted <= self.at.step, f"{self.counted} steps that count", f"at most {self.at.step}")


@dataclass(frozen=True, slots=True)
class LaneLoaded:
    """A member has loaded the snapshot that the lane goes back to, and its neighbour holds it, too."""

    lane: int
    epoch: int

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneLoadFailed:
    """A member cannot get the snapshot that the lane goes back to."""

    lane: int
    epoch: int
    reason: str

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneResume:
    """Keeper: all members have loaded their snapshots."""

    lane: int
    epoch: int

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """Keeper: the lane is dissolved. Its work of the round up to this point counts this number of tokens, or none.

    Attributes:
        holders: the peers that contribute each stage's snapshot of that point to the round; empty if no token counts.
    """

    lane: int
    epoch: int
    at: Point
    tokens: int
    holders: tuple[PeerId, ...]
    reason: str

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)
        require_tokens(self.tokens)
        is_whole = 1 <= len(self.holders) <= MAX_STAGES if self.tokens else not self.holders
        require(is_whole, f"{self.tokens} tokens of {len(self.holders)} stages", "somebody for each stage, or nothing")


@dataclass(frozen=True, slots=True)
class LanePing:
    """Keeper to a member: a heartbeat of both, since it is answered.

    Attributes:
        num_lanes: number of lanes that the keeper keeps now; the next round expects that many shares. 0 if it does not say.
    """

    lane: int
    epoch: int
    num_lanes: int = 0

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)
        require(0 <= self.num_lanes <= _LARGEST, f"{self.num_lanes} lanes", "a whole number of 32 bits")


@dataclass(frozen=True, slots=True)
class LaneLeave:
    """A member says goodbye or cannot continue: its seat is free."""

    lane: int
    epoch: int
    reason: str

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneHere:
    """A member to its silent keeper: is this lane kept, with this member? The answer is a refusal if it is not. A dead process
    refuses the connection.
    """

    lane: int
    epoch: int

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneSpare:
    """A peer to a keeper: it serves no lane, and could serve this stage. The answer is a refusal if no lanes are kept.

    Attributes:
        index: of the newest commit of its stage, which is the number of its rounds so far.
    """

    stage: int
    index: int

    def __post_init__(self) -> None:
        require(0 <= self.stage < MAX_STAGES, f"stage {self.stage}", f"less than {MAX_STAGES}")
        require(0 <= self.index <= MAX_ROUND, f"round {self.index}", f"at most {MAX_ROUND}")


@dataclass(frozen=True, slots=True)
class LaneClaim:
    """A peer that receives a stage's share of a dissolved lane (`LaneGift`) asks the lane's keeper whether it was the giver's to
    give, with this number of tokens. The answer is a refusal if it was not, or if another peer received it first.
    """

    lane: int
    at: Point
    stage: int
    tokens: int
    giver: PeerId

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        require(0 <= self.stage < MAX_STAGES, f"stage {self.stage}", f"less than {MAX_STAGES}")
        require_tokens(self.tokens)


FromKeeper = LaneBegin | LaneStep | LaneKeep | LaneBack | LaneResume | LaneEnd | LanePing
FromMember = LaneSquare | LaneCopied | LaneLoaded | LaneLoadFailed | LaneLeave | LaneHere
LaneMessage = FromKeeper | FromMember | LaneSpare | LaneClaim
"""Messages sent in calls."""


@dataclass(frozen=True, slots=True)
class LanePassed:
    """A micro-batch's activations or their gradient follow, as a boundary message of this many bytes
    (averaging/codecs/rows/boundary.py).
    """

    lane: int
    epoch: int
    at: Point
    number: int
    is_backward: bool
    num_bytes: int

    def __post_init__(self) -> None:
        require_parcel(self.lane, self.epoch, self.at, self.num_bytes, MAX_PASSED_BYTES)
        require(0 <= self.number <= _LARGEST, f"micro-batch {self.number}", "a whole number of 32 bits")

    @property
    def work(self) -> Pass:
        """The receiver's pass that they are for."""
        return Pass(self.number, self.is_backward)


@dataclass(frozen=True, slots=True)
class LaneCopy:
    """A stage's snapshot of this point follows, of this many bytes."""

    lane: int
    epoch: int
    at: Point
    stage: int
    num_bytes: int

    def __post_init__(self) -> None:
        require_parcel(self.lane, self.epoch, self.at, self.num_bytes, MAX_COPY_BYTES)
        require(0 <= self.stage < MAX_STAGES, f"stage {self.stage}", f"less than {MAX_STAGES}")


@dataclass(frozen=True, slots=True)
class LaneFetch:
    """Asks for a stage's snapshot of this point. The answer is LaneCopy, or a LaneAnswer with the reason for refusing."""

    lane: int
    epoch: int
    at: Point
    stage: int

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)
        require(0 <= self.stage < MAX_STAGES, f"stage {self.stage}", f"less than {MAX_STAGES}")


@dataclass(frozen=True, slots=True)
class LaneAnswer:
    """Why a parcel or a request is refused; empty if it is accepted.

    Attributes:
        num_lanes: number of lanes kept, in the answer to a spare, as in LanePing.
    """

    reason: str
    num_lanes: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.num_lanes <= _LARGEST, f"{self.num_lanes} lanes", "a whole number of 32 bits")


@dataclass(frozen=True, slots=True)
class LaneGift:
    """A stage's share of a dissolved lane, for a holder of that stage to contribute to the round. That many bytes follow, its
    parameters in float32. The giver kept the second copy of the lost member's stage.
    """

    lane: int
    at: Point
    stage: int
    tokens: int
    num_bytes: int

    def __post_init__(self) -> None:
        require_parcel(self.lane, 0, self.at, self.num_bytes, MAX_COPY_BYTES)
        require(0 <= self.stage < MAX_STAGES, f"stage {self.stage}", f"less than {MAX_STAGES}")
        require_tokens(self.tokens)


LaneParcel = LanePassed | LaneCopy | LaneFetch | LaneAnswer | LaneGift
"""The header of data on a stream, or the answer to it."""


def lane_batch(run_id: RunId, lane: int, epoch: int, at: Point, number: int, inner_steps: int) -> MicroBatch:
    """The identity of a lane's micro-batch. Its weights are those of this step in this epoch. After the lane has gone back,
    micro-batches of the earlier epoch have another version.
    """
    return MicroBatch(run_id, lane, at.round * inner_steps + at.step, number, epoch)
