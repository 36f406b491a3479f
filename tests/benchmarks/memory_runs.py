"""A real run whose memory is watched: a host and two peers on this machine, later a third. See memory.py."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGTERM
from typing import Final

from averaging.models.llama.config import LlamaConfig
from peer.owner.controls_core import OwnerPause
from peer.owner.pause_file import remove_pause, write_pause
from protocol.errors import MachineError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.training_sections import InnerSection
from tests.benchmarks.memory_readings import (
    Reading,
    Watch,
    bytes_on_disk,
    forget_peak,
    lazily_free_bytes,
    peak_bytes,
    watching,
    written_bytes,
)
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import Children, child_named
from tests.benchmarks.swarm import BenchPeer, Swarm, start_swarm, wait_until

NUM_PEERS: Final = 2
CONTEXT_TOKENS: Final = 64
BATCH_TOKENS: Final = 2 * CONTEXT_TOKENS
"""Small on purpose: large batches would hide what is held for each value behind activations."""

STEPS_A_ROUND: Final = 24
"""A round takes longer than the evaluation of the commit before it, as in any run of use. One that comes earlier costs memory for the
values that are evaluated.
"""

STEPS_A_ROUND_OF_A_UNIT: Final = 8
"""In fragments the round of each is so many steps after the one before it, more than a commit may be late."""

CHUNK_ELEMENTS: Final = 1 << 16
FIRST_COMMITS: Final = 2
"""Until then a process is starting; its peak is told apart."""

COOL_S: Final = 62.0
"""After the last round, until memory kept for the next round has been marked as free (averaging/arithmetic/spare_memory.py)."""

QUIET_S: Final = 3.0
POLL_S: Final = 0.2
LIMIT_S: Final = 300.0
LEAVE_LIMIT_S: Final = 30.0
NEVER: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Run:
    """One run to watch.

    Attributes:
        codec: of contributions.
        feedback: share of a residual that is offered again; None for the codec's default.
        fragments: of the layers, each with rounds of its own; 0 for one round of the whole model.
        commits: to watch, after the `first_commits`, with which starts are over.
        steps: of each peer until a round is due; with fragments they are STEPS_A_ROUND_OF_A_UNIT.
        has_all: whether to look at the host's checkpoint, between rounds, and at a peer that joins later, too.
        peer_flags: more flags for each peer.
        limit_s: for any one thing to happen.
    """

    name: str
    model: LlamaConfig
    codec: str = "int8"
    feedback: float | None = None
    fragments: int = 0
    commits: int = 6
    first_commits: int = FIRST_COMMITS
    steps: int = STEPS_A_ROUND
    has_all: bool = False
    inner: InnerSection = field(default_factory=lambda: InnerSection(learning_rate=0.001, batch_tokens=BATCH_TOKENS))
    peer_flags: tuple[str, ...] = ()
    limit_s: float = LIMIT_S

    @property
    def config(self) -> RunConfig:
        """A run whose rounds come every few steps, and its first checkpoint after the watched ones."""
        sources = Path(__file__).parents[2] / "protocol"
        steps = (self.fragments + 1) * STEPS_A_ROUND_OF_A_UNIT if self.fragments else self.steps
        rounds: dict[str, object] = {
            "target_tokens": NUM_PEERS * self.inner.batch_tokens * steps,
            "longest_interval_s": self.limit_s,
            "codec": self.codec,
            "chunk_elements": CHUNK_ELEMENTS,
        }
        if self.feedback is not None:
            rounds["error_feedback"] = self.feedback
        if self.fragments:
            rounds |= {"mode": "streaming", "fragments": self.fragments}
        first_checkpoint = self.first_commits + self.commits + 2 if self.has_all else NEVER
        return RunConfig(
            run=RunSection(name="memory", total_tokens=1 << 50, min_members=NUM_PEERS, max_members=8),
            model=self.model,
            data=DataSection(source="text", glob=f"{sources}/**/*.py", heldout_every=5),
            inner=self.inner,
            round=RoundSection.model_validate(rounds),
            checkpoint=CheckpointSection(every_rounds=first_checkpoint),
        )


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one process: the kernel's peak of resident memory, the most of each kind of page, and what of it was given up at the end."""

    resident: int
    kinds: Reading
    lazily_free: int = 0


@dataclass(frozen=True, slots=True)
class PeerPeaks:
    """Of one peer's daemon and training process, and of all its processes together, shared memory counted once."""

    daemon: Peaks
    training: Peaks
    together: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything seen of one run; lists have an entry a peer.

    Attributes:
        starts: each daemon's and training process's peak until the second commit.
        rounds: while rounds were committed.
        quiet: between two rounds.
        writes: bytes to disk a commit, of the daemon.
        on_disk: bytes of the peer's folder at the end of the rounds.
        host: its peak while it wrote a checkpoint.
        joined: the third peer's daemon until it trained; `joined_round`: until its first commit.
        commit_s: seconds a commit.
    """

    starts: list[tuple[int, int]]
    rounds: list[PeerPeaks]
    writes: list[float]
    on_disk: list[int]
    commit_s: float
    host_start: int = 0
    quiet: list[PeerPeaks] = field(default_factory=list)
    host: Peaks | None = None
    joined: Peaks | None = None
    joined_round: Peaks | None = None


def observe(children: Children, directory: Path, run: Run) -> Seen:
    """Start a run in a new folder, watch it, and end it.

    Raises:
        MachineError: something that must happen did not happen in time.
    """
    with _swarm(children, directory, run) as swarm:
        seen = watch_rounds(swarm, run)
        if run.has_all:
            seen = replace(seen, host=watch_checkpoint(swarm, run))
            _pause(swarm, run)
            seen = replace(seen, quiet=_between_rounds(swarm))
            joined, joined_round = _third_peer(swarm, run)
            seen = replace(seen, joined=joined, joined_round=joined_round)
        return seen


def observe_joining(children: Children, directory: Path, run: Run) -> Seen:
    """As `observe`, for the peer that joins after the rounds alone."""
    with _swarm(children, directory, run) as swarm:
        _await_commits(swarm, run.first_commits + run.commits, run)
        _pause(swarm, run)
        joined, joined_round = _third_peer(swarm, run)
        return Seen([], [], [], [], 0.0, joined=joined, joined_round=joined_round)


@contextmanager
def _swarm(children: Children, directory: Path, run: Run) -> Iterator[Swarm]:
    """A host and two peers on this machine, in a new folder; they are killed at the end."""
    directory.mkdir(parents=True)
    places = Places(LOOPBACK, (Place(),) * NUM_PEERS, "loopback")
    flags = ("--device", "cpu", "--num-threads", "1", *run.peer_flags)
    swarm = start_swarm(children, directory, places, run.config, peer_environment={}, peer_flags=flags)
    try:
        yield swarm
    finally:
        swarm.close_logs()
        children.kill_all()


def pids_of(peer: BenchPeer) -> dict[str, int]:
    """Of the daemon and of its training process."""
    worker = child_named(peer.running, "peer.worker")
    if worker is None:
        raise MachineError("a peer without a training process", "one", "look at its log")
    return {"daemon": peer.running.process.pid, "training": worker.pid}


def watch_rounds(swarm: Swarm, run: Run) -> Seen:
    """Both peers from the first commits on, until the others came."""
    _await_commits(swarm, run.first_commits, run)
    pids = [pids_of(peer) for peer in swarm.peers.values()]
    starts = [(peak_bytes(each["daemon"]), peak_bytes(each["training"])) for each in pids]
    host_start = peak_bytes(swarm.host.process.pid)
    _forget(pids)
    begun, before = _indices(swarm), [written_bytes(each["daemon"]) for each in pids]
    watches, begun_s = [Watch(each) for each in pids], time.monotonic()
    with watching(*watches):
        _await_commits(swarm, run.first_commits + run.commits, run)
    num_commits = [end - begin for begin, end in zip(begun, _indices(swarm), strict=True)]
    written = [written_bytes(each["daemon"]) - already for each, already in zip(pids, before, strict=True)]
    return Seen(
        starts=starts,
        rounds=[_peaks(each, watch) for each, watch in zip(pids, watches, strict=True)],
        writes=[num_bytes / max(1, num) for num_bytes, num in zip(written, num_commits, strict=True)],
        on_disk=[bytes_on_disk(peer.state_dir) for peer in swarm.peers.values()],
        commit_s=(time.monotonic() - begun_s) / max(1, min(num_commits)),
        host_start=host_start,
    )


def watch_checkpoint(swarm: Swarm, run: Run) -> Peaks:
    """The host, while it writes its first checkpoint."""
    host = {"host": swarm.host.process.pid}
    forget_peak(host["host"])
    watch = Watch(host)

    def is_written() -> bool:
        status = swarm.host_status()
        return status is not None and any(row.index > run.first_commits for row in status.checkpoints)

    with watching(watch):
        if not wait_until(is_written, run.limit_s, POLL_S):
            raise MachineError(f"no checkpoint after {run.limit_s:.0f} s", "one", "look at the host's log")
    return Peaks(peak_bytes(host["host"]), watch.most["host"])


def _pause(swarm: Swarm, run: Run) -> None:
    """The owners pause both peers."""
    for peer in swarm.peers.values():
        write_pause(peer.state_dir, OwnerPause())

    def is_paused() -> bool:
        found = [peer.status() for peer in swarm.peers.values()]
        return all(status is not None and status.state == "paused" for status in found)

    if not wait_until(is_paused, run.limit_s, POLL_S):
        raise MachineError("a peer that does not pause", "one that does", "look at its log")


def _between_rounds(swarm: Swarm) -> list[PeerPeaks]:
    """Both peers in a long gap between two rounds, which a pause of their owners makes."""
    indices = None
    while (now := _indices(swarm)) != indices:  # a round that was open when they paused may still commit
        indices = now
        time.sleep(COOL_S)
    pids = [pids_of(peer) for peer in swarm.peers.values()]
    _forget(pids)
    watches = [Watch(each) for each in pids]
    with watching(*watches):
        time.sleep(QUIET_S)
    return [_peaks(each, watch) for each, watch in zip(pids, watches, strict=True)]


def _third_peer(swarm: Swarm, run: Run) -> tuple[Peaks, Peaks]:
    """A newcomer's daemon until it trains, and until its first commit. The second peer leaves, so that no more than two are held."""
    _leave(swarm.peers.pop(NUM_PEERS))
    swarm.places = replace(swarm.places, peers=(Place(),) * (NUM_PEERS + 1))
    peer = swarm.start_peer(NUM_PEERS + 1)
    pid = peer.running.process.pid
    until_trains, until_commit = Watch({"daemon": pid}), Watch({"daemon": pid})
    head = _index(swarm.peers[1])
    with watching(until_trains):
        if not wait_until(lambda: _trains_at(peer, head), run.limit_s, POLL_S):
            raise MachineError("a third peer that does not train", "one that joins", "look at its log")
    joined = Peaks(peak_bytes(pid), until_trains.most["daemon"])
    remove_pause(swarm.peers[1].state_dir)
    with watching(until_commit):
        if not wait_until(lambda: _index(peer) > head, run.limit_s, POLL_S):
            raise MachineError("no round with the third peer", "one", "look at the peers' logs")
    return joined, Peaks(peak_bytes(pid), until_commit.most["daemon"])


def _peaks(pids: dict[str, int], watch: Watch) -> PeerPeaks:
    daemon, training = (
        Peaks(peak_bytes(pids[name]), watch.most[name], lazily_free_bytes(pids[name]))
        for name in ("daemon", "training")
    )
    return PeerPeaks(daemon, training, watch.most_together)


def _forget(pids: Sequence[dict[str, int]]) -> None:
    for each in pids:
        for pid in each.values():
            forget_peak(pid)


def _trains_at(peer: BenchPeer, index: int) -> bool:
    status = peer.status()
    return status is not None and status.state == "training" and status.index >= index


def _index(peer: BenchPeer) -> int:
    """Of its head, -1 before it answers."""
    if not peer.is_running:
        raise MachineError(f"peer {peer.number} has ended", "one that takes part", "look at its log")
    status = peer.status()
    return -1 if status is None else status.index


def _indices(swarm: Swarm) -> list[int]:
    return [_index(peer) for peer in swarm.peers.values()]


def _await_commits(swarm: Swarm, num_commits: int, run: Run) -> None:
    """Each commit may take `limit_s`."""
    begun_s, last = time.monotonic(), -1
    while (least := min(_indices(swarm))) < num_commits:
        if least > last:
            last, begun_s = least, time.monotonic()
        if time.monotonic() - begun_s > run.limit_s:
            expected = f"{num_commits} of them"
            raise MachineError(
                f"{max(0, last)} commits, and no more in {run.limit_s:.0f} s", expected, "look at the peers' logs"
            )
        time.sleep(POLL_S)


def _leave(peer: BenchPeer) -> None:
    peer.running.process.send_signal(SIGTERM)
    try:
        peer.running.process.wait(LEAVE_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            "a peer that does not leave", "one that ends within half a minute", "look at its log"
        ) from error
