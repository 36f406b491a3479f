"""What the owner of synced steps and its replicas say to each other, beside the words of a lane; bounds are checked as there.

A synced group is called by a lane's number, and has one time line: a point of the run names its weights. The owner is its keeper.
Calls go between the owner and each replica; micro-batches and what comes of them, and sums of a stage's replicas, go on streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Final

from protocol.errors import LocalProtocolError
from protocol.ids import HASH_BYTES, PeerId
from protocol.pipeline.messages.lane_messages import (
    MAX_COPY_BYTES,
    MAX_PASSED_BYTES,
    require_parcel,
    require_square,
    require_where,
)
from protocol.pipeline.stage_machine import Point
from protocol.pipeline.synced_routing import Work
from protocol.received import require
from protocol.rounds.messages.bounds import require_tokens
from protocol.tensors.stage_schema import MAX_STAGES

MAX_MICRO_BATCHES: Final = 2048
"""Of a synced step: all of their numbers, three bytes each, fit into one message beside MAX_REPLICAS names."""

MAX_REPLICAS: Final = 64
"""Of one stage."""


def _require_stage(stage: int) -> None:
    require(0 <= stage < MAX_STAGES, f"stage {stage}", f"less than {MAX_STAGES}")


def _require_number(number: int) -> None:
    require(0 <= number < MAX_MICRO_BATCHES, f"micro-batch {number}", f"less than {MAX_MICRO_BATCHES}")


def _require_numbers(numbers: Sequence[int]) -> None:
    is_rising = all(before < after for before, after in pairwise(numbers))
    is_within = not numbers or (numbers[0] >= 0 and numbers[-1] < MAX_MICRO_BATCHES)
    require(is_rising and is_within, f"{len(numbers)} micro-batches", f"rising numbers below {MAX_MICRO_BATCHES}")


def _require_peers(peers: Sequence[PeerId]) -> None:
    is_each_once = len(peers) <= MAX_REPLICAS and len(set(peers)) == len(peers)
    require(is_each_once, f"{len(peers)} replicas", f"at most {MAX_REPLICAS}, each once")


@dataclass(frozen=True, slots=True)
class SyncedBegin:
    """Owner to a peer: serve this stage from this point on.

    Attributes:
        donors: replicas that hold the stage as it is at this point; none where it begins with the run's newest parameters.
    """

    lane: int
    at: Point
    stage: int
    donors: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_stage(self.stage)
        _require_peers(self.donors)


@dataclass(frozen=True, slots=True)
class SyncedReady:
    """A replica holds the weights of this point.

    Attributes:
        weights_hash: SHA-256 of its parameters' bytes where a round begins; none within one.
    """

    lane: int
    at: Point
    weights_hash: bytes = b""

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        require(len(self.weights_hash) in (0, HASH_BYTES), f"a hash of {len(self.weights_hash)} bytes", "none or 32")


@dataclass(frozen=True, slots=True)
class SyncedBeside:
    """Owner: these replicas serve your stage now, yourself among them; sums go from each to all others."""

    lane: int
    peers: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        require_where(self.lane, 0)
        _require_peers(self.peers)


@dataclass(frozen=True, slots=True)
class SyncedGrant:
    """Owner: your backward pass of this micro-batch counts; add it to your sum."""

    lane: int
    at: Point
    number: int

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_number(self.number)


@dataclass(frozen=True, slots=True)
class SyncedDrop:
    """Owner: your backward pass of this micro-batch does not count."""

    lane: int
    at: Point
    number: int

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_number(self.number)


@dataclass(frozen=True, slots=True)
class SyncedAgain:
    """Owner: forget your sum, and all that you keep of this step."""

    lane: int
    at: Point
    reason: str

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)


@dataclass(frozen=True, slots=True)
class SyncedTellSum:
    """Owner: bring your sum over exactly these micro-batches to all others of your stage."""

    lane: int
    at: Point
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_numbers(self.numbers)


@dataclass(frozen=True, slots=True)
class SyncedSummed:
    """A replica's sum over these micro-batches is with all others of its stage."""

    lane: int
    at: Point
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_numbers(self.numbers)


@dataclass(frozen=True, slots=True)
class SyncedNotSummed:
    """A replica has others in its sum than it was asked for: it has begun again."""

    lane: int
    at: Point
    reason: str

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)


@dataclass(frozen=True, slots=True)
class SyncedPart:
    """One replica's sum, and what is in it."""

    peer: PeerId
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        _require_numbers(self.numbers)


@dataclass(frozen=True, slots=True)
class SyncedCommit:
    """Owner: your stage's gradient of this step is these sums, added up in this order; say its square (LaneSquare)."""

    lane: int
    at: Point
    parts: tuple[SyncedPart, ...]

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_peers([part.peer for part in self.parts])
        _require_numbers(sorted(number for part in self.parts for number in part.numbers))


@dataclass(frozen=True, slots=True)
class SyncedStep:
    """Owner: take the step with the mean over so many micro-batches, clipped by the whole gradient's norm.

    Attributes:
        whole_square: of all stages' summed gradients, before they are divided.
    """

    lane: int
    at: Point
    whole_square: float
    counted: int

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        require_square(self.whole_square)
        require(0 <= self.counted <= MAX_MICRO_BATCHES, f"{self.counted} micro-batches", f"to {MAX_MICRO_BATCHES}")


@dataclass(frozen=True, slots=True)
class SyncedBring:
    """Owner: the round's steps are done; bring your stage into the round with so many of its tokens, and say when it is over."""

    lane: int
    at: Point
    tokens: int

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        require_tokens(self.tokens)


SyncedFromOwner = (
    SyncedBegin
    | SyncedBeside
    | SyncedGrant
    | SyncedDrop
    | SyncedAgain
    | SyncedTellSum
    | SyncedCommit
    | SyncedStep
    | SyncedBring
)
SyncedFromReplica = SyncedReady | SyncedSummed | SyncedNotSummed
SyncedMessage = SyncedFromOwner | SyncedFromReplica
"""What is said in calls."""


@dataclass(frozen=True, slots=True)
class SyncedAsk:
    """Owner to a replica: do this work. The bytes that it needs follow as boundary messages (averaging/codecs/boundary.py).

    Attributes:
        forward_bytes: of the activations, which come first; 0 at the first stage, which has the text.
        backward_bytes: of their gradients; 0 for a forward pass and at the last stage, which has the loss.
    """

    lane: int
    at: Point
    stage: int
    number: int
    is_backward: bool
    forward_bytes: int
    backward_bytes: int

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_stage(self.stage)
        _require_number(self.number)
        is_bounded = 0 <= self.forward_bytes <= MAX_PASSED_BYTES and 0 <= self.backward_bytes <= MAX_PASSED_BYTES
        require(
            is_bounded, f"{self.forward_bytes} and {self.backward_bytes} bytes to come", f"at most {MAX_PASSED_BYTES}"
        )

    @property
    def work(self) -> Work:
        """What is asked for."""
        return Work(self.number, self.stage, self.is_backward)


@dataclass(frozen=True, slots=True)
class SyncedReply:
    """A replica to the owner: what came of its work follows, as a boundary message.

    Attributes:
        num_bytes: 0 where nothing goes on, at the first stage's backward pass, and where the work was not done.
        declined: why it was not done; empty where it was.
        is_spoilt: what came of it is not finite: the micro-batch itself is bad.
        loss_nats: mean over the micro-batch, of the last stage, nats a token, of held-out text nats a byte; 0 elsewhere.
    """

    lane: int
    at: Point
    stage: int
    number: int
    is_backward: bool
    num_bytes: int
    declined: str = ""
    is_spoilt: bool = False
    loss_nats: float = 0.0

    def __post_init__(self) -> None:
        require_where(self.lane, 0, self.at)
        _require_stage(self.stage)
        _require_number(self.number)
        is_bounded = 0 <= self.num_bytes <= (0 if self.declined or self.is_spoilt else MAX_PASSED_BYTES)
        require(is_bounded, f"{self.num_bytes} bytes to come", f"at most {MAX_PASSED_BYTES}, none without a result")
        require(isfinite(self.loss_nats), f"a loss of {self.loss_nats}", "a number")

    @property
    def work(self) -> Work:
        """What was asked for."""
        return Work(self.number, self.stage, self.is_backward)


@dataclass(frozen=True, slots=True)
class SyncedSum:
    """A replica to another of its stage: its summed gradients over these micro-batches follow."""

    lane: int
    at: Point
    numbers: tuple[int, ...]
    num_bytes: int

    def __post_init__(self) -> None:
        require_parcel(self.lane, 0, self.at, self.num_bytes, MAX_COPY_BYTES)
        _require_numbers(self.numbers)


SyncedParcel = SyncedAsk | SyncedReply | SyncedSum
"""What stands before what follows on a stream."""


def as_numbers(numbers: frozenset[int]) -> tuple[int, ...]:
    """As messages have them.

    Raises:
        LocalProtocolError: more than a step has.
    """
    if len(numbers) > MAX_MICRO_BATCHES:
        raise LocalProtocolError(f"{len(numbers)} micro-batches", f"at most {MAX_MICRO_BATCHES}")
    return tuple(sorted(numbers))
