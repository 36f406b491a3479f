"""The channel between the daemon and its training process: length-prefixed JSON over a socket pair, vectors in shared memory.

No pickle, no multiprocessing. The shared mapping has three areas of N float32. A starting worker reads the anchor from `IN`, and the
daemon lays nothing else there, as a worker may start at any moment. The worker writes snapshots to `OUT`; the daemon makes shifts of
them there. unit_rooms.py decides where other values lie. An area takes memory only between its write and its last use: then the
daemon frees the pages if the system can.
"""

from __future__ import annotations

import json
import mmap
import select
import socket
import struct
from base64 import b64decode, b64encode
from contextlib import suppress
from enum import IntEnum
from typing import Annotated, Final, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from peer.training.plan.card_report import CardReport
from protocol.errors import LocalProtocolError

_LENGTH: Final = struct.Struct("<I")
MAX_MESSAGE_BYTES: Final = 1 << 27
"""A plan names the path of each shard of the text."""

_PART_BYTES: Final = 1 << 20
_TOGETHER_BYTES: Final = 1 << 18
_FREED_BYTES: Final = 1 << 24
"""Of shared memory that are freed at a time: the call holds the interpreter's lock."""

_LONGEST_POLL_S: Final = 1e6
"""The system counts milliseconds in 31 bits."""


Op = Literal[
    "load",
    "snapshot",
    "shift",
    "evaluate",
    "evaluate_prose",
    "score",
    "slow",
    "pause",
    "resume",
    "profile",
    "audit_keep",
    "audit_redo",
    "audit_forget",
    "stop",
]


class Area(IntEnum):
    """The areas of the shared mapping."""

    IN = 0
    OUT = 1
    ASIDE = 2


def _as_base64(data: bytes) -> str:
    return b64encode(data).decode()


def _from_base64(data: object) -> object:
    return b64decode(data, validate=True) if isinstance(data, str) else data


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScoreOrder(_Message):
    """Sequences of tokens to score with other parameters.

    sequences: each of 2 to `context_tokens + 1` tokens, or of at least one for an answer. num_scored: of each, how many of its last
    tokens count towards its log-likelihood; empty where tokens are to be chosen. num_answer_tokens: how many likeliest tokens to
    choose after each sequence at most, below `vocab_size`, until the token `end`.
    """

    sequences: tuple[tuple[int, ...], ...]
    num_scored: tuple[int, ...] = ()
    num_answer_tokens: int = 0
    vocab_size: int = 0
    end: int = 0


class Scored(_Message):
    """The result for each sequence of an order: the log-likelihood in nats, None where it is not finite; or the tokens chosen,
    with `end` where it was reached. took_s: for which training stood still, without the wait for its last step; 0 if not known.
    """

    log_likelihoods: tuple[float | None, ...] = ()
    answers: tuple[tuple[int, ...], ...] = ()
    took_s: Annotated[float, Field(ge=0.0)] = 0.0


class ProfileOrder(_Message):
    """Steps to record, the folder for the files, and the number of the request that asked for it."""

    num_steps: Annotated[int, Field(ge=1, le=1000)]
    folder: str
    request: str


class RedoOrder(_Message):
    """Steps of another peer to take again from a state that was kept.

    Attributes:
        schedule_tokens: the run's tokens at that state.
        peer, first_step, num_steps: the peer, the place in its data, and the number of steps.
        turn_steps: most steps to take now.
        spans: values [begin, stop) of the flat vector to answer once all steps are taken.
    """

    schedule_tokens: int
    peer: str
    first_step: int
    num_steps: int
    turn_steps: int
    spans: tuple[tuple[int, int], ...]


class Redone(_Message):
    """The answer to an order of an audit.

    Attributes:
        num_left: steps that are still to be taken.
        delta: the values of the spans, joined, float32, once no step is left; in base64 on the wire.
        took_s: seconds of the turn, for which training stood still, without the wait for its last step.
        problem: why the order cannot be obeyed; then nothing else counts. Empty if it was.
    """

    num_left: int = 0
    took_s: Annotated[float, Field(ge=0.0)] = 0.0
    delta: Annotated[bytes, PlainSerializer(_as_base64, when_used="json"), BeforeValidator(_from_base64)] = b""
    problem: str = ""


class Command(_Message):
    """A command for the worker. It answers with a Reply of the same number at the next step boundary.

    number: position among the commands of a worker's life; set when it is sent. op: load (theta <- values), snapshot (OUT <-
    theta), shift (theta <- theta + values), evaluate (their loss), evaluate_prose, score (by them), pause, resume, slow (train at
    1 / factor), profile (record the next steps, as `profile` says), audit_keep (copy the state with which the steps after the next
    load or shift begin), audit_redo (take others' steps, as `redo` says), audit_forget (free all that), stop. The first three
    concern one unit, in its own part of the areas. `expert` is the expert to evaluate, None for all held here together. `kept`
    lists parts [begin, stop) of the unit's theta of which a shift keeps only the given share. After a snapshot no step is taken
    until the next shift or load, for `still_s` at most. A shift that says `still_s` ends no such wait. `area` holds the values of a
    load or a shift, `areas` those of each unit to be evaluated; none if all lie in `IN`.
    """

    kind: Literal["command"] = "command"
    number: int = 0
    op: Op
    unit: int = 0
    schedule_tokens: int = 0
    credited_tokens: int = 0
    factor: float = 1.0
    kept: tuple[tuple[int, int, float], ...] = ()
    still_s: float = 0.0
    expert: int | None = None
    area: Area = Area.IN
    areas: tuple[Area, ...] = ()
    score: ScoreOrder | None = None
    profile: ProfileOrder | None = None
    redo: RedoOrder | None = None

    def numbered(self, number: int) -> Command:
        """A copy with its number, as it is sent to the worker."""
        return self.model_copy(update={"number": number})


class Reply(_Message):
    """The command is done. `loss_nats` is None if the command asks for no loss, or if the loss is not finite, because JSON has no
    such number. `does_not_fit` tells that the card's memory is not enough for the evaluation; training goes on.
    """

    kind: Literal["reply"] = "reply"
    number: int
    tokens: int = 0
    num_steps: int = 0
    step: int = 0
    loss_nats: float | None = None
    does_not_fit: bool = False
    scored: Scored | None = None
    redone: Redone | None = None


class Progress(_Message):
    """Sent after each step, and once when the worker is ready. A non-finite loss is sent as None. `tokens_ready` are those of the
    spine, `others_ready` those of the other units. `busy_s` is the duration of the step, 0 if there was none. `card` is the UUID of
    the NVIDIA card that trains, empty for another device. `card_report` tells how it trains. `compile_note` says why layers run
    eagerly although the plan compiles them, `wire_note` why values go a slow way between the cards of one replica. `skipped_steps`
    were not taken in this life, since their gradient was not finite. `source_tokens` are the tokens of each source that this life
    trained on.
    """

    kind: Literal["progress"] = "progress"
    step: int
    tokens_ready: int
    others_ready: tuple[int, ...] = ()
    tokens_trained: int
    loss_nats: float | None
    micro_batch: int
    busy_s: float = 0.0
    card: str | None = None
    compile_note: str = ""
    wire_note: str = ""
    skipped_steps: int = 0
    source_tokens: tuple[int, ...] = ()
    card_report: CardReport | None = None


class OutOfMemory(_Message):
    """The worker ran out of memory at this micro-batch, 0 if there was none yet, and ends.

    is_final: the model does not fit into the allowed memory of the card with any micro-batch, by any plan. others_bytes: of the
    card's memory that other programs hold, 0 if that is not known. card_report: how the card trained. in_evaluation: training itself
    did not run out.
    """

    kind: Literal["out_of_memory"] = "out_of_memory"
    micro_batch: int
    is_final: bool = False
    others_bytes: int = 0
    card_report: CardReport | None = None
    in_evaluation: bool = False


class Failed(_Message):
    """The worker cannot go on, and ends.

    reason: why, as a part of a sentence. is_of_card: the card failed; a new process may work. is_gone: the card itself is lost.
    is_echo: most likely another process of the same replica ended, and this one only saw that.
    """

    kind: Literal["failed"] = "failed"
    reason: str
    is_of_card: bool = False
    is_gone: bool = False
    is_echo: bool = False


Event = Reply | Progress | OutOfMemory | Failed
_EVENTS: Final[TypeAdapter[Event]] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def frame(message: BaseModel) -> bytes:
    """A message with its length as prefix."""
    data = message.model_dump_json().encode()
    return _LENGTH.pack(len(data)) + data


def with_bytes(framed: bytes, follows: bytes) -> tuple[bytes, ...]:
    """A message and the bytes that follow it, as pieces to write in order. Few bytes are joined, because each write wakes the
    reader. Many bytes stay separate, because joining would copy them.
    """
    if len(follows) <= _TOGETHER_BYTES:
        return (framed + follows,)
    return (framed, follows)


def is_readable(channel: socket.socket, within_s: float | None) -> bool:
    """Whether a message or the end of the channel is there, after waiting for it so long at most; None is without limit. A longer
    wait than some days ends earlier.
    """
    waiting = select.poll()  # any descriptor, where `select.select` takes only the first 1024
    waiting.register(channel, select.POLLIN)
    return bool(waiting.poll(None if within_s is None else 1000.0 * min(max(0.0, within_s), _LONGEST_POLL_S)))


def read_message(channel: socket.socket) -> bytes | None:
    """Blocking: the next message, None at the end of the channel.

    Raises:
        LocalProtocolError: a length that neither side writes.
    """
    head = read_exactly(channel, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE_BYTES:
        raise LocalProtocolError(f"a worker message of {length} bytes", f"at most {MAX_MESSAGE_BYTES}")
    return read_exactly(channel, length)


def read_exactly(channel: socket.socket, num_bytes: int) -> bytes | None:
    """Blocking: exactly `num_bytes` bytes, None if the channel ends first."""
    data = bytearray()
    while len(data) < num_bytes:
        try:
            part = channel.recv(min(_PART_BYTES, num_bytes - len(data)))
        except ConnectionResetError:  # the other side ended without reading our message: treat it as the end
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def parse_event(data: bytes) -> Event:
    """An event of the worker.

    Raises:
        LocalProtocolError: not an event.
    """
    try:
        return _EVENTS.validate_python(json.loads(data))
    except (ValidationError, ValueError) as error:
        raise LocalProtocolError(f"a worker event that cannot be read ({error})", "an event") from error


class SharedVectors:
    """The areas: float32 vectors of N in one mapping, each (N,) and writable, shared by both processes."""

    def __init__(self, descriptor: int, num_elements: int) -> None:
        self._num_elements = num_elements
        self._area_bytes = _area_bytes(num_elements)
        self._mapping = mmap.mmap(descriptor, mapping_bytes(num_elements))
        whole = torch.frombuffer(memoryview(self._mapping), dtype=torch.float32)
        self._areas = whole.view(len(Area), self._area_bytes // 4)[:, :num_elements]

    def view(self, area: Area) -> torch.Tensor:
        """The area itself. Writes are visible on both sides."""
        return self._areas[area]

    def read(self, area: Area) -> torch.Tensor:
        """A copy of an area."""
        return self._areas[area].clone()

    def write(self, area: Area, values_N: torch.Tensor) -> None:
        """Fill an area."""
        self._areas[area].copy_(values_N)

    def part(self, area: Area, span: tuple[int, int]) -> torch.Tensor:
        """The values [begin, stop) of an area, as `view`."""
        return self._areas[area, span[0] : span[1]]

    def empty(self, area: Area, span: tuple[int, int] | None = None) -> None:
        """Free the memory of an area, or of the values [begin, stop) of it, until the next write. Its content is undefined until
        then. Values that share a page with others keep it.
        """
        begin_bytes, stop_bytes = 0, self._area_bytes
        if span is not None:
            begin_bytes = -(-4 * span[0] // mmap.PAGESIZE) * mmap.PAGESIZE
            stop_bytes = (
                self._area_bytes if span[1] == self._num_elements else 4 * span[1] // mmap.PAGESIZE * mmap.PAGESIZE
            )
        free_pages(self._mapping, area * self._area_bytes + begin_bytes, area * self._area_bytes + stop_bytes)

    def put_down(self) -> None:
        """Drop this process's mapping of the pages, so that they do not count as its memory. The content stays for the other
        process.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)


def free_pages(mapping: mmap.mmap, begin: int, stop: int) -> None:
    """Free the shared memory of the bytes [begin, stop), in whole pages, if the system can. They are 0 then. Other threads get their
    turn between the pieces.
    """
    if hasattr(mmap, "MADV_REMOVE"):
        with suppress(OSError):  # the file system cannot do it
            for place in range(begin, stop, _FREED_BYTES):
                mapping.madvise(mmap.MADV_REMOVE, place, min(_FREED_BYTES, stop - place))


def mapping_bytes(num_elements: int) -> int:
    """Length of the mapping."""
    return len(Area) * _area_bytes(num_elements)


def _area_bytes(num_elements: int) -> int:
    """Rounded up to whole pages, so that each area can be freed by itself."""
    return -(-4 * num_elements // mmap.PAGESIZE) * mmap.PAGESIZE
