"""The interfaces to the outside world that a service may use, as five small protocols.

Each has a real and an in-memory implementation, and both pass the same contract tests (tests/contract). With the in-memory ones a
whole swarm runs in virtual time from one seed. A service takes the interfaces it needs as arguments and touches no clock, file,
socket or thread itself.

All methods are called from trio. Nothing here starts anything in a constructor.

Rules: R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from protocol.errors import TemporaryError

if TYPE_CHECKING:
    import torch

    from averaging.network.seams.bulk_address import BulkAddress
    from protocol.errors import PotluckError
    from protocol.ids import PeerId
    from protocol.rounds.messages.lane_parts import LanePart

T = TypeVar("T")

LOG_FRAME_BYTES = 12
"""Most bytes that a log on disk adds to a record."""

MAX_CONTROL_BYTES = 1 << 20
"""Largest request or reply of `Network.call`. A certificate of 64 members is about 12 kB; a chain page is cut to this."""

MAX_FRAME_BYTES = (1 << 20) + 4096
"""Largest frame of a bulk stream: one encoded chunk of at most 1 MiB plus its small header."""


class Way(Enum):
    """The transport that carries a bulk stream."""

    DIRECT = "direct"
    LIBP2P = "libp2p"
    MEMORY = "memory"


class Stream(Protocol):
    """One bulk stream between two peers: frames in order, each at most MAX_FRAME_BYTES, limited by the sender.

    Both sides own their end of the stream and must call `aclose`.
    """

    @property
    def remote(self) -> PeerId:
        """The authenticated peer at the other end."""
        ...

    def count_as(self, unit: str, codec: str) -> None:
        """Count later frames under this unit and codec (`BulkKind`); earlier ones count under neither."""
        ...

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        """Send one frame; waits for a slow reader and for the limiter. `data` may be changed once this returns or raises.

        Args:
            head: first bytes of the frame, before `data`; saves the caller a copy of long data.

        Raises:
            ConnectionReset: the other side reset the stream or is gone.
            LocalProtocolError: head and data are longer than MAX_FRAME_BYTES.
        """
        ...

    async def receive_frame(self) -> bytes | None:
        """The next frame, or None after the other side's clean `aclose`. A cancelled call loses no frame.

        Raises:
            ConnectionReset: the stream was reset.
            RemoteProtocolError: the other side announced a frame longer than MAX_FRAME_BYTES.
        """
        ...

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        """As `receive_frame`, but a read-only view, without a copy if the implementation can avoid it.

        Args:
            place: returns writable memory for a frame of the given length. It raises RemoteProtocolError for an unexpected length,
                after which the stream must be closed. A frame that a cancelled call has begun to receive stays in that call's
                memory.

        Raises:
            ConnectionReset, RemoteProtocolError: as for `receive_frame`, and errors of `place`.
            MachineError: `place` had no memory; close the stream.
        """
        ...

    async def aclose(self) -> None:
        """End the stream; sent frames still arrive."""
        ...


Place = Callable[[int], memoryview]
"""(length of a frame in bytes) -> writable memory of that length. If it raises RemoteProtocolError, the frame is not read."""

CallHandler = Callable[["PeerId", bytes], Awaitable[bytes]]
"""(authenticated sender, request) -> reply. An exception is logged, and the caller gets RemoteProtocolError."""

TookReply = Callable[["PeerId", "bytes | PotluckError"], Awaitable[None]]
"""(peer, its reply or the error that `Network.call` would have raised)."""

StreamHandler = Callable[["PeerId", Stream], Awaitable[None]]
"""Serves one stream opened by a peer. When it returns the stream is closed; when it raises the stream is reset."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One live record of the directory (the DHT), published by a peer under a key until it expires."""

    subkey: str
    value: bytes
    expires_unix_s: float


@dataclass(frozen=True, slots=True)
class BulkKind:
    """Labels of bulk bytes: transport, channel, and the unit and codec if the stream names them."""

    way: Way
    channel: str
    unit: str = ""
    codec: str = ""


@dataclass(frozen=True, slots=True)
class BulkCount:
    """Payload bytes of one kind since start."""

    kind: BulkKind
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class ControlCount:
    """Payload bytes of one channel of the control lane since start; directory traffic is on the channel "directory"."""

    channel: str
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class TrafficCount:
    """Payload bytes since start, by lane. `bulk` splits the bulk lane by kind, `control` the control lane by channel."""

    control_bytes_up: int
    control_bytes_down: int
    bulk_bytes_up: int
    bulk_bytes_down: int
    bulk: tuple[BulkCount, ...] = ()
    control: tuple[ControlCount, ...] = ()

    @property
    def bytes_up(self) -> int:
        """Sent on both lanes."""
        return self.control_bytes_up + self.bulk_bytes_up

    @property
    def bytes_down(self) -> int:
        """Received on both lanes."""
        return self.control_bytes_down + self.bulk_bytes_down


class Network(Protocol):
    """Typed messages between peers, and a directory of expiring records.

    Channels are short names ("round", "bulk"). Set all handlers before the network is started, so that no message arrives at a
    channel that is not served yet; callers of an unserved channel get PeerUnreachable.
    """

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        ...

    def serve_calls(self, channel: str, handler: CallHandler) -> None:
        """Answer `call`s on this channel."""
        ...

    def serve_streams(self, channel: str, handler: StreamHandler) -> None:
        """Answer `open_stream`s on this channel."""
        ...

    async def call(self, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
        """Control lane: one request, one reply, each at most MAX_CONTROL_BYTES. Never waits behind bulk.

        Raises:
            PeerUnreachable: refused; the peer's process is gone.
            ConnectionReset: reset in the middle of the call; the peer is gone, or only the connection is.
            CallTimeout: no reply within `timeout_s`.
            RemoteProtocolError: the handler failed there, or the reply was too long.
        """
        ...

    async def call_each(
        self, peers: Sequence[PeerId], channel: str, request: bytes, *, timeout_s: float, took: TookReply
    ) -> None:
        """`call` several peers concurrently, until each has replied or failed; `took` gets each result at once.

        Raises:
            LocalProtocolError: the request is too long.
        """
        ...

    async def open_stream(self, peer: PeerId, channel: str, *, timeout_s: float) -> Stream:
        """Bulk lane: open a stream; `timeout_s` bounds the opening only, the caller bounds the rest with a cancel scope.

        Raises:
            PeerUnreachable, ConnectionReset, CallTimeout: as for `call`.
        """
        ...

    async def add_addresses(self, addresses: Sequence[str]) -> None:
        """Learn multiaddresses ("/ip4/../tcp/../p2p/..") and try to connect to them; unreachable ones are skipped."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """Our own multiaddresses, each ending in /p2p/<peer id>."""
        ...

    def bulk_addresses(self) -> tuple[BulkAddress, ...]:
        """Our addresses for direct bulk streams, for our directory record; empty if we accept none."""
        ...

    async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
        """Store a directory record of at most 8 KiB; False if no node stored it."""
        ...

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        """The live records under `key`, by subkey; empty if there are none or the directory cannot be reached."""
        ...

    def traffic(self) -> TrafficCount:
        """Payload bytes carried so far."""
        ...


class Clock(Protocol):
    """The two clocks, never mixed: monotonic for deadlines, unix for times that other machines read."""

    def monotonic_s(self) -> float:
        """Seconds that only grow; equal to trio.current_time() in both forms."""
        ...

    def unix_s(self) -> float:
        """Seconds since 1970 as this machine believes."""
        ...


class Offload(Protocol):
    """The only access to threads: really `trio.to_thread`; in the simulation, inline with a virtual cost."""

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """Run a blocking function of no arguments and return its result; `cost_s` is its cost in virtual time."""
        ...


class BegunFile(Protocol):
    """A file that is written part by part and invisible until it is finished. The caller must call `drop` at the end."""

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        ...

    async def add(self, part: bytes | memoryview) -> None:
        """Write the next part; not durable yet. Raises StorageError: disk full or not writable."""
        ...

    async def finish(self) -> None:
        """Make the file durable under its name, as `Storage.write_atomic` of all parts. Raises the same."""
        ...

    def drop(self) -> None:
        """Remove an unfinished file; a finished one stays. Call it while no other method runs. Does not wait."""
        ...


class Storage(Protocol):
    """Durable files below one folder. A write survives a power cut once it has returned; before that it may be lost in whole or in
    part.

    Names are relative, with "/" between parts; letters, digits, ".", "_" and "-" only.
    """

    async def write_atomic(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Replace the file by the parts, joined: temporary name, fsync, rename, fsync of the folder.

        Raises:
            StorageError: disk full or not writable; the old file, if any, is untouched.
        """
        ...

    def begin(self, name: str) -> BegunFile:
        """As `write_atomic`, for bytes that come part by part, so that most are on disk when the last ones come."""
        ...

    async def append(self, name: str, record: bytes) -> None:
        """Append one framed record (length and checksum) and fsync. A torn tail is overwritten from the last good record on."""
        ...

    async def replace_log(self, name: str, records: Iterable[bytes]) -> None:
        """Replace a whole log by these records. After a crash at any moment it is the old log or the new one. Appends wait
        meanwhile. The records are taken once, one after another, perhaps in another thread, so that a long log need not be in memory.

        Raises:
            StorageError: disk full or not writable; the log is the old one, or the new one if only the last step failed.
        """
        ...

    async def read(self, name: str) -> bytes | None:
        """The file's bytes, or None if there is no such file."""
        ...

    async def read_range(self, name: str, offset_bytes: int, num_bytes: int) -> bytes | None:
        """`num_bytes` from `offset_bytes`, fewer at the end of the file; None if there is no such file."""
        ...

    async def read_records(self, name: str) -> Sequence[bytes]:
        """All good records of a log in order; a torn tail is left out and will be overwritten by the next append.

        Raises:
            StorageError: a record before the last is damaged. Later records are promises that must not be forgotten.
        """
        ...

    async def list_names(self, prefix: str) -> Sequence[str]:
        """Names of finished files that start with `prefix`, sorted; leftovers of unfinished writes never appear."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the file if it is there."""
        ...

    async def size_bytes(self) -> int:
        """Bytes of all finished files."""
        ...


class NoPart(TemporaryError):
    """The trainer has nothing to contribute to this round, because it serves no lane, or a commit is just being applied. Any other
    error of a snapshot is a failure, and the round counts its contribution as missing.
    """


@dataclass(frozen=True, slots=True)
class TrainerProgress:
    """The trainer's counters since its start; read without waiting.

    Attributes:
        tokens_ready: tokens trained and not credited yet; a snapshot taken now would claim them.
        tokens_trained: all tokens trained by this process, credited or not.
        loss_nats: mean training loss of the latest steps in nats per byte, None before the first step.
        tokens_per_s: mean over the latest ten seconds.
        restarts: number of restarts of the worker.
        state: "starting", "training", "paused", "held" (nothing may be contributed) or "restarting"; `reason` says why.
        due_tokens: tokens that all holders have ready once every worker has ended its part of the round, if known; 0 if a round is
            due at the target of the last commit.
        num_replicas: replicas that train side by side; each takes this part of the tokens.
        answers_within_s: the longest time that a command may take now, an evaluation that holds the trainer included; 0 if unknown.
        has_theta: False while there is no theta that a shift could fit: the worker is starting or died, so a shift loads the anchor.
    """

    tokens_ready: int
    tokens_trained: int
    loss_nats: float | None
    tokens_per_s: float
    restarts: int
    state: str
    reason: str
    due_tokens: int = 0
    num_replicas: int = 1
    answers_within_s: float = 0.0
    has_theta: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The local parameters at a step boundary.

    Attributes:
        theta_N: (N,) float32 on the CPU. It stays as it is until the next `shift`, `load` or `snapshot`.
        tokens: tokens trained into `theta_N` and not credited yet.
        num_steps: local steps that trained these tokens.
        next_step: the local step after them, which is the position in this peer's data.
        lanes: the lane parts that make up these tokens, in a run of lanes.
        may_overwrite: whether the caller may write into `theta_N`. A shift made there costs no memory.
        num_readers: replicas that share this peer's data. With one, the steps lie side by side in it.
    """

    theta_N: torch.Tensor
    tokens: int
    num_steps: int
    next_step: int
    lanes: tuple[LanePart, ...] = ()
    may_overwrite: bool = False
    num_readers: int = 1


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A shift keeps only this share, 0 to 1, of theta's values [begin, stop)."""

    begin: int
    stop: int
    share: float


@dataclass(frozen=True, slots=True)
class HeldoutLosses:
    """Of one state, in nats per byte.

    Attributes:
        nats: on the run's fixed windows; of several experts one after another.
        prose_nats: over the run's prose; None if the run has none, or nobody asked.
    """

    nats: tuple[float, ...]
    prose_nats: float | None = None


ReadAnchors: TypeAlias = "Callable[[Sequence[torch.Tensor]], Awaitable[None]]"
"""Copies the anchors of a peer's units, (N,) float32 each, into these rooms of the same shapes.

Raises PotluckError: they are not to be had any more.
"""


class Trainer(Protocol):
    """The training process of one unit. Commands take effect at the next step boundary.

    Adoption (R20) needs two commands: `load` (blocking adoption, joining, worker death) and `shift` (adoption while training goes
    on: theta <- theta + shift, where the caller passes A' - theta_snapshot for counted chunks and A' - A for the rest).
    """

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Theta <- anchor; tokens_ready <- 0. `schedule_tokens` are the run's committed tokens, for the learning rate."""
        ...

    async def snapshot(self) -> Snapshot:
        """Copy theta at the next step boundary together with its token count; training goes on.

        Raises:
            NoPart: there is nothing to contribute to this round.
        """
        ...

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """Theta <- kept theta + shift; tokens_ready -= credited. All of theta is kept except in the parts that `kept` names.

        A worker that died since the snapshot loads the latest anchor of `set_anchor` instead.
        """
        ...

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Set the anchor that a dead worker restarts from (theta <- A, tokens_ready <- 0). Called at every commit."""
        ...

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        """Held-out losses of the anchors that `read` gives, on the run's fixed windows; training of theta resumes after it. They are
        read once there is room for them. An evaluation may wait until the last snapshot is spent.
        """
        ...

    def progress(self) -> TrainerProgress:
        """Counters as of now."""
        ...


@runtime_checkable
class LendsShiftRoom(Protocol):
    """A trainer in whose memory a shift can be made, so that none is taken for it, and none is copied."""

    def shift_room(self) -> torch.Tensor | None:
        """The place for the next shift, (N,) float32; None while it is not free. It is kept until any shift or load was taken, so ask
        for it while none is under way.
        """
        ...
