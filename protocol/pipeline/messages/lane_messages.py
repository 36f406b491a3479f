"""What the members of a lane and its keeper say to each other; every bound is checked when a message is made.

Calls go between the keeper and each member. What is large goes from member to member on streams: activations to the next stage, their
gradients to the one before, snapshots to a neighbour. Each begins with one of `LaneParcel`, which says what follows before a byte of
it is read. Nothing here is signed: it is said on connections that know who is at the other end, and handed on by nobody.
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
"""Inner steps of a round: with MAX_ROUND a step counted over the whole run fits a micro-batch's identity."""

MAX_PASSED_BYTES: Final = (1 << 30) + 4096
"""Activations of a micro-batch, as the largest boundary message."""

MAX_COPY_BYTES: Final = 1 << 40
"""A stage's parameters and moments."""

_LARGEST: Final = (1 << 32) - 1


def require_where(lane: int, epoch: int, at: Point | None = None) -> None:
    """A lane, a time line and a point that a run can come to. Raises RemoteProtocolError, as the others here."""
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
    """Not finite is a gradient that is not: all stages leave that step out."""
    require(square >= 0.0 or isnan(square), f"a square of {square}", "at least 0")


def require_parcel(lane: int, epoch: int, at: Point, num_bytes: int, most_bytes: int) -> None:
    """As `require_where`, and so many bytes to come."""
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
    """A member's snapshot of this point lies with it and with a neighbour."""

    lane: int
    epoch: int
    at: Point

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)


@dataclass(frozen=True, slots=True)
class LaneKeep:
    """Keeper: every stage's snapshot of this point lies in two places; older ones may go."""

    lane: int
    epoch: int
    at: Point

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)


@dataclass(frozen=True, slots=True)
class LaneBack:
    """Keeper: these are the members now, in the order of their stages; all go back to the snapshot of this point.

    Attributes:
        epoch: of the time line that begins there; whatever names another is refused from now on.
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
    """A member cannot have the snapshot that the lane goes back to."""

    lane: int
    epoch: int
    reason: str

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneResume:
    """Keeper: all members have loaded theirs."""

    lane: int
    epoch: int

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """Keeper: the lane is no more; its work of the round up to this point counts so many tokens, or none.

    Attributes:
        holders: who brings each stage's snapshot of that point into the round; none where no token counts.
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
    """Keeper to a member: a sign of life of both, since it is answered.

    Attributes:
        num_lanes: that the keeper keeps now: of so many the next round is; 0 where it does not say.
    """

    lane: int
    epoch: int
    num_lanes: int = 0

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)
        require(0 <= self.num_lanes <= _LARGEST, f"{self.num_lanes} lanes", "a whole number of 32 bits")


@dataclass(frozen=True, slots=True)
class LaneLeave:
    """A member says goodbye, or cannot go on: its place is free."""

    lane: int
    epoch: int
    reason: str

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneHere:
    """A member to its keeper, which is silent: is this lane kept, with this member? The answer is a refusal where it is not, and a
    process that is gone refuses the connection.
    """

    lane: int
    epoch: int

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneSpare:
    """A peer to who keeps lanes: it serves none, and could serve this stage; the answer is a refusal where no lanes are kept.

    Attributes:
        index: of the newest commit of its stage: the round that it stands before.
    """

    stage: int
    index: int

    def __post_init__(self) -> None:
        require(0 <= self.stage < MAX_STAGES, f"stage {self.stage}", f"less than {MAX_STAGES}")
        require(0 <= self.index <= MAX_ROUND, f"round {self.index}", f"at most {MAX_ROUND}")


@dataclass(frozen=True, slots=True)
class LaneClaim:
    """Who is given a stage's part of a lane that is no more (`LaneGift`) to the lane's keeper: was it this peer's to give, with so
    many tokens? The answer is a refusal where it was not, or where another was given it before.
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
"""What is said in calls."""


@dataclass(frozen=True, slots=True)
class LanePassed:
    """A micro-batch's activations or their gradient follow, as a boundary message of so many bytes
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
        """Which pass of the receiver they are for."""
        return Pass(self.number, self.is_backward)


@dataclass(frozen=True, slots=True)
class LaneCopy:
    """A stage's snapshot of this point follows, so many bytes."""

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
    """Asks for a stage's snapshot of this point; LaneCopy is the answer, or a LaneAnswer why not."""

    lane: int
    epoch: int
    at: Point
    stage: int

    def __post_init__(self) -> None:
        require_where(self.lane, self.epoch, self.at)
        require(0 <= self.stage < MAX_STAGES, f"stage {self.stage}", f"less than {MAX_STAGES}")


@dataclass(frozen=True, slots=True)
class LaneAnswer:
    """Why what was brought or asked for is refused; empty where it is taken.

    Attributes:
        num_lanes: that are kept where a spare was heard, as in LanePing.
    """

    reason: str
    num_lanes: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.num_lanes <= _LARGEST, f"{self.num_lanes} lanes", "a whole number of 32 bits")


@dataclass(frozen=True, slots=True)
class LaneGift:
    """A stage's part of a lane that is no more, for somebody who holds that stage to bring into the round: so many bytes follow, its
    parameters in float32. Who was lost held the stage, and who gives it kept the second copy.
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
"""What stands before what follows on a stream, and what answers it."""


def lane_batch(run_id: RunId, lane: int, epoch: int, at: Point, number: int, inner_steps: int) -> MicroBatch:
    """The identity of a lane's micro-batch. Its weights are those of this step in this time line: after the lane has gone back, what
    belongs to the former one is of another version.
    """
    return MicroBatch(run_id, lane, at.round * inner_steps + at.step, number, epoch)
