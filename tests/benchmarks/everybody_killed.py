"""Host and all peers are killed at once, at any moment, and started again: what is lost, what is torn, do they go on as one."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protocol.errors import MachineError
from tests.benchmarks.processes import family
from tests.benchmarks.recovery_swarm import BENCH, Budget, await_whole
from tests.benchmarks.results import Row, always, at_most
from tests.benchmarks.state_check import Found, check_host, check_peer, conflicts, described
from tests.benchmarks.swarm import Swarm, wait_until

MOST_ROUNDS_LOST: Final = 1
BACK_LIMIT_S: Final = 90.0
LOOK_EVERY_S: Final = 0.05
LONGEST_LIFE_S: Final = 6.0
"""Latest moment of a strike after all trained; rounds fall due every two seconds."""
EARLY_S: Final = (0.2, 6.0)
EVERY_EARLY: Final = 5
"""One strike in so many comes while the processes are still starting."""

RESTARTED: Final = "restarted at round"
HOST: Final = "host"


@dataclass
class Death:
    """One end of everybody.

    Attributes:
        is_early: whether they were still starting.
        known: the newest round that anybody had told of or has in its log.
        first: the newest round with which anybody stood up again.
        folders: what was found on disk while all were dead.
        clashes: commits that have two roots.
        up_s: from the first start until all told of a head again; None when somebody did not.
        has_sentence: whether every peer said where it restarted.
    """

    is_early: bool
    known: int
    folders: dict[str, Found]
    clashes: list[str] = field(default_factory=list)
    first: int | None = None
    up_s: float | None = None
    has_sentence: bool = False

    @property
    def lost(self) -> int | None:
        """Rounds; None when nobody stood up."""
        return None if self.first is None else max(0, self.known - self.first)

    @property
    def torn(self) -> list[str]:
        """All that is not what was written."""
        return [line for found in self.folders.values() for line in found.torn] + self.clashes


def measure(swarm: Swarm, budget: Budget, chance: random.Random) -> list[Death]:
    """Kill and start, again and again; every death is judged by the start that follows, the last one as well."""
    deaths: list[Death] = []
    longest_s, known = 0.0, 0
    await_whole(swarm, 1)
    for trial in range(budget.num_trials):
        if budget.left_s < longest_s:
            print(f"everybody killed: time is up after {trial} of {budget.num_trials} trials", flush=True)
            break
        begin_s = time.monotonic()
        is_early = trial % EVERY_EARLY == EVERY_EARLY - 1
        if not is_early:
            await_whole(swarm)
        known = max(known, _watch(swarm, chance.uniform(*EARLY_S) if is_early else chance.uniform(0.0, LONGEST_LIFE_S)))
        death = end(swarm, known, is_early=is_early)
        known = death.known
        start_again(swarm, death, waits=(trial + 1) % EVERY_EARLY != EVERY_EARLY - 1)
        deaths.append(death)
        _judge(deaths, death.first)
        longest_s = max(longest_s, time.monotonic() - begin_s)
        print(described_death(death), flush=True)
    _judge(deaths, _await_heads(swarm))
    return deaths


def _judge(deaths: Sequence[Death], first: int | None) -> None:
    """Those that nobody saw standing up before the next one are judged by the next that did."""
    for death in deaths:
        death.first = first if death.first is None else death.first


def described_death(death: Death) -> str:
    """One death in a line."""
    lost = "not told yet" if death.first is None else f"{death.lost} lost"
    early = ", still starting" if death.is_early else ""
    torn = f", torn: {described(death.folders)} {death.clashes}" if death.torn else ""
    return f"everybody killed at round {death.known}{early}: {lost}, up in {death.up_s} s{torn}"


def newest_reported(swarm: Swarm) -> int:
    """The newest round that any peer tells of at this moment."""
    return max((s.index for peer in swarm.peers.values() if (s := peer.status()) is not None), default=0)


def _watch(swarm: Swarm, seconds: float) -> int:
    """Listen for so long; the newest round that anybody told of."""
    end_s, newest = time.monotonic() + seconds, 0
    while True:
        newest = max(newest, newest_reported(swarm))
        if time.monotonic() >= end_s:
            return newest
        time.sleep(LOOK_EVERY_S)


def end(swarm: Swarm, known: int, *, is_early: bool = False) -> Death:
    """SIGKILL to the host, all peers, and all that they started, at once; then a look at what they left."""
    runnings = [swarm.host, *(peer.running for peer in swarm.peers.values())]
    pids = [process.pid for running in runnings for process in family(running)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for running in runnings:
        running.process.wait()
    folders = found_in(swarm)
    known = max(known, *(found.index for found in folders.values()))
    return Death(is_early, known, folders, conflicts(folders))


def found_in(swarm: Swarm) -> dict[str, Found]:
    """The contents of the dead peers' folders, by name."""
    host: Path = swarm.directory / HOST
    return {HOST: check_host(host), **{p.state_dir.name: check_peer(p.state_dir) for p in swarm.peers.values()}}


def start_again(swarm: Swarm, death: Death, *, waits: bool = True) -> None:
    """Start all; with `waits` until each tells of a head, which is what is judged."""
    begin_s = time.monotonic()
    said = {number: _sentences(peer.log.path) for number, peer in swarm.peers.items()}
    swarm.start_host()
    for number in list(swarm.peers):
        swarm.start_peer(number)
    if not waits:
        return
    death.first = _await_heads(swarm)
    death.up_s = round(time.monotonic() - begin_s, 3)
    death.has_sentence = all(_sentences(peer.log.path) > said[n] for n, peer in swarm.peers.items())


def _sentences(log: Path) -> int:
    return log.read_text(encoding="utf8", errors="replace").count(RESTARTED)


def _await_heads(swarm: Swarm) -> int:
    """Until host and peers answer and each peer stands at a head; the newest of the first heads.

    Raises:
        MachineError: somebody does not stand up.
    """
    first: dict[int, int] = {}

    def are_up() -> bool:
        for number, peer in swarm.peers.items():
            status = peer.status() if number not in first else None
            if status is not None and status.head:
                first[number] = status.index
        return len(first) == len(swarm.peers) and swarm.host_status() is not None

    if not wait_until(are_up, BACK_LIMIT_S):
        ended = [peer.number for peer in swarm.peers.values() if not peer.is_running]
        raise MachineError(f"not all stand after {BACK_LIMIT_S:.0f} s; ended: {ended}", "host and peers at their heads")
    return max(first.values())


def go_on(swarm: Swarm) -> bool:
    """Whether all come to one root and then make another round together."""
    try:
        await_whole(swarm)
        await_whole(swarm, newest_reported(swarm) + 1)
    except MachineError as error:
        print(f"everybody killed: {error.one_line()}", flush=True)
        return False
    return True


def rows(deaths: Sequence[Death], went_on: bool, settings: dict[str, object]) -> list[Row]:
    """Lost and torn data, and whether the run went on."""
    name = "kill -9 of everything"
    lost = sorted(float(death.lost) for death in deaths if death.lost is not None)
    torn = sorted(float(len(death.torn)) for death in deaths)
    details = {
        **settings,
        "early": sum(death.is_early for death in deaths),
        "files": max((f.num_files for death in deaths for f in death.folders.values()), default=0),
        "leftovers": sum(f.num_leftovers for death in deaths for f in death.folders.values()),
        "torn": [line for death in deaths for line in death.torn][:10],
    }
    return [
        _counted(f"{name}: rounds lost", lost, MOST_ROUNDS_LOST, "rounds", details),
        _counted(f"{name}: torn files", torn, 0, "files", details),
        always(BENCH, f"{name}: all stand up and go on from one root", [went_on] if deaths else [], details),
        always(
            BENCH, f"{name}: each peer says where it restarts", [d.has_sentence for d in deaths if d.up_s], settings
        ),
        at_most(BENCH, f"{name}: until all stand at a head", [d.up_s for d in deaths if d.up_s], None, settings),
    ]


def _counted(metric: str, values: Sequence[float], limit: int, unit: str, details: dict[str, object]) -> Row:
    target = f"<= {limit}"
    if not values:
        return Row(BENCH, metric, None, unit, target=target, settings=details)
    median, spread = values[len(values) // 2], {"best": values[0], "worst": values[-1]}
    return Row(BENCH, metric, median, unit, None, None, target, values[-1] <= limit, len(values), spread, details)
