"""Peers that train while somebody joins: how much longer their steps take while they give it 50 MB of state.

Steps are paced, as those on a graphics card are: each takes STEP_S on the wall, most of it a wait, and the training processes write
down when each ended (timed_worker.py). They are timed in windows with a download and in equal ones before and after it. The joiner has
a processor of its own, as in life, and the incumbents share the others. The median over the trials is judged, and beside it stands how
much the windows without a joiner differ.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from peer.membership.saved_membership import last_run_folder
from protocol.errors import MachineError
from protocol.tensors.model_config import WHOLE_MODEL
from tests.benchmarks.processes import kill_all_of
from tests.benchmarks.recovery_swarm import BENCH, Budget, await_whole
from tests.benchmarks.results import Row
from tests.benchmarks.swarm import BenchPeer, Swarm, wait_until
from tests.benchmarks.timed_peer import TIMED_PEER
from tests.benchmarks.timed_worker import STEP_VARIABLE, TIMES_VARIABLE, mean_step_s, read_times

UPLOAD_BYTES_PER_S: Final = 2_500_000
"""20 Mbit/s each."""

MOST_LONGER: Final = 0.02
CALM_S: Final = 7.0
JOIN_LIMIT_S: Final = 120.0
ROUNDS_BEFORE: Final = 12
"""A snapshot is fewer bytes than replaying so many rounds, and one of them is attested."""

STEP_S: Final = 0.4
"""Two to three times what two peers need that share a processor."""

SLOWDOWN: Final = 1.0
"""The pace says how long a step takes, not a divisor of its own speed."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of Unix time."""

    begin_unix_s: float
    end_unix_s: float

    def step_s(self, times_files: Sequence[Path]) -> float:
        """Mean time of a step, over all peers.

        Raises:
            MachineError: a peer made fewer than two steps.
        """
        means_s = [mean_step_s(read_times(file), self.begin_unix_s, self.end_unix_s) for file in times_files]
        found_s = [mean_s for mean_s in means_s if mean_s is not None]
        if len(found_s) < len(times_files):
            raise MachineError("a window with fewer than two steps", "peers that train")
        return statistics.fmean(found_s)


@dataclass(frozen=True, slots=True)
class Join:
    """One join: the time of a step before, during and after the download, and how long that took."""

    before_s: float
    during_s: float
    after_s: float
    download_s: float

    @property
    def longer(self) -> float:
        """Share by which a step took longer; 0 is no difference."""
        return self.during_s / ((self.before_s + self.after_s) / 2) - 1.0

    @property
    def noise(self) -> float:
        """The same between the windows without a joiner."""
        return self.after_s / self.before_s - 1.0


def measure(swarm: Swarm, budget: Budget) -> list[Join]:
    """The last peer of the swarm joins again and again with an emptied unit folder; the others give."""
    *incumbents, joiner = [swarm.peers[number] for number in sorted(swarm.peers)]
    files = [_times_file(swarm, peer) for peer in incumbents]
    _capped(swarm, incumbents, joiner)
    budget = Budget(budget.num_trials, budget.limit_s)
    seen: list[Join] = []
    longest_s = 0.0
    while len(seen) < budget.num_trials and budget.left_s >= longest_s:
        begin_s = time.monotonic()
        before = _calm()
        joiner, during = _join(swarm, joiner)
        after = _calm()
        longest_s = max(longest_s, time.monotonic() - begin_s)
        download_s = during.end_unix_s - during.begin_unix_s
        try:
            seen.append(Join(before.step_s(files), during.step_s(files), after.step_s(files), round(download_s, 2)))
        except MachineError as error:
            print(f"incumbents: {error.one_line()}", flush=True)
            continue
        print(f"incumbents: {seen[-1].longer:+.1%} (noise {seen[-1].noise:+.1%}), {download_s:.1f} s", flush=True)
    return seen


def _times_file(swarm: Swarm, peer: BenchPeer) -> Path:
    return swarm.directory / f"times-{peer.number}.jsonl"


def _capped(swarm: Swarm, incumbents: Sequence[BenchPeer], joiner: BenchPeer) -> None:
    """Without the joiner, with a pace, and with a cap on every upload, which peers read when they start."""
    await_whole(swarm, ROUNDS_BEFORE)
    for peer in (*incumbents, joiner):
        kill_all_of(peer.running)
    flags = swarm.peer_flags
    swarm.peer_flags = (*flags[: flags.index("--slowdown")], "--slowdown", str(SLOWDOWN))
    swarm.peer_environment = {"POTLUCK_PEER_UPLOAD_BYTES_PER_S": str(UPLOAD_BYTES_PER_S), STEP_VARIABLE: str(STEP_S)}
    swarm.peer_module = TIMED_PEER
    theirs, own = _processors()
    timed = [
        replace(place, prefix=(*processors, "env", f"{TIMES_VARIABLE}={_times_file(swarm, peer)}"))
        for place, peer, processors in zip(
            swarm.places.peers, (*incumbents, joiner), (*[theirs] * len(incumbents), own), strict=True
        )
    ]
    swarm.places = replace(swarm.places, peers=tuple(timed))
    del swarm.peers[joiner.number]
    for peer in incumbents:
        swarm.start_peer(peer.number)
    await_whole(swarm)


def _processors() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How the incumbents are started, and how the joiner is: on processors of their own.

    Raises:
        MachineError: there is only one.
    """
    *theirs, own = sorted(os.sched_getaffinity(0))
    if not theirs:
        raise MachineError("one processor", "two: one for the joiner, which in life has its own")
    return ("taskset", "-c", ",".join(map(str, theirs))), ("taskset", "-c", str(own))


def _calm() -> Window:
    """A window without a joiner."""
    begin_unix_s = time.time()
    time.sleep(CALM_S)
    return Window(begin_unix_s, time.time())


def _join(swarm: Swarm, joiner: BenchPeer) -> tuple[BenchPeer, Window]:
    """One download from its first byte to its last; the joiner is killed before it takes part in a round."""
    folder = last_run_folder(joiner.state_dir)
    if folder is None:
        raise MachineError("a joiner that was never admitted", "its membership")
    shutil.rmtree(folder / WHOLE_MODEL, ignore_errors=True)
    joiner = swarm.start_peer(joiner.number)
    del swarm.peers[joiner.number]  # nobody waits for it
    if not wait_until(lambda: _is_downloading(joiner), JOIN_LIMIT_S):
        raise MachineError(f"peer {joiner.number} took no snapshot", "a download")
    begin_unix_s = time.time()
    wait_until(lambda: _has_downloaded(joiner), JOIN_LIMIT_S)
    during = Window(begin_unix_s, time.time())
    kill_all_of(joiner.running)
    return joiner, during


def _is_downloading(joiner: BenchPeer) -> bool:
    status = joiner.status()
    return status is not None and status.download_bytes_all > 0


def _has_downloaded(joiner: BenchPeer) -> bool:
    status = joiner.status()
    return status is not None and status.download_bytes_all == 0


def rows(seen: Sequence[Join], settings: dict[str, object]) -> list[Row]:
    """Judged by the median; the other row says what that is worth."""
    name = "incumbents' steps while a joiner downloads 50 MB"
    target = f"<= {MOST_LONGER:g}"
    if not seen:
        return [Row(BENCH, f"{name}: longer by", None, "share", target=target, settings=settings)]
    longer, noise = sorted(one.longer for one in seen), sorted(abs(one.noise) for one in seen)
    median = statistics.median(longer)
    calm_s = statistics.median((one.before_s + one.after_s) / 2 for one in seen)
    details = {
        **settings,
        "upload_bytes_per_s": UPLOAD_BYTES_PER_S,
        "step_s": round(calm_s, 3),
        "download_s": [one.download_s for one in seen],
        "judged_by": "median",
    }
    return [
        Row(
            BENCH,
            f"{name}: longer by (median judged)",
            round(median, 4),
            "share",
            None,
            None,
            target,
            median <= MOST_LONGER,
            len(seen),
            {"best": round(longer[0], 4), "worst": round(longer[-1], 4)},
            details,
        ),
        Row(
            BENCH,
            f"{name}: difference of windows without a joiner",
            round(statistics.median(noise), 4),
            "share",
            trials=len(noise),
            spread={"best": round(noise[0], 4), "worst": round(noise[-1], 4)},
            settings=details,
        ),
    ]
