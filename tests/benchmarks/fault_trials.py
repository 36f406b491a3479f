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
from tests.benchmarks.fault_watch import CONTRIBUTING, FAST_S, HOST, SETTLED, SLOW_S, Opening, Watch
from tests.benchmarks.points import DoomFile, Point, Struck, is_on_disk
from tests.benchmarks.processes import child_named, family, kill_all_of
from tests.benchmarks.swarm import BenchPeer, wait_until

Means = Literal["daemon", "p2pd", "worker", "session", "leave", "freeze", "cut", "point"]

HEAL_AFTER_S: Final = 6.0
"""How long a peer stays frozen or cut off."""
STRIKE_S: Final = (0.1, 0.4)
"""Earliest and latest moment of a strike after the victim began to contribute; all results are known after 0.4 s, and
here after a second."""
WARM_UP_ROUNDS: Final = 2
ROUND_LIMIT_S: Final = 60.0
BACK_LIMIT_S: Final = 90.0
NEXT_ROUND_LIMIT_S: Final = 90.0
POINT_LIMIT_S: Final = 60.0
HOST_LIMIT_S: Final = 20.0
LEAVE_LIMIT_S: Final = 40.0
JUST_NOW_S: Final = 1.0
"""A round that was proposed so long ago is still in time for a strike."""
NEWER_ROUNDS: Final = 1000
"""More than come to pass while the host is asked for what it knows."""

OPENING_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault: its means, and its target, which is any peer in mid-exchange or an opener at a point of its commit."""

    name: str
    means: Means
    point: Point | None = None

    @property
    def heals(self) -> bool:
        """Whether the victim lives on and is let go later."""
        return self.means in ("freeze", "cut")

    @property
    def ends_daemon(self) -> bool:
        """Whether the victim has to be started again."""
        return self.means in ("daemon", "session", "leave", "point")


@dataclass
class Trial:
    """The observations.

    Attributes:
        index: the round that was disturbed.
        struck_s: Unix time of the strike.
        is_at_point: whether the victim's disk shows just the point at which it was to be struck.
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
    is_at_point: bool = False
    suspected_s: dict[int, float] = field(default_factory=dict)
    round_s: float | None = None
    are_roots_equal: bool = False
    is_one_chain: bool = False
    rounds_to_count: int | None = None
    back_s: float | None = None


@dataclass(frozen=True)
class _Return:
    """A victim that is on its way back.

    Attributes:
        healed_s: Unix time of its start, or of when it was let go.
        head_then: index of the survivors' head by then.
    """

    trial: Trial
    healed_s: float
    head_then: int


class Stage:
    """Runs trials on one swarm, one after another. A victim that has to start again is watched beside the next trial, which begins
    with the next round of all peers.
    """

    def __init__(self, watch: Watch, chance: random.Random, doom: DoomFile) -> None:
        self.watch = watch
        self._swarm = watch.swarm
        self._chance = chance
        self._doom = doom
        self._calm_s = time.time()
        self._returns: list[_Return] = []
        self._last_index = 0

    def run(self, fault: Fault) -> Trial | None:
        """One trial; None when the point was not reached. Returns with all survivors in one round, and the victim on its way.

        Raises:
            MachineError: there is no round of four peers any more, so that no further trial is worth anything.
        """
        trial, opening, victim = self._strike_at_point(fault) if fault.point else self._strike_in_exchange(fault)
        if trial is None or opening is None or victim is None:
            return None
        self._last_index = trial.index
        back = self._see_through(trial, victim, opening)
        self._judge_round(trial, victim, opening)
        if fault.ends_daemon:
            if fault.means == "leave":
                victim.running.process.wait(timeout=LEAVE_LIMIT_S)
            kill_all_of(victim.running)
            started_s = self._swarm.start_peer(victim.number).running.started_unix_s
            back = _Return(trial, started_s, self._survivors_index(victim))
        self._returns.append(back)
        if fault.heals:
            self.await_return()
        return trial

    def warm_up(self, num_calm: int = 0) -> None:
        """The first rounds of a swarm meet workers that are still starting: from the third on they count. `num_calm` more are let
        pass: what an undisturbed round takes is measured before anybody is hurt, since whoever comes back is slower for a while.
        """
        for number in range(WARM_UP_ROUNDS + num_calm):
            if number == WARM_UP_ROUNDS:
                self._calm_s = time.time()
            opening = self._next_opening(time.time(), SLOW_S)
            self._look_until(lambda first=opening: self._have_committed(first, None), ROUND_LIMIT_S, SLOW_S)  # type: ignore[misc]

    def calm_rounds_s(self) -> list[float]:
        """The time of every round that was let pass."""
        return self.watch.rounds_s(self._calm_s)

    # --- the moment -----------------------------------------------------------------------------------------------------------

    def _strike_in_exchange(self, fault: Fault) -> tuple[Trial, Opening, BenchPeer]:
        """Wait for a round of all four and the moment in it; what is missed is tried at the next round."""
        deadline_s = time.monotonic() + NEXT_ROUND_LIMIT_S
        since_s = time.time() - JUST_NOW_S
        while time.monotonic() < deadline_s:
            opening = self._next_opening(since_s, OPENING_EVERY_S)
            since_s = opening.unix_s + 1e-6
            victim = self._chance.choice(self._candidates())
            targets = strike_targets(fault.means, victim)
            if targets and self._await_mid_exchange(victim, opening):
                struck_s = strike(fault.means, victim, targets)
                return Trial(fault, opening.index, victim.number, victim is opening.opener, struck_s), opening, victim
        raise MachineError(f"no round in which to strike ({fault.name})", "a round of all peers")

    def _candidates(self) -> list[BenchPeer]:
        """Not whoever has just come back: it is still to be seen in a commit."""
        returning = {back.trial.victim for back in self._returns}
        return [peer for peer in self._swarm.peers.values() if peer.number not in returning]

    def _strike_at_point(self, fault: Fault) -> tuple[Trial | None, Opening | None, BenchPeer | None]:
        """Ask for it and wait for the opener that comes there."""
        is_ready = self._look_until(lambda: self._is_whole() and self._is_roster_large(), BACK_LIMIT_S, SLOW_S)
        if fault.point is None or not is_ready:
            raise MachineError(f"no whole swarm ({fault.name})", "peers that all train")
        self._doom.arm(fault.point)
        try:
            self._look_until(lambda: self._doom.read() is not None, POINT_LIMIT_S, SLOW_S)
        finally:
            self._doom.disarm()
        struck = self._doom.read()
        if struck is None:
            return None, None, None
        victim = next(peer for peer in self._swarm.peers.values() if peer.peer_id == struck.peer)
        victim.running.process.wait(timeout=10.0)
        opening = self._opening_of(victim, struck)
        trial = Trial(fault, opening.index, victim.number, True, struck.unix_s)
        trial.is_at_point = is_on_disk(victim.state_dir, struck)
        return trial, opening, victim

    def _opening_of(self, victim: BenchPeer, struck: Struck) -> Opening:
        """The round that it had said it would lead."""
        victim.log.poll()
        led = self.watch.led_by(victim, struck.unix_s)
        if led is None:
            raise MachineError("an opener that did not say what it opens", "its log", f"read {victim.log.path}")
        return led

    def _is_roster_large(self) -> bool:
        """Whether at most one peer is missing from the roster that votes on the next round. Were it two, a strike at a third would
        take the quorum away, which is another story.
        """
        return len({back.trial.victim for back in self._returns}) <= 1

    def _is_whole(self) -> bool:
        """Whether all peers train, on one head, and miss nobody."""
        seen = [self.watch.heads.get(peer.number) for peer in self._swarm.peers.values() if peer.is_running]
        statuses = [status for status in seen if status is not None]
        is_at_work = all(s.state == s.worker_state == "training" and not s.suspected for s in statuses)
        is_one_head = len({status.head for status in statuses}) == 1
        return len(statuses) == len(self._swarm.peers) and is_at_work and is_one_head

    def _next_opening(self, since_s: float, every_s: float) -> Opening:
        deadline_s = time.monotonic() + NEXT_ROUND_LIMIT_S
        looked_s = 0.0
        while time.monotonic() < deadline_s:
            for peer in self._swarm.peers.values():
                peer.log.poll()
            openings = [opening for opening in self.watch.openings(since_s) if opening.index > self._last_index]
            if openings and self._is_roster_large():
                return openings[-1]
            if time.monotonic() - looked_s > SLOW_S:
                self._look()
                looked_s = time.monotonic()
            time.sleep(every_s)
        raise MachineError(f"no round of {len(self._swarm.peers)} peers", f"one within {NEXT_ROUND_LIMIT_S:.0f} s")

    def _await_mid_exchange(self, victim: BenchPeer, opening: Opening) -> bool:
        """Some time after the victim began to contribute; False when the exchange was over by then."""
        deadline_s = time.monotonic() + ROUND_LIMIT_S

        def says(peer: BenchPeer, said: Callable[[str], object]) -> bool:
            peer.log.poll()
            lines = peer.log.since(opening.unix_s - 1.0)
            return any(line.base == opening.index - 1 and said(line.text) for line in lines)

        while not says(victim, CONTRIBUTING.search):
            if time.monotonic() >= deadline_s or says(opening.opener, SETTLED.search):
                return False
            time.sleep(0.01)
        time.sleep(self._chance.uniform(*STRIKE_S))
        return not says(opening.opener, SETTLED.search)

    # --- what becomes of it ---------------------------------------------------------------------------------------------------

    def _see_through(self, trial: Trial, victim: BenchPeer, opening: Opening) -> _Return:
        """Look until all survivors have the round's commit; a victim that heals is let go in time. From when it may come back."""
        heals = trial.fault.heals
        back = None if heals else _Return(trial, trial.struck_s, trial.index)
        deadline_s = time.monotonic() + ROUND_LIMIT_S
        while time.monotonic() < deadline_s:
            begin_s = time.monotonic()
            self._look()
            if back is None and time.time() - trial.struck_s >= HEAL_AFTER_S:
                back = _Return(trial, heal(trial.fault.means, victim), self._survivors_index(victim))
            if back is not None and self._have_committed(opening, victim):
                return back
            time.sleep(max(0.0, begin_s + FAST_S - time.monotonic()))
        return back or _Return(trial, heal(trial.fault.means, victim), self._survivors_index(victim))

    def _survivors_index(self, victim: BenchPeer) -> int:
        return max(self.watch.index_of(peer) for peer in self._survivors(victim))

    def _have_committed(self, opening: Opening, victim: BenchPeer | None) -> bool:
        return all(self.watch.index_of(peer) >= opening.index for peer in self._survivors(victim))

    def _survivors(self, victim: BenchPeer | None) -> list[BenchPeer]:
        return [peer for peer in self._swarm.peers.values() if peer is not victim]

    def _judge_round(self, trial: Trial, victim: BenchPeer, opening: Opening) -> None:
        watch, survivors, struck_s = self.watch, self._survivors(victim), trial.struck_s
        seen = {peer.number: watch.suspected_at(peer, victim, struck_s) for peer in survivors}
        trial.suspected_s = {number: at_s - struck_s for number, at_s in seen.items() if at_s is not None}
        ends = [watch.committed_at(peer, opening.index, opening.unix_s) for peer in survivors]
        reached = [end for end in ends if end is not None]
        trial.round_s = max(reached) - opening.unix_s if len(reached) == len(ends) else None

    # --- coming back ----------------------------------------------------------------------------------------------------------

    def start_again(self, trial: Trial) -> None:
        """Start the victim of a strike that was made elsewhere. It is waited for as any other: until a certificate counts it."""
        peer, head = self._swarm.start_peer(trial.victim), max(self._heads())
        self.watch.heads.pop(trial.victim, None)  # what its last process said
        self._returns.append(_Return(trial, peer.running.started_unix_s, head))

    def await_return(self) -> None:
        """Until every victim is counted again. One that does not come by itself, which its trial then says, is started once more."""
        if self._look_until(lambda: not self._returns, BACK_LIMIT_S, SLOW_S):
            return
        for back in self._returns:
            kill_all_of(self._swarm.peers[back.trial.victim].running)
            self._swarm.start_peer(back.trial.victim)
        self._returns.clear()
        if not self._look_until(self._is_whole, BACK_LIMIT_S, SLOW_S):
            raise MachineError(f"a peer is not back after {BACK_LIMIT_S:.0f} s", "a swarm of all peers")

    def _look(self) -> None:
        self.watch.look()
        self._returns = [back for back in self._returns if not self._has_returned(back)]

    def _has_returned(self, back: _Return) -> bool:
        """Whether a certificate counts the victim again."""
        watch, victim = self.watch, self._swarm.peers[back.trial.victim]
        # a peer that lived on may still be counted in the disturbed round itself, which says nothing
        floor = max(back.trial.index, back.head_then)
        counting = (i for i, row in watch.rounds.items() if i > floor and victim.peer_id in row.members)
        first = min(counting, default=None)
        if first is None:
            return False
        back.trial.back_s = time.time() - back.healed_s
        back.trial.rounds_to_count = first - back.head_then
        return True

    def _look_until(self, condition: Callable[[], bool], limit_s: float, every_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self._look()
            if condition():
                return True
            time.sleep(every_s)
        return False

    # --- at the end -----------------------------------------------------------------------------------------------------------

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
    """The process ids that a strike goes to, looked up before the moment; empty when the peer lacks what is to be struck."""
    if means in ("daemon", "cut", "leave"):
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
    number = {"freeze": signal.SIGSTOP, "leave": signal.SIGTERM}.get(means, signal.SIGKILL)
    for pid in targets if means != "cut" else ():
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    victim.is_reachable = means not in ("freeze", "cut", "leave")
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
