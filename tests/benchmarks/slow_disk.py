"""`python -m tests.benchmarks.slow_disk --json FILE`: rounds of peers whose state lies on a disk that takes 20 MB/s.

A host and three peers train on this machine. Two of the peers have their state folders on the slow disk: a file with a file system in
it, behind a loop device whose reads and writes the kernel's block controller limits. That needs root and control groups of version 1.
`--folder` names a folder on another slow disk instead. `--fast` puts all folders on the disk of the temporary folder, to compare.

The main thread of each peer runs its event loop, and files are to be waited for in other threads. So the state of each main thread is
read two hundred times a second. If it waits for a disk, others' deadlines run meanwhile. A busy machine makes members late, too, which
a commit then leaves out. So compare with `--fast`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final

from averaging.models.llama.config import LlamaConfig
from protocol.errors import MachineError
from protocol.run.training_sections import InnerSection
from tests.benchmarks.memory_runs import Run
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import Children, open_children
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import Swarm, start_swarm, wait_until

BENCH: Final = "slow_disk"
NUM_PEERS: Final = 3
ON_DISK: Final = (1, 2)
"""Peers whose state folders lie on the slow disk."""

BYTES_PER_S: Final = 20 << 20
DISK_BYTES: Final = 8 << 30
COMMITS: Final = 8
"""Rounds whose results the disk takes longer to write than to train."""

FIRST_COMMITS: Final = 2
LIMIT_S: Final = 600.0
LOOK_EVERY_S: Final = 0.005
MOST_WAIT_S: Final = 0.5
"""A beat is late after some seconds; half a second is no reason to suspect anybody."""

SHORT_TOKENS: Final = 8
MODEL: Final = LlamaConfig(
    dim=512, num_layers=8, num_heads=8, num_kv_heads=4, ffn_dim=1408, context_tokens=SHORT_TOKENS
)
"""23.7M values."""

LATE: Final = ("peer_silent", "slice_failed", "slice_without_contributions")
"""Log events of members that others missed."""

_THROTTLE: Final = Path("/sys/fs/cgroup/blkio")
_COMMAND_LIMIT_S: Final = 60.0


# --- the disk -----------------------------------------------------------------------------------------------------------------


@contextmanager
def slow_disk(folder: Path, bytes_per_s: int = BYTES_PER_S) -> Iterator[Path]:
    """A mounted file system whose device takes and gives so many bytes a second; it is gone at the end.

    Raises:
        MachineError: without root, loop devices or control groups of version 1.
    """
    image, mount = folder / "disk.img", folder / "slow"
    mount.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    _run("mkfs.ext4", "-q", "-F", str(image))
    device = _run("losetup", "--find", "--show", str(image)).strip()
    number = Path(f"/sys/block/{Path(device).name}/dev").read_text(encoding="ascii").strip()
    try:
        _run("mount", device, str(mount))
        _limit(number, bytes_per_s)
        yield mount
    finally:
        with suppress(MachineError):
            _limit(number, 0)
        with suppress(MachineError):
            _run("umount", str(mount))
        _run("losetup", "--detach", device)


def _limit(device: str, bytes_per_s: int) -> None:
    for kind in ("write", "read"):
        try:
            (_THROTTLE / f"blkio.throttle.{kind}_bps_device").write_text(f"{device} {bytes_per_s}", encoding="ascii")
        except OSError as error:
            expected = "root, and control groups of version 1"
            raise MachineError(f"no limit for a device: {error}", expected, "give --folder on a slow disk") from error


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        expected = "root, with mkfs.ext4, losetup and mount"
        raise MachineError(f"{command[0]}: {error}", expected, "give --folder on a slow disk") from error
    return done.stdout


# --- the main threads ---------------------------------------------------------------------------------------------------------


@dataclass
class MainThread:
    """How long the main thread of a process slept where nothing wakes it, which is mostly in a disk.

    Attributes:
        longest_s: the longest sleep seen; `longest_in`: functions of the kernel in which it was, innermost first.
        all_s: all of them together.
    """

    pid: int
    longest_s: float = 0.0
    longest_in: tuple[str, ...] = ()
    all_s: float = 0.0
    _since_s: float | None = None
    _in: tuple[str, ...] = field(default=())

    def look(self, now_s: float) -> None:
        """One look at its state."""
        state = ""
        with suppress(OSError):
            state = (
                Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_text(encoding="utf8").rpartition(")")[2].split()[0]
            )
        if state != "D":
            self._since_s = None
            return
        if self._since_s is None:
            self._since_s, self._in = now_s, self._kernel()
            return
        slept_s = now_s - self._since_s
        self.all_s += LOOK_EVERY_S
        if slept_s > self.longest_s:
            self.longest_s, self.longest_in = slept_s, self._in

    def _kernel(self) -> tuple[str, ...]:
        with suppress(OSError):
            lines = Path(f"/proc/{self.pid}/task/{self.pid}/stack").read_text(encoding="ascii").splitlines()
            return tuple(line.partition("] ")[2].partition("+")[0] for line in lines)
        return ()


@contextmanager
def watched_threads(pids: Mapping[int, int]) -> Iterator[dict[int, MainThread]]:
    """The main threads of these processes, looked at until the block ends."""
    threads, ends = {number: MainThread(pid) for number, pid in pids.items()}, Event()

    def run() -> None:
        while not ends.wait(LOOK_EVERY_S):
            now_s = time.monotonic()
            for thread in threads.values():
                thread.look(now_s)

    watch = Thread(target=run, name="main threads")
    watch.start()
    try:
        yield threads
    finally:
        ends.set()
        watch.join()


# --- the run ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one run: seconds a commit, main threads by peer, and lines of logs about members that were missed."""

    commit_s: float
    threads: dict[int, MainThread]
    late: dict[int, list[str]]
    omitted: int


def observe(children: Children, directory: Path, on_disk: Path | None) -> Seen:
    """Some commits of a run whose peers 1 and 2 have their folders in `on_disk`."""
    inner = InnerSection(learning_rate=0.001, batch_tokens=2 * SHORT_TOKENS)
    run = Run("slow", MODEL, inner=inner, steps=4, commits=COMMITS, limit_s=LIMIT_S)
    directory.mkdir(parents=True)
    if on_disk is not None:
        for number in ON_DISK:
            (on_disk / f"peer-{number}").mkdir(mode=0o700)
            (directory / f"peer-{number}").symlink_to(on_disk / f"peer-{number}")
    places = Places(LOOPBACK, (Place(),) * NUM_PEERS, "loopback")
    flags = ("--device", "cpu", "--num-threads", "1")
    swarm = start_swarm(children, directory, places, run.config, peer_environment={}, peer_flags=flags)
    try:
        _await(swarm, FIRST_COMMITS)
        begun, begun_s = _index(swarm), time.monotonic()
        with watched_threads({number: peer.running.process.pid for number, peer in swarm.peers.items()}) as threads:
            _await(swarm, begun + COMMITS)
        took_s, num_commits = time.monotonic() - begun_s, _index(swarm) - begun
        late = {number: _late(swarm, number) for number in swarm.peers}
        status = swarm.host_status()
        rows = [] if status is None else [row for row in status.rounds if row.index > begun]
        return Seen(took_s / num_commits, threads, late, sum(len(row.omitted) for row in rows))
    finally:
        swarm.close_logs()
        children.kill_all()


def _late(swarm: Swarm, number: int) -> list[str]:
    log = swarm.peers[number].log
    log.poll()
    return [line.text for line in log.lines if any(word in line.text for word in LATE)]


def _index(swarm: Swarm) -> int:
    found = [peer.status() for peer in swarm.peers.values()]
    return min(-1 if status is None else status.index for status in found)


def _await(swarm: Swarm, index: int) -> None:
    if not wait_until(lambda: _index(swarm) >= index, LIMIT_S, 0.2):
        raise MachineError(f"no commit {index} in {LIMIT_S:.0f} s", "one", "look at the peers' logs")


def rows_of(seen: Seen, where: str) -> list[Row]:
    """Rows of one run."""
    settings: dict[str, object] = {
        "peers": NUM_PEERS,
        "on_disk": len(ON_DISK),
        "commits": COMMITS,
        "machine": machine(),
    }
    row = partial(Row, BENCH)
    longest = [seen.threads[number].longest_s for number in ON_DISK]
    worst = max((seen.threads[number] for number in ON_DISK), key=lambda thread: thread.longest_s)
    missed = sum(map(len, seen.late.values()))
    return [
        row(
            f"{where}: time of a commit, 24M values, int8",
            round(seen.commit_s, 2),
            "s",
            trials=COMMITS,
            settings=settings,
        ),
        row(
            f"{where}: the longest that an event loop waited for a disk",
            round(max(longest), 3),
            "s",
            target=f"<= {MOST_WAIT_S:g}",
            met=max(longest) <= MOST_WAIT_S,
            trials=len(longest),
            spread={"best": round(min(longest), 3), "worst": round(max(longest), 3)},
            settings={**settings, "in": " ".join(worst.longest_in[:6]), "all_s": round(worst.all_s, 2)},
        ),
        row(
            f"{where}: members that others found silent",
            float(missed),
            "",
            target="= 0",
            met=not missed,
            trials=1,
            settings={**settings, "lines": [line for lines in seen.late.values() for line in lines[:3]]},
        ),
        row(f"{where}: members that commits left out", float(seen.omitted), "", trials=1, settings=settings),
    ]


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.slow_disk", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--folder", type=Path, help="an empty folder on a slow disk")
    parser.add_argument("--fast", action="store_true", help="no slow disk")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="potluck-slow-") as folder,
        open_children(Path(folder) / "logs") as children,
    ):
        run = Path(folder) / "run"
        if options.fast:
            rows = rows_of(observe(children, run, None), "the machine's disk")
        elif options.folder:
            rows = rows_of(observe(children, run, options.folder), "a slow disk")
        else:
            with slow_disk(Path(folder)) as disk:
                rows = rows_of(observe(children, run, disk), "a disk of 20 MB/s")
    write_rows(rows, options.json)
    print_rows(rows, "slow disk")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
