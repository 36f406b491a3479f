"""Looking at a swarm while something is done to it: who suspects whom, who committed what and when, from JSON and logs."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from peer.demo.summary import HostStatus
from peer.status.status import LastRound, PeerStatus
from tests.benchmarks.swarm import BenchPeer, Swarm

FAST_S: Final = 0.04
"""Between two looks while a fault is under way: 25 a second."""
SLOW_S: Final = 0.15
HOST: Final = 0
"""The host's number among the observers; peers count from 1."""

LEADING: Final = re.compile(r"leading attempt 0 of round (\d+)")
PROPOSED: Final = re.compile(r"round (\d+), attempt (\d+): (\d+) members, by (\S+)")
CONTRIBUTING: Final = re.compile(r"contributing (\d+) tokens")
SETTLED: Final = re.compile(r"settling round \d+|finishing the acked record")
COMMITTED: Final = re.compile(r"round (\d+) committed")
GONE: Final = re.compile(r"(?:reducer )?(\S+) (?:is gone|left)")
FORKED: Final = "another lineage is preferred to ours"
LAST_LINES: Final = 200
"""More than a peer says in one round."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A round that has just been proposed: its index, who leads it, and when its proposal was first seen by anybody."""

    index: int
    opener: BenchPeer
    unix_s: float


class Watch:
    """Everything seen of a swarm so far. `look` adds one look at everybody who can be asked."""

    def __init__(self, swarm: Swarm) -> None:
        self.swarm = swarm
        self.heads: dict[int, PeerStatus] = {}
        self.rounds: dict[int, LastRound] = {}
        self._commits: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._roots: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._reached: dict[tuple[int, int], float] = {}
        self._suspecting: set[tuple[int, str]] = set()
        self._suspected_at_s: dict[tuple[int, str], list[float]] = defaultdict(list)

    def look(self, *, ask_host: bool = False) -> None:
        """Read the logs, ask the peers that can answer, and perhaps the host."""
        for peer in self.swarm.peers.values():
            peer.log.poll()
            status = peer.status()
            if status is not None:
                self._see(peer, status)
        if ask_host and (host := self.swarm.host_status()) is not None:
            self._see_host(host)

    def _see(self, peer: BenchPeer, status: PeerStatus) -> None:
        now_s = time.time()
        self.heads[peer.number] = status
        suspecting = {(peer.number, suspect) for suspect in status.suspected}
        for key in suspecting - self._suspecting:
            self._suspected_at_s[key].append(now_s)
        self._suspecting = {key for key in self._suspecting if key[0] != peer.number} | suspecting
        if not status.index:
            return
        self._commits[status.index][status.head].add(peer.number)
        self._roots[status.state_commit][status.state_root].add(peer.number)
        self._reached.setdefault((peer.number, status.index), now_s)
        if status.last_round is not None:
            self.rounds[status.last_round.index] = status.last_round

    def _see_host(self, host: HostStatus) -> None:
        for row in host.rounds:
            self._commits[row.index][row.commit].add(HOST)

    def index_of(self, peer: BenchPeer) -> int:
        """Index of the peer's head when it last answered, 0 when it never did."""
        status = self.heads.get(peer.number)
        return status.index if status is not None else 0

    def suspected_at(self, observer: BenchPeer, victim: BenchPeer, since_s: float) -> float | None:
        """When this peer first took that one for dead or cut off since then, by its log or its status, whichever said it first."""
        times = [at_s for at_s in self._suspected_at_s[observer.number, victim.peer_id] if at_s >= since_s][:1]
        for line in observer.log.since(since_s):
            match = GONE.search(line.text)
            if match is not None and match.group(1) == victim.short:
                times.append(line.unix_s)
                break
        return min(times, default=None)

    def committed_at(self, peer: BenchPeer, index: int, since_s: float) -> float | None:
        """When this peer had the commit of this index, or one after it; its log knows better than our looks."""
        for line in peer.log.since(since_s):
            match = COMMITTED.search(line.text)
            if match is not None and int(match.group(1)) == index:
                return line.unix_s
        times = [
            at_s for (number, reached), at_s in self._reached.items() if number == peer.number and reached >= index
        ]
        return min(times, default=None)

    def openings(self, since_s: float) -> list[Opening]:
        """The first attempts that were proposed since then, to all peers of the swarm."""
        found = []
        for peer in self.swarm.peers.values():
            for line in peer.log.since(since_s):
                match = PROPOSED.search(line.text)
                if match is None or match.group(2) != "0" or int(match.group(3)) < len(self.swarm.peers):
                    continue
                opener = self.swarm.by_short(match.group(4))
                if opener is not None:
                    found.append(Opening(int(match.group(1)), opener, line.unix_s))
        return sorted(found, key=lambda opening: opening.unix_s)

    def rounds_s(self, since_s: float) -> list[float]:
        """How long the rounds of all peers took since then, from the first word of the proposal to the last peer's commit."""
        begun: dict[int, float] = {}
        for opening in self.openings(since_s):
            begun.setdefault(opening.index, opening.unix_s)
        times = []
        for index, begun_s in begun.items():
            ends = [self.committed_at(peer, index, begun_s) for peer in self.swarm.peers.values()]
            known = [end for end in ends if end is not None]
            if len(known) == len(ends):
                times.append(max(known) - begun_s)
        return times

    def is_one_chain(self, first: int, stop: int) -> bool:
        """Whether nobody was ever seen with another commit than the others, from one index to before another."""
        return all(len(commits) == 1 for index, commits in self._commits.items() if first <= index < stop)

    def is_common(self, first: int, stop: int, observers: Iterable[int]) -> bool:
        """Whether all of these were seen with one and the same commit: a commit's id vouches for everything before it."""
        wanted = set(observers)
        seen = [who for index, commits in self._commits.items() if first <= index < stop for who in commits.values()]
        return any(wanted <= who for who in seen)

    def are_roots_equal(self, first: int, stop: int, observers: Iterable[int]) -> bool:
        """Whether these showed one state root on a commit that all of them had, and nobody another on any commit."""
        wanted, shown = set(observers), False
        for index, commits in self._commits.items():
            for commit in commits if first <= index < stop else ():
                if len(self._roots[commit]) > 1:
                    return False
                shown = shown or any(wanted <= who for who in self._roots[commit].values())
        return shown

    def has_forked(self, since_s: float, until_s: float) -> bool:
        """Whether any log tells of a second lineage in this time."""
        lines = (line for peer in self.swarm.peers.values() for line in peer.log.since(since_s))
        return any(FORKED in line.text for line in lines if line.unix_s < until_s)

    def led_by(self, opener: BenchPeer, until_s: float) -> Opening | None:
        """The last round that it said it would lead, by then."""
        led: Opening | None = None
        for line in opener.log.lines[-LAST_LINES:]:
            match = LEADING.search(line.text)
            if match is not None and line.unix_s <= until_s:
                led = Opening(int(match.group(1)), opener, line.unix_s)
        return led
