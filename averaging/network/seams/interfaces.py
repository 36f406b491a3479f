"""The seams: everything a service needs from the world outside, as five small protocols.

Each has a real form and an in-memory form, and both pass the same contract tests (tests/contract). On the in-memory forms a
whole swarm runs in virtual time from one seed. A service takes the seams it needs as arguments and touches nothing else: no
clock, no file, no socket, no thread.

Everything is called from trio. Nothing here starts anything in a constructor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

from protocol.errors import TemporaryError

if TYPE_CHECKING:
    import torch

    from averaging.network.seams.bulk_address import BulkAddress
    from protocol.errors import PotluckError
    from protocol.ids import PeerId
    from protocol.rounds.messages.lane_parts import LanePart

T = TypeVar("T")

LOG_FRAME_BYTES = 12
"""What a log on disk takes for a record beyond the record itself, at most."""

MAX_CONTROL_BYTES = 1 << 20
"""Largest request or reply of `Network.call`. A certificate of 64 members is about 12 kB; a chain page is cut to this."""

MAX_FRAME_BYTES = (1 << 20) + 4096
"""Largest frame of a bulk stream: one encoded chunk of at most 1 MiB plus its small header."""


class Way(Enum):
    """What carries a bulk stream."""

    DIRECT = "direct"
    LIBP2P = "libp2p"
    MEMORY = "memory"


class Stream(Protocol):
    """One bulk stream between two peers: frames in order, each at most MAX_FRAME_BYTES, paced by the sender.

    A stream belongs to whoever opened it or was handed it; both sides end it with `aclose`.
    """

    @property
    def remote(self) -> PeerId:
        """The authenticated peer at the other end."""
        ...

    def count_as(self, unit: str, codec: str) -> None:
        """What passes from now on is counted under this unit and codec (`BulkKind`); before it under neither."""
        ...

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        """Send one frame; waits while the other side is slow or the pacer says so. `data` may be changed once this returns or raises.

        Args:
            head: goes before `data` in the frame: both need not be put together first, which is a copy of what is long.

        Raises:
            ConnectionReset: the other side reset the stream or is gone.
            LocalProtocolError: both together are longer than MAX_FRAME_BYTES.
        """
        ...

    async def receive_frame(self) -> bytes | None:
        """The next frame, or None after the other side's clean `aclose`. A call that is cancelled loses none.

        Raises:
            ConnectionReset: the stream was reset.
            RemoteProtocolError: the other side announced a frame longer than MAX_FRAME_BYTES.
        """
        ...

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        """As `receive_frame`, read-only and without the copy that makes bytes of it, where the form can do without.

        Args:
            place: gives writable memory for a frame of so many bytes, in which it then lies, or raises RemoteProtocolError where none
                of that length is expected: the stream is of no more use then. A frame that a cancelled call has begun to receive stays
                where that call wanted it.

        Raises:
            ConnectionReset, RemoteProtocolError: as for `receive_frame`; what `place` raised.
            MachineError: `place` had no memory; the stream is of no more use.
        """
        ...

    async def aclose(self) -> None:
        """End the stream; what was sent still arrives."""
        ...


Place = Callable[[int], memoryview]
"""(bytes of a frame) -> writable memory of that length. May raise RemoteProtocolError: nothing of the frame is read then."""

CallHandler = Callable[["PeerId", bytes], Awaitable[bytes]]
"""(authenticated sender, request) -> reply. An exception in it is logged and reaches the caller as RemoteProtocolError."""

TookReply = Callable[["PeerId", "bytes | PotluckError"], Awaitable[None]]
"""(peer, its reply or what `Network.call` would have raised)."""

StreamHandler = Callable[["PeerId", Stream], Awaitable[None]]
"""Serves one stream opened by a peer. When it returns the stream is closed; when it raises the stream is reset."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One live record of the directory (the DHT): what a peer published under a key until it expires."""

    subkey: str
    value: bytes
    expires_unix_s: float


@dataclass(frozen=True, slots=True)
class BulkKind:
    """What bulk bytes were for: the way they took, the channel, and where the stream says so the unit and its codec."""

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
    """Payload bytes of one channel of the control lane since start; what is said to the directory is of the channel "directory"."""

    channel: str
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class TrafficCount:
    """Payload bytes since start, by lane; the bulk lane's by kind and the control lane's by channel, too: `bulk` and `control` sum to
    the two numbers of their lane.
    """

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

    Channels are short names ("round", "bulk"). Handlers must be set before the network is started, so that no message can
    arrive at a channel that is not served yet; an unserved channel answers PeerUnreachable.
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
            PeerUnreachable: refused: the peer's process is gone.
            ConnectionReset: reset in the middle of the call: it is gone, or only the connection is.
            CallTimeout: no reply within `timeout_s`.
            RemoteProtocolError: the handler failed there, or the reply was too long.
        """
        ...

    async def call_each(
        self, peers: Sequence[PeerId], channel: str, request: bytes, *, timeout_s: float, took: TookReply
    ) -> None:
        """`call` of several peers side by side, until each has replied or failed; `took` hears of each as soon as it has.

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
        """Where we take direct bulk streams, for our directory record; empty where none are taken."""
        ...

    async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
        """Store a directory record of at most 8 KiB; False when no node took it."""
        ...

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        """The live records under `key`, by subkey; empty when none or when the directory cannot be reached."""
        ...

    def traffic(self) -> TrafficCount:
        """Payload bytes carried so far."""
        ...


class Clock(Protocol):
    """The two clocks, never mixed: monotonic for deadlines, unix for what a stranger reads."""

    def monotonic_s(self) -> float:
        """Seconds that only grow; equal to trio.current_time() in both forms."""
        ...

    def unix_s(self) -> float:
        """Seconds since 1970 as this machine believes."""
        ...


class Offload(Protocol):
    """The only door to threads: real form `trio.to_thread`, simulated form inline with a virtual cost."""

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """Run a blocking function of no arguments and return its result; `cost_s` is what it costs in virtual time."""
        ...


class BegunFile(Protocol):
    """A file whose bytes come one part after the other; nobody sees it before it is finished. Whoever begins it drops it in the end,
    whatever came of it.
    """

    @property
    def num_bytes(self) -> int:
        """So many were taken so far."""
        ...

    async def add(self, part: bytes | memoryview) -> None:
        """Write what comes next; not durable yet. Raises StorageError: disk full or not writable."""
        ...

    async def finish(self) -> None:
        """Give it its name, as `Storage.write_atomic` of all parts. Raises as that."""
        ...

    def drop(self) -> None:
        """Leave nothing of it. One that is finished stays. To be called while no other method runs; does not wait."""
        ...


class Storage(Protocol):
    """Durable files below one folder. When a write returns, it survives a power cut; before that it may be lost, whole or in part.

    Names are relative, with "/" between parts, letters, digits, ".", "_" and "-" only.
    """

    async def write_atomic(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Replace the file by the parts, joined: temporary name, fsync, rename, fsync of the folder.

        Raises:
            StorageError: disk full or not writable; the old file, if any, is untouched.
        """
        ...

    def begin(self, name: str) -> BegunFile:
        """The same for bytes that are not all there yet: most of them are with the disk when the last ones come."""
        ...

    async def append(self, name: str, record: bytes) -> None:
        """Append one framed record (length and checksum) and fsync. After a torn tail the log continues at the last good record."""
        ...

    async def replace_log(self, name: str, records: Sequence[bytes]) -> None:
        """Replace a whole log by these records: after a crash at any moment it is the old one or the new one. Appends wait meanwhile.

        Raises:
            StorageError: disk full or not writable; the log is the old one, or the new one where only the last step failed.
        """
        ...

    async def read(self, name: str) -> bytes | None:
        """The file's bytes, or None when there is none."""
        ...

    async def read_range(self, name: str, offset_bytes: int, num_bytes: int) -> bytes | None:
        """`num_bytes` from `offset_bytes`, shorter at the end of the file; None when there is no such file."""
        ...

    async def read_records(self, name: str) -> Sequence[bytes]:
        """All good records of a log in order; a torn tail is left out and will be overwritten by the next append.

        Raises:
            StorageError: a record before the last is damaged: what came after it was promised and must not be forgotten.
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
    """The trainer was to bring nothing into this round: of a run of lanes, one that serves none. Anything else that it raises
    instead of a snapshot is a failure, and its round is said to lack it.
    """


@dataclass(frozen=True, slots=True)
class TrainerProgress:
    """What the trainer has done since it was started; read without waiting.

    Attributes:
        tokens_ready: tokens trained since the last credited ones: what a snapshot taken now would claim.
        tokens_trained: all tokens ever trained by this process, credited or not.
        loss_nats: mean training loss of the latest steps in nats per byte, None before the first step.
        tokens_per_s: over the latest ten seconds.
        restarts: how often the worker had to be brought back.
        state: "starting", "training", "paused", "held" (nothing may be contributed) or "restarting"; `reason` says why.
        due_tokens: ready at all holders when all who work have ended their part of the round, where that is known; 0 where a round
            is due at the target of the last commit.
    """

    tokens_ready: int
    tokens_trained: int
    loss_nats: float | None
    tokens_per_s: float
    restarts: int
    state: str
    reason: str
    due_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The local parameters at a step boundary.

    Attributes:
        theta_N: (N,) float32 on the CPU, the caller's own copy.
        tokens: trained into `theta_N` since the last credited ones.
        num_steps: local steps behind these tokens.
        next_step: position in this peer's data: the local step that comes after them.
        lanes: whose parts these tokens are, in a run of lanes.
    """

    theta_N: torch.Tensor
    tokens: int
    num_steps: int
    next_step: int
    lanes: tuple[LanePart, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptPart:
    """Of theta's values [begin, stop) only this share stays when they are shifted."""

    begin: int
    stop: int
    share: float


class Trainer(Protocol):
    """The training process of one unit. Commands take effect at the next step boundary.

    Rule 20 needs two of them: `load` (blocking adoption, joining, worker death) and `shift` (adoption while training goes on:
    theta <- theta + shift, where the caller puts A' - theta_snapshot for counted chunks and A' - A for the rest).
    """

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Theta <- anchor; tokens_ready <- 0. `schedule_tokens` are the run's committed tokens, for the learning rate."""
        ...

    async def snapshot(self) -> Snapshot:
        """Copy theta at the next step boundary together with its token count; training goes on.

        Raises:
            NoPart: nothing was to be brought into this round here.
        """
        ...

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """Theta <- kept theta + shift, all of theta where `kept` names no part; tokens_ready -= credited. A worker that died since the
        snapshot loads the anchor instead: the implementation keeps the latest anchor given by `set_anchor` for that.
        """
        ...

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """The anchor from which a worker that dies is brought back (theta <- A, tokens_ready <- 0). Called at every commit."""
        ...

    async def evaluate(self, anchor_N: torch.Tensor) -> float:
        """Held-out loss of `anchor_N` in nats per byte on the run's fixed windows; training of theta resumes after it."""
        ...

    async def evaluate_prose(self, anchor_N: torch.Tensor) -> float | None:
        """The same over the run's prose; None where it has none."""
        ...

    def progress(self) -> TrainerProgress:
        """Counters as of now."""
        ...
