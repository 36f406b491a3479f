"""Peers that train while somebody joins: how much longer their steps take while they give it 50 MB of state.

Steps are timed at both incumbents by their own counters, in windows with a download and in equal ones before and after it. The
joiner has a processor of its own, as in life, and the incumbents share the others. Single windows differ by more than the target even
when nothing happens, so the median over the trials is judged, and beside it stands how much the windows without a joiner differ.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from peer.membership_file import last_run_folder
from protocol.decoder_schema import WHOLE_MODEL
from protocol.errors import MachineError
from tests.benchmarks.processes import kill_all_of
from tests.benchmarks.recovery_swarm import BENCH, LARGE, Budget, await_whole
from tests.benchmarks.results import Row
from tests.benchmarks.swarm import BenchPeer, Swarm, wait_until

UPLOAD_BYTES_PER_S: Final = 2_500_000
"""20 Mbit/s each."""

MOST_LONGER: Final = 0.02
CALM_S: Final = 7.0
JOIN_LIMIT_S: Final = 120.0
ROUNDS_BEFORE: Final = 12
"""A snapshot is fewer bytes than replaying so many rounds, and one of them is attested."""

LOOK_EVERY_S: Final = 0.05
SLOWDOWN: Final = 6.0
"""Short steps, so that a window holds many, and two peers that share a processor seldom meet there."""

LEAST_STEPS: Final = 8


@dataclass
class Steps:
    """The ends of the steps of some peers in one window: when a counter was seen to have grown, and to what."""

    seen: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def look(self, peers: Sequence[BenchPeer]) -> None:
        """One look at each."""
        for peer in peers:
            status = peer.status()
            told = self.seen.setdefault(peer.number, [])
            if status is not None and (not told or told[-1][1] != status.tokens_trained):
                told.append((time.monotonic(), status.tokens_trained))

    def step_s(self) -> float:
        """Mean time of a step, over all peers. The first look falls into the middle of a step and is left out.

        Raises:
            MachineError: a peer made fewer than two steps.
        """
        times = []
        for told in self.seen.values():
            if len(told) < 3:
                raise MachineError("a window with fewer than two steps", "peers that train")
            num_steps = (told[-1][1] - told[1][1]) / LARGE.context_tokens
            times.append((told[-1][0] - told[1][0]) / num_steps)
        return sum(times) / len(times)


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
    incumbents = _capped(swarm, incumbents, joiner)
    budget = Budget(budget.num_trials, budget.limit_s)
    seen: list[Join] = []
    longest_s = 0.0
    while len(seen) < budget.num_trials and budget.left_s >= longest_s:
        begin_s = time.monotonic()
        before = _calm(incumbents)
        joiner, during, download_s = _join(swarm, incumbents, joiner)
        after = _calm(incumbents)
        longest_s = max(longest_s, time.monotonic() - begin_s)
        try:
            seen.append(Join(before.step_s(), during.step_s(), after.step_s(), round(download_s, 2)))
        except MachineError as error:
            print(f"incumbents: {error.one_line()}", flush=True)
            continue
        print(f"incumbents: {seen[-1].longer:+.1%} (noise {seen[-1].noise:+.1%}), {download_s:.1f} s", flush=True)
    return seen


def _capped(swarm: Swarm, incumbents: Sequence[BenchPeer], joiner: BenchPeer) -> list[BenchPeer]:
    """Without the joiner, and with a cap on every upload, which peers read when they start."""
    await_whole(swarm, ROUNDS_BEFORE)
    for peer in (*incumbents, joiner):
        kill_all_of(peer.running)
    flags = swarm.peer_flags
    swarm.peer_flags = (*flags[: flags.index("--slowdown")], "--slowdown", str(SLOWDOWN))
    swarm.peer_environment = {"POTLUCK_PEER_UPLOAD_BYTES_PER_S": str(UPLOAD_BYTES_PER_S)}
    *places, last = swarm.places.peers
    theirs, own = _processors()
    swarm.places = replace(
        swarm.places,
        peers=(*(replace(place, prefix=theirs) for place in places), replace(last, prefix=own)),
    )
    del swarm.peers[joiner.number]
    capped = [swarm.start_peer(peer.number) for peer in incumbents]
    await_whole(swarm)
    return capped


def _processors() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How the incumbents are started, and how the joiner is: on processors of their own.

    Raises:
        MachineError: there is only one.
    """
    *theirs, own = sorted(os.sched_getaffinity(0))
    if not theirs:
        raise MachineError("one processor", "two: one for the joiner, which in life has its own")
    return ("taskset", "-c", ",".join(map(str, theirs))), ("taskset", "-c", str(own))


def _calm(peers: Sequence[BenchPeer]) -> Steps:
    """A window without a joiner: so long, and at least some steps of each."""
    steps, begin_s = Steps(), time.monotonic()
    while time.monotonic() < begin_s + JOIN_LIMIT_S:
        steps.look(peers)
        if time.monotonic() > begin_s + CALM_S and min(map(len, steps.seen.values())) > LEAST_STEPS:
            break
        time.sleep(LOOK_EVERY_S)
    return steps


def _window(peers: Sequence[BenchPeer], is_over: Callable[[], bool]) -> Steps:
    steps = Steps()
    while not is_over():
        steps.look(peers)
        time.sleep(LOOK_EVERY_S)
    return steps


def _join(swarm: Swarm, incumbents: Sequence[BenchPeer], joiner: BenchPeer) -> tuple[BenchPeer, Steps, float]:
    """One download from its first byte to its last; the joiner is killed before it takes part in a round."""
    folder = last_run_folder(joiner.state_dir)
    if folder is None:
        raise MachineError("a joiner that was never admitted", "its membership")
    shutil.rmtree(folder / WHOLE_MODEL, ignore_errors=True)
    joiner = swarm.start_peer(joiner.number)
    del swarm.peers[joiner.number]  # nobody waits for it
    if not wait_until(lambda: _is_downloading(joiner), JOIN_LIMIT_S):
        raise MachineError(f"peer {joiner.number} took no snapshot", "a download")
    begin_s = time.monotonic()
    # asked beside the looks at the incumbents: busy with its download it takes its time to answer
    ends = threading.Thread(target=wait_until, args=(lambda: _has_downloaded(joiner), JOIN_LIMIT_S), daemon=True)
    ends.start()
    during = _window(incumbents, lambda: not ends.is_alive())
    download_s = time.monotonic() - begin_s
    kill_all_of(joiner.running)
    return joiner, during, download_s


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
