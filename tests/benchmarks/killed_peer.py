"""A peer with 50 MB of outer state is killed and started again: how long until a certificate counts it.

The clock runs from the start of its process to the commit that counts a contribution of this process. Not counted is the time that
it stood ready, at the head, while the next round was not yet due: that depends on the run's pace only. A round that goes on without
it while it is ready is counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import MachineError
from tests.benchmarks.fault_watch import PROPOSED, Watch
from tests.benchmarks.processes import cpu_s, kill_all_of
from tests.benchmarks.recovery_swarm import BENCH, Budget, await_whole, look_for
from tests.benchmarks.results import Row, at_most
from tests.benchmarks.swarm import BenchPeer, Swarm

RECOVERED_S: Final = 10.0
COUNTED_LIMIT_S: Final = 90.0
FIRST_ROUND: Final = 2
"""Before it there is no state to come back to."""

LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Recovery:
    """One return, in seconds from the start of the process.

    Attributes:
        imports_s: until the daemon's first own act, after Python has imported what it needs.
        ready_s: until it trained at the head with a first step done.
        waited_s: how long it then stood ready and no round was due.
        counted_s: until the commit that counts it.
        cpu_s: processor seconds of its daemon when it was ready.
    """

    imports_s: float
    ready_s: float
    waited_s: float
    counted_s: float
    cpu_s: float

    @property
    def recovery_s(self) -> float:
        """The judged figures."""
        return self.counted_s - self.waited_s


def measure(swarm: Swarm, budget: Budget, interval_s: float, chance: random.Random) -> list[Recovery]:
    """One peer after another is killed at a random moment and started again."""
    watch, seen = Watch(swarm), []
    longest_s = 0.0
    for trial in range(budget.num_trials):
        if budget.left_s < longest_s:
            print(f"killed peer: time is up after {trial} of {budget.num_trials} trials", flush=True)
            break
        begin_s = time.monotonic()
        await_whole(swarm, FIRST_ROUND)
        look_for(watch, chance.uniform(0.0, interval_s))
        victim = swarm.peers[1 + trial % len(swarm.peers)]
        kill_all_of(victim.running)
        seen.append(_come_back(watch, swarm.start_peer(victim.number), interval_s))
        longest_s = max(longest_s, time.monotonic() - begin_s)
        print(f"killed peer {victim.number}: {seen[-1]}", flush=True)
    return seen


def _come_back(watch: Watch, victim: BenchPeer, interval_s: float) -> Recovery:
    started_s, ready_s, ready_cpu_s = victim.running.started_unix_s, None, 0.0
    deadline_s = time.monotonic() + COUNTED_LIMIT_S
    while time.monotonic() < deadline_s:
        status = victim.status()
        now_s = time.time()
        if status is not None and ready_s is None and status.state == "training" and status.tokens_ready > 0:
            ready_s, ready_cpu_s = now_s, cpu_s(victim.running)
        if status is not None and status.first_counted_unix_s is not None and status.last_round is not None:
            counted_s = status.first_counted_unix_s
            ready_s = min(counted_s, ready_s or counted_s)
            watch.look()
            waited_s = _waited_s(watch, victim, status.last_round.index, ready_s, interval_s)
            imports_s = status.started_unix_s - started_s
            times = (imports_s, ready_s - started_s, waited_s, counted_s - started_s, ready_cpu_s)
            return Recovery(*(round(seconds, 3) for seconds in times))
        time.sleep(LOOK_EVERY_S)
    raise MachineError(f"peer {victim.number} was not counted within {COUNTED_LIMIT_S:.0f} s", "a certificate with it")


def _waited_s(watch: Watch, victim: BenchPeer, index: int, ready_s: float, interval_s: float) -> float:
    """From when it was ready and had the base of its first round, to when that round fell due or was proposed."""
    since_s = victim.running.started_unix_s - 2 * interval_s
    peers = list(watch.swarm.peers.values())
    bases = [at_s for peer in peers if (at_s := watch.committed_at(peer, index - 1, since_s)) is not None]
    own_base_s = watch.committed_at(victim, index - 1, ready_s)
    proposed = [
        line.unix_s
        for peer in peers
        for line in peer.log.since(since_s)
        if (match := PROPOSED.search(line.text)) is not None and int(match.group(1)) == index
    ]
    if not proposed or not bases:
        return 0.0
    begin_s = max(ready_s, min(own_base_s, min(proposed)) if own_base_s is not None else ready_s)
    return max(0.0, min(min(proposed), min(bases) + interval_s) - begin_s)


def rows(seen: Sequence[Recovery], settings: dict[str, object]) -> list[Row]:
    """The time that is judged, and what it is made of."""
    name = "killed peer, 50 MB of state"
    return [
        at_most(
            BENCH, f"{name}: from its start until it is counted", [r.recovery_s for r in seen], RECOVERED_S, settings
        ),
        at_most(BENCH, f"{name}: of that, imports", [r.imports_s for r in seen], None, settings),
        at_most(BENCH, f"{name}: of that, until it trains at the head", [r.ready_s for r in seen], None, settings),
        at_most(BENCH, f"{name}: of that, processor time of the daemon", [r.cpu_s for r in seen], None, settings),
        at_most(
            BENCH, f"{name}: not in that, ready before a round was due", [r.waited_s for r in seen], None, settings
        ),
    ]
