"""The newest report of each peer, with what follows from all of them kept up to date by each report, and not counted again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final

from coordinator.presence.presence import FORGET_S, PeerEntry, heard
from protocol.host.calls import NO_COMMIT
from protocol.host.report_pace import again_in_s, patience_s
from protocol.host.reports import PeerReport
from protocol.ids import CommitId, PeerId

EXPECTED_S: Final = 120.0
"""A newcomer keeps its place for so long before its first report: it opens its network first."""


class PeerBook:
    """The peers of one process of the host. A report costs the same at any number of peers, but for a heap's depth."""

    def __init__(self) -> None:
        self._entries: dict[PeerId, PeerEntry] = {}
        self._live: dict[PeerId, None] = {}
        self._heads: dict[PeerId, CommitId] = {}
        self._ends: list[tuple[float, PeerId]] = []
        """When each live peer will count as silent, soonest first. An earlier time of a peer that reported since is passed over."""

        self._expected: OrderedDict[PeerId, float] = OrderedDict()

    @property
    def entries(self) -> Mapping[PeerId, PeerEntry]:
        """Newest report of each peer. It changes with the book: copy it to keep it over an await."""
        return MappingProxyType(self._entries)

    def hear(self, peer: PeerId, report: PeerReport, now_s: float, like: bytes = b"") -> None:
        """Take a report. `like`: its digest, if it was taken."""
        num_peers = len(self.live(now_s)) + (peer not in self._live)
        entry = heard(self._entries.get(peer), report, now_s, patience_s(num_peers), like)
        self._entries[peer] = entry
        self._expected.pop(peer, None)
        if not entry.is_live(now_s):
            self._drop(peer)
            return
        self._live[peer] = None
        heappush(self._ends, (entry.seen_s + entry.patience_s, peer))
        if report.head == NO_COMMIT:
            self._heads.pop(peer, None)
        else:
            self._heads[peer] = report.head

    def live(self, now_s: float) -> Collection[PeerId]:
        """Peers that reported recently and have not said goodbye. Changes with the book, as `entries`."""
        while self._ends and self._ends[0][0] < now_s:
            _, peer = heappop(self._ends)
            entry = self._entries.get(peer)
            if entry is None or not entry.is_live(now_s):
                self._drop(peer)
        return self._live.keys()

    def heads(self, now_s: float) -> Mapping[PeerId, CommitId]:
        """The heads of live peers that have taken up the run. Changes with the book, as `entries`."""
        self.live(now_s)
        return MappingProxyType(self._heads)

    def live_reports(self, now_s: float) -> dict[PeerId, PeerReport]:
        """The reports of live peers, by peer id."""
        return {peer: self._entries[peer].report for peer in sorted(self.live(now_s))}

    def again_in_s(self, now_s: float, *, is_under_way: bool) -> float:
        """Seconds until a peer that reports now reports again (report_pace.py)."""
        return again_in_s(len(self.live(now_s)), is_under_way=is_under_way)

    def patience_s(self, now_s: float) -> float:
        """Seconds without a report after which a peer that reports now counts as silent."""
        return patience_s(len(self.live(now_s)))

    def forget(self, now_s: float) -> None:
        """Drop peers that are long gone. Call about once a second."""
        for peer in [
            peer for peer, entry in self._entries.items() if now_s - entry.seen_s > max(FORGET_S, entry.patience_s)
        ]:
            del self._entries[peer]
            self._drop(peer)

    def expect(self, peer: PeerId, now_s: float) -> bool:
        """Keep a place for a peer that is admitted and has not reported yet. Returns whether it had none."""
        is_new = peer not in self._live and peer not in self._expected
        if is_new:
            self._expected[peer] = now_s + EXPECTED_S
        return is_new

    def expect_no_more(self, peer: PeerId) -> None:
        """Give back a place that was kept."""
        self._expected.pop(peer, None)

    def places_taken(self, now_s: float) -> int:
        """The live peers, and those that were admitted and have not reported yet."""
        while self._expected and next(iter(self._expected.values())) < now_s:
            self._expected.popitem(last=False)
        return len(self.live(now_s)) + len(self._expected)

    def _drop(self, peer: PeerId) -> None:
        self._live.pop(peer, None)
        self._heads.pop(peer, None)
