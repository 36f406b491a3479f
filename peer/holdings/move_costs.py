"""The cost of a move to another stage at this peer, estimated from its own start: lines and machines differ. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from averaging.rounds.lineage.round_reports import DownloadProgress
from protocol.ids import PeerId
from protocol.pipeline.placement.placement import Placement


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """Measurements of this peer; None where there is none.

    Attributes:
        download_bytes_per_s: of a state from all its donors together, within the owner's limits.
        warm_up_s: from a stage's last byte to the end of its first pass, without waits for other peers.
    """

    download_bytes_per_s: float | None = None
    warm_up_s: float | None = None


UNMEASURED = MoveCosts()


def as_measured(placement: Placement, me: PeerId, costs: MoveCosts) -> Placement:
    """The placement with this peer's own costs where known. Other peers do not know them."""
    rate, warm_up_s = costs.download_bytes_per_s, costs.warm_up_s
    servers = placement.servers
    if rate is not None:
        servers = tuple(replace(s, download_bytes_per_s=rate) if s.peer == me else s for s in servers)
    return replace(placement, servers=servers, warm_up_s=placement.warm_up_s if warm_up_s is None else warm_up_s)


class DownloadRate:
    """Download rate of the newest state. A part of the state is enough to measure it."""

    def __init__(self) -> None:
        self._began: tuple[float, DownloadProgress] | None = None
        self._newest: DownloadProgress | None = None
        self._bytes_per_s: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """None before anything was downloaded."""
        return self._bytes_per_s

    def update(self, progress: DownloadProgress, now_s: float) -> None:
        """Record the progress of a download. The first call precedes the first request."""
        begin, before = self._began, self._newest
        self._newest = progress
        if begin is None or before is None or not _goes_on(before, progress):
            self._began = now_s, progress
            return
        came_bytes, took_s = progress.bytes_here - begin[1].bytes_here, now_s - begin[0]
        if came_bytes > 0 and took_s > 0.0:
            self._bytes_per_s = came_bytes / took_s
        if progress.bytes_here == progress.bytes_all:
            self._began = None


def _goes_on(before: DownloadProgress, now: DownloadProgress) -> bool:
    is_same = (before.index, before.bytes_all) == (now.index, now.bytes_all)
    return is_same and now.bytes_here >= before.bytes_here
