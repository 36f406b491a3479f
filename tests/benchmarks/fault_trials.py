"""One trial: wait for a round, do something to a peer in the middle of it, see what becomes of round and peer."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from protocol.errors import MachineError
from tests.benchmarks.fault_watch import CONTRIBUTING, FAST_S, HOST, SETTLED, SLOW_S, STEPS, Opening, Watch
from tests.benchmarks.processes import child_named, family, kill_all_of
from tests.benchmarks.swarm import BenchPeer, wait_until

Means = Literal["daemon", "p2pd", "worker", "session", "freeze", "cut"]

HEAL_AFTER_S: Final = 8.0
"""How long a peer stays frozen or cut off."""
STRIKE_S: Final = (0.3, 1.2)
"""Earliest and latest moment of a strike after the victim began to contribute; exchanges last two to three seconds."""
WARM_UP_ROUNDS: Final = 2
ROUND_LIMIT_S: Final = 60.0
BACK_LIMIT_S: Final = 90.0
NEXT_ROUND_LIMIT_S: Final = 90.0
HOST_LIMIT_S: Final = 20.0
NEWER_ROUNDS: Final = 1000
"""More than come to pass while the host is asked for what it knows."""

OPENING_EVERY_S: Final = 0.005
TAIL_EVERY_S: Final = 0.001
"""Between two looks at an opener's log: its steps are milliseconds apart."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done: by which means, to whom. With `step` to the opener at that step of its commit, else in mid-exchange to anybody."""

    name: str
    means: Means
    step: str = ""

    @property
    def heals(self) -> bool:
        """Whether the victim lives on and is let go later."""
        return self.means in ("freeze", "cut")

    @property
    def ends_daemon(self) -> bool:
        """Whether the victim has to be started again."""
        return self.means in ("daemon", "session")


@dataclass
class Trial:
    """What was seen.

    Attributes:
        index: the round that was disturbed.
        struck_s: Unix time of the strike.
        step_reached: the last step of the commit in the victim's log, where it led.
        suspected_s: by survivor, how long after the strike it suspected the victim.
        round_s: from the first word of the proposal to the last survivor's commit; None when that never came.
        rounds_to_count: commits since the victim was let go, up to and with the first that counts it; None when none did.
        back_s: from its start, or from when it was let go, until it was counted.
    """

    fault: Fault
    index: int
    victim: int
    was_opener: bool
    struck_s: float
    step_reached: str = ""
    suspected_s: dict[int, float] = field(default_factory=dict)
    round_s: float | None = None
    are_roots_equal: bool = False
    is_one_chain: bool = False
    rounds_to_count: int | None = None
    back_s: float | None = None


class Stage:
    """Runs trials on one swarm, one after another."""

    def __init__(self, watch: Watch, chance: random.Random) -> None:
        self.watch = watch
        self._swarm = watch.swarm
        self._chance = chance
        self._warm_s = time.time()

    def run(self, fault: Fault) -> Trial:
        """One trial; when it returns, all peers take part again.

        Raises:
            MachineError: the swarm did not come back to four peers, so that no further trial is worth anything.
        """
        opening, victim, targets = self._right_moment(fault)
        self.watch.forget_suspicions()
        struck_s = strike(fault.means, victim, targets)
        trial = Trial(fault, opening.index, victim.number, victim is opening.opener, struck_s)
        healed_s = self._see_through(fault, victim, opening, struck_s)
        self._judge_round(trial, victim, opening, struck_s)
        if fault.ends_daemon:
            victim.running.process.wait(timeout=10.0)
            victim = self._swarm.start_peer(victim.number)
            healed_s = victim.running.started_unix_s
        self._see_back(trial, victim, healed_s)
        return trial

    def warm_up(self) -> None:
        """The first rounds of a swarm meet workers that are still starting: from the third on they count."""
        for _ in range(WARM_UP_ROUNDS):
            opening = self._next_opening(time.time(), SLOW_S)
            self._look_until(lambda first=opening: self._have_committed(first, None), ROUND_LIMIT_S, SLOW_S)  # type: ignore[misc]
        self._warm_s = time.time()

    def calm_rounds_s(self, trials: Sequence[Trial]) -> list[float]:
        """The time of every round that nothing was done to."""
        return self.watch.calm_rounds_s(self._warm_s, {trial.index for trial in trials})

    # --- the moment -----------------------------------------------------------------------------------------------------------

    def _right_moment(self, fault: Fault) -> tuple[Opening, BenchPeer, list[int]]:
        """Wait for a round of all four and the moment in it; what is missed is tried at the next round."""
        deadline_s = time.monotonic() + NEXT_ROUND_LIMIT_S
        pids = {peer.number: strike_targets(fault.means, peer) for peer in self._swarm.peers.values()}
        while time.monotonic() < deadline_s:
            opening = self._next_opening(time.time(), OPENING_EVERY_S)
            victim = opening.opener if fault.step else self._chance.choice(list(self._swarm.peers.values()))
            targets = pids[victim.number]
            if not targets:
                raise MachineError(f"peer {victim.number} has no {fault.means} to strike", "a whole peer")
            came = self._await_step(fault, opening) if fault.step else self._await_mid_exchange(victim, opening)
            if came:
                return opening, victim, targets
        raise MachineError(f"no round in which to strike ({fault.name})", "a round of all peers")

    def _next_opening(self, since_s: float, every_s: float) -> Opening:
        deadline_s = time.monotonic() + NEXT_ROUND_LIMIT_S
        while time.monotonic() < deadline_s:
            for peer in self._swarm.peers.values():
                peer.log.poll()
            openings = self.watch.openings(since_s)
            if openings:
                return openings[0]
            time.sleep(every_s)
        raise MachineError(f"no round of {len(self._swarm.peers)} peers", f"one within {NEXT_ROUND_LIMIT_S:.0f} s")

    def _await_step(self, fault: Fault, opening: Opening) -> bool:
        """Until the opener's log tells of the step; False when it went by without being told."""
        log, deadline_s = opening.opener.log, time.monotonic() + ROUND_LIMIT_S
        while time.monotonic() < deadline_s:
            for line in log.since(opening.unix_s - 1.0):
                if line.base == opening.index - 1 and STEPS[fault.step].search(line.text):
                    return True
                if line.base is not None and line.base >= opening.index:
                    return False
            time.sleep(TAIL_EVERY_S)
            log.poll()
        return False

    def _await_mid_exchange(self, victim: BenchPeer, opening: Opening) -> bool:
        """Some time after the victim began to contribute; False when the exchange was over by then."""
        deadline_s = time.monotonic() + ROUND_LIMIT_S

        def says(peer: BenchPeer, said: Callable[[str], object]) -> bool:
            peer.log.poll()
            lines = peer.log.since(opening.unix_s - 1.0)
            return any(line.base == opening.index - 1 and said(line.text) for line in lines)

        while not says(victim, CONTRIBUTING.search):
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(0.01)
        time.sleep(self._chance.uniform(*STRIKE_S))
        return not says(opening.opener, SETTLED.search)

    # --- what becomes of it ---------------------------------------------------------------------------------------------------

    def _see_through(self, fault: Fault, victim: BenchPeer, opening: Opening, struck_s: float) -> float:
        """Look until all survivors have the round's commit; a victim that heals is let go in time. When it was."""
        healed_s = struck_s
        is_held = fault.heals
        deadline_s = time.monotonic() + ROUND_LIMIT_S
        while time.monotonic() < deadline_s:
            begin_s = time.monotonic()
            self.watch.look()
            if is_held and time.time() - struck_s >= HEAL_AFTER_S:
                is_held, healed_s = False, heal(fault.means, victim)
            if not is_held and self._have_committed(opening, victim):
                return healed_s
            time.sleep(max(0.0, begin_s + FAST_S - time.monotonic()))
        if is_held:
            healed_s = heal(fault.means, victim)
        return healed_s

    def _have_committed(self, opening: Opening, victim: BenchPeer | None) -> bool:
        return all(self.watch.index_of(peer) >= opening.index for peer in self._survivors(victim))

    def _survivors(self, victim: BenchPeer | None) -> list[BenchPeer]:
        return [peer for peer in self._swarm.peers.values() if peer is not victim]

    def _judge_round(self, trial: Trial, victim: BenchPeer, opening: Opening, struck_s: float) -> None:
        watch, survivors = self.watch, self._survivors(victim)
        seen = {peer.number: watch.suspected_at(peer, victim, struck_s) for peer in survivors}
        trial.suspected_s = {number: at_s - struck_s for number, at_s in seen.items() if at_s is not None}
        victim.log.poll()
        trial.step_reached = watch.step_reached(victim, opening) if trial.was_opener else ""
        ends = [watch.committed_at(peer, opening.index, opening.unix_s) for peer in survivors]
        reached = [end for end in ends if end is not None]
        begun_s = watch.proposed_at(opening.index, opening.unix_s - 1.0) or opening.unix_s
        trial.round_s = max(reached) - begun_s if len(reached) == len(ends) else None

    def _see_back(self, trial: Trial, victim: BenchPeer, healed_s: float) -> None:
        """Look until a certificate counts the victim again."""
        watch = self.watch
        head_then = max(watch.index_of(peer) for peer in self._survivors(victim))
        # a peer that lived on may still be counted in the disturbed round itself, which says nothing
        floor = max(trial.index, head_then)

        def is_back() -> bool:
            counting = (i for i, row in watch.rounds.items() if i > floor and victim.peer_id in row.members)
            first = min(counting, default=None)
            if first is None or watch.index_of(victim) < first:
                return False
            trial.back_s, trial.rounds_to_count = time.time() - healed_s, first - head_then
            return True

        if not self._look_until(is_back, BACK_LIMIT_S, SLOW_S):
            self._bring_back(victim)

    def _bring_back(self, victim: BenchPeer) -> None:
        """It did not come back by itself, which the trial says; the next one needs it."""
        kill_all_of(victim.running)
        victim = self._swarm.start_peer(victim.number)
        begun_s = time.time()
        if not self._look_until(lambda: bool(self.watch.openings(begun_s)), BACK_LIMIT_S, SLOW_S):
            raise MachineError(f"peer {victim.number} is not back after {BACK_LIMIT_S:.0f} s", "a swarm of all peers")

    def _look_until(self, condition: Callable[[], bool], limit_s: float, every_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self.watch.look()
            if condition():
                return True
            time.sleep(every_s)
        return False

    def judge(self, trials: Sequence[Trial]) -> None:
        """At the end, when the host has heard of everything, too: was there one chain, and one state, from each strike to the next?"""
        if not trials:
            return
        watch, newest = self.watch, max(self._heads())

        def host_knows() -> bool:
            watch.look(ask_host=True)
            return watch.is_common(newest, newest + NEWER_ROUNDS, (HOST,))

        wait_until(host_knows, HOST_LIMIT_S)
        ends = [(trial.index, trial.struck_s) for trial in trials[1:]] + [(newest + NEWER_ROUNDS, time.time())]
        for trial, (stop, until_s) in zip(trials, ends, strict=True):
            survivors = [number for number in self._swarm.peers if number != trial.victim]
            trial.are_roots_equal = watch.are_roots_equal(trial.index, stop, survivors)
            is_shared = watch.is_common(trial.index, stop, (HOST, *survivors))
            is_alone = watch.is_one_chain(trial.index, stop) and not watch.has_forked(trial.struck_s, until_s)
            trial.is_one_chain = is_shared and is_alone

    def _heads(self) -> list[int]:
        return [self.watch.index_of(peer) for peer in self._swarm.peers.values()]


def strike_targets(means: Means, peer: BenchPeer) -> list[int]:
    """The process ids that a strike goes to, looked up beforehand: the moment is too short for it."""
    if means in ("daemon", "cut"):
        return [peer.running.process.pid]
    if means in ("p2pd", "worker"):
        child = child_named(peer.running, "p2pd" if means == "p2pd" else "peer.worker")
        return [] if child is None else [child.pid]
    return [process.pid for process in family(peer.running)]


def strike(means: Means, victim: BenchPeer, targets: list[int]) -> float:
    """Do it; when it was done."""
    struck_s = time.time()
    if means == "cut":
        victim.place.cut()
    number = signal.SIGSTOP if means == "freeze" else signal.SIGKILL
    for pid in targets if means != "cut" else ():
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    victim.is_reachable = means not in ("freeze", "cut")
    return struck_s


def heal(means: Means, victim: BenchPeer) -> float:
    """Let a frozen or cut-off peer go; when it was."""
    if means == "cut":
        victim.place.join()
    else:
        for process in family(victim.running):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
    victim.is_reachable = True
    return time.time()
