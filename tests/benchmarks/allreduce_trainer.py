"""The trainer of a benchmark peer, and the desk at which it takes orders and tells what came of them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import torch
import trio

from averaging.network.seams.interfaces import (
    HeldoutLosses,
    KeptPart,
    Network,
    ReadAnchors,
    Snapshot,
    TrafficCount,
    TrainerProgress,
    Way,
)
from averaging.rounds.traffic.spans import Record, nowhere
from averaging.rounds.unit_service import RoundService
from peer.membership.coordinator_client import CoordinatorClient
from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.worker_channel import Scored, ScoreOrder
from protocol.errors import LocalProtocolError
from tests.benchmarks.allreduce_files import (
    DELTA_SCALE,
    seed_of,
    write_result,
)
from tests.benchmarks.allreduce_marks import Marks, children_cpu_s, interface_bytes, threads_cpu_s

PART_ELEMENTS: Final = 1 << 22
"""Compared at a time: with whole vectors of 64-bit numbers four peers of 100M values would not fit into a machine."""

LOOK_EVERY_S: Final = 0.25
"""Each look wakes the daemon, which is charged for it: twenty a second took 4 ms of processor a second, of 18 that it takes idle."""

QUIET_S = 0.3
"""After a commit is kept, so long until what came of it is told: what still goes out belongs to it."""


def delta_of(rank: int, num_elements: int) -> torch.Tensor:
    """A member's delta, (N,) float32 normal noise."""
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(seed_of(rank))) * DELTA_SCALE


def relative_error(before_N: torch.Tensor, after_N: torch.Tensor, num_members: int) -> float:
    """Of what moved the anchor against the exact mean of all members' deltas, by the 2-norm; with the outer step "mean"."""
    exact_N = delta_of(0, before_N.numel()).double()
    for rank in range(1, num_members):
        exact_N += delta_of(rank, before_N.numel())
    exact_N /= num_members
    parts = zip(*(torch.split(values_N, PART_ELEMENTS) for values_N in (before_N, after_N, exact_N)), strict=True)
    off = sum(
        float(((before_n.double() - after_n.double()) - exact_n).square().sum()) for before_n, after_n, exact_n in parts
    )
    return math.sqrt(off) / float(exact_N.norm())


def _by_way(traffic: TrafficCount) -> dict[str, float]:
    """Payload bytes by lane and direction; those of the bulk lane by the way that they took, too, as `way_direct`, `way_libp2p`."""
    ways = {f"way_{way.value}": 0.0 for way in Way}
    for count in traffic.bulk:
        ways[f"way_{count.kind.way.value}"] += count.bytes_up + count.bytes_down
    lanes = ("control_bytes_up", "control_bytes_down", "bulk_bytes_up", "bulk_bytes_down")
    return {**{lane: float(getattr(traffic, lane)) for lane in lanes}, **ways}


class Desk:
    """The folder for this process's orders and its results."""

    def __init__(self, folder: Path, rank: int, tokens: int) -> None:
        self.marks = Marks()
        self.tokens = tokens
        self.rank = rank
        self.folder = folder
        self._service: RoundService | None = None
        self._network: Network | None = None
        self._host: CoordinatorClient | None = None

    def see_host(self, client: CoordinatorClient) -> None:
        """The line to the host."""
        self._host = client

    def see(self, service: RoundService, network: Network) -> None:
        """The rounds that run here."""
        self._service, self._network = service, network

    @property
    def service(self) -> RoundService:
        """The rounds that run here."""
        assert self._service is not None, "a service before trials"
        return self._service

    def counters(self) -> dict[str, float]:
        """Everything that is counted, so far."""
        assert self._network is not None, "a network before trials"
        assert self._host is not None, "a host before trials"
        to_host = self._host.traffic
        up, down = interface_bytes()
        traffic = _by_way(self._network.traffic())
        cpu = {f"cpu_{name}_s": seconds for name, seconds in threads_cpu_s().items()}
        host = {"host_bytes_up": float(to_host.bytes_up), "host_bytes_down": float(to_host.bytes_down)}
        own = {"interface_up": float(up), "interface_down": float(down), "at_s": time.time()}
        return {**traffic, **host, **cpu, **own, "cpu_process_s": time.process_time(), "cpu_p2pd_s": children_cpu_s()}


class GivenTrainer:
    """Trains nothing: ready when a trial begins, and then gives the vector of its rank."""

    def __init__(self, desk: Desk, anchor_N: torch.Tensor) -> None:
        self._desk = desk
        self._anchor_N = anchor_N
        self._theta_N = anchor_N
        self._delta_N = torch.empty(0)
        self._ready = 0
        self._last: dict[str, float] | None = None
        self._trained = 1  # who has trained nothing yet is taken to be starting
        self.record: Record = nowhere

    # --- the seam ---

    @property
    def card(self) -> str | None:
        """No card trains."""
        return ""

    @property
    def card_report(self) -> CardReport | None:
        """No card trains."""
        return None

    @property
    def cards(self) -> tuple[CardState, ...]:
        """No card trains."""
        return ()

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int, unit: int = 0) -> None:
        """The anchor is what the next vector goes by."""
        self._anchor_N, self._ready = anchor_N, 0

    async def snapshot(self, *, unit: int = 0, still_s: float = 0.0) -> Snapshot:
        """The vector that was made ready."""
        self._desk.marks.mark("ordered")
        return Snapshot(self._theta_N, self._ready, 1, self._trained)

    async def shift(
        self,
        shift_N: torch.Tensor,
        *,
        credited_tokens: int,
        schedule_tokens: int,
        kept: Sequence[KeptPart] = (),
        unit: int = 0,
    ) -> None:
        """Counted tokens are not ready any more."""
        self._ready = max(0, self._ready - credited_tokens)

    async def set_anchor(self, anchor_N: torch.Tensor, *, unit: int = 0) -> None:
        """The anchor is what the next vector goes by."""
        self._anchor_N = anchor_N

    async def evaluate(
        self, read: ReadAnchors, experts: Sequence[int] = (), *, has_prose: bool = True
    ) -> HeldoutLosses:
        """Nothing is measured."""
        return HeldoutLosses((1.0,))

    async def score(self, read: ReadAnchors, order: ScoreOrder) -> Scored:
        """The run of this benchmark has no tasks.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError("an order to score", "a run with [[evaluate]]")

    def progress(self, *, unit: int = 0) -> TrainerProgress:
        """Ready while a trial runs."""
        return TrainerProgress(self._ready, self._trained, 1.0, 1.0, 0, "training", "")

    # --- beyond the seam, as the daemon's controls expect it ---

    async def set_slowdown(self, factor: float) -> None:
        """It does nothing anyway."""

    async def pause(self) -> None:
        """It does nothing anyway."""

    async def resume(self) -> None:
        """It does nothing anyway."""

    def hold(self, is_held: bool, because: str = "") -> None:
        """It does nothing anyway."""

    # --- trials ---

    async def run(self) -> None:
        """Trial after trial, until cancelled."""
        desk = self._desk
        # orders of before a start are not this process's
        number = next(number for number in itertools.count() if not (desk.folder / f"go-{number}").exists())
        self._delta_N = await trio.to_thread.run_sync(delta_of, desk.rank, self._anchor_N.numel())
        while True:
            path = desk.folder / f"go-{number}"
            if path.exists():
                await self._trial(number, float(path.read_text()))
                number += 1
            await trio.sleep(LOOK_EVERY_S)

    async def _trial(self, number: int, begins_unix_s: float) -> None:
        desk, marks, before_N, delta_N = self._desk, self._desk.marks, self._anchor_N, self._delta_N
        self._theta_N = await trio.to_thread.run_sync(lambda: torch.sub(before_N, delta_N))
        marks.begin()
        await trio.sleep(max(0.0, begins_unix_s - time.time()))
        head = desk.service.chain.head.commit
        before = desk.counters()
        self._trained += self._desk.tokens
        self._ready = self._desk.tokens
        while "kept" not in marks.at_s or desk.service.chain.head.commit == head or not desk.service.has_adopted:
            await trio.sleep(LOOK_EVERY_S)
        await trio.sleep(QUIET_S)
        after = desk.counters()
        idle, self._last = self._last, after
        idle = None if idle is None else {name: before[name] - idle[name] for name in before}
        await trio.to_thread.run_sync(self._tell, number, before_N, before, after, idle)

    def _tell(
        self,
        number: int,
        before_N: torch.Tensor,
        before: Mapping[str, float],
        after: Mapping[str, float],
        idle: Mapping[str, float] | None,
    ) -> None:
        desk, marks = self._desk, self._desk.marks
        link, state = desk.service.chain.head, desk.service.chain.state
        record = link.record
        assert record is not None, "a commit has a record"
        marks.mark_results(record, desk.service.config.me.peer)
        members = len(record.contributors)
        is_judge = number == 0 and desk.rank == 0
        reported = {
            "steps": dict(marks.at_s),
            "offloaded_s": dict(marks.offloaded_s),
            "spent": {name: after[name] - before[name] for name in after},
            "idle": idle,
            "digest": sha256(state.anchor_N.numpy().data.cast("B")).hexdigest(),
            "members": members,
            "slices": len(record.slices),
            "attempt": record.ballot.attempt,
            "twice_bytes": marks.twice_bytes,
            "relative_error": relative_error(before_N, state.anchor_N, members) if is_judge else None,
        }
        write_result(desk.folder, desk.rank, number, reported)
