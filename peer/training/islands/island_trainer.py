"""Several islands as one trainer: the rounds see the mean of their thetas by tokens, and the sum of their tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import torch
import trio

from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, ReadAnchors, Snapshot, TrainerProgress
from averaging.rounds.traffic.spans import Record, nowhere
from peer.training.islands.island import Island, Offer
from peer.training.islands.island_group import IslandGroup, side_by_side
from peer.training.islands.sums_core import divided, together, weights_of
from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.supervision.replica_cards import Without
from peer.training.trainer import OWNER_HOLDS
from peer.training.training_plan import TrainingPlan
from peer.training.worker_channel import Scored, ScoreOrder
from peer.training.worker_errors import WorkerDied
from peer.training.worker_process import EarlyWorker


class IslandTrainer:
    """The PeerTrainer over several islands. Created by `open_island_trainer`.

    At a snapshot all islands tell their theta, each at its own step boundary, while they train on. The snapshot is the mean S by the
    tokens of that unit. Then each island moves by S - theta, so that it is S and what it trained since. One later shift fits all.

    An island that is starting or has died is not waited for:
    - dead before it told its theta: it does not count; it restarts from the anchor, and loads the anchor at the next shift;
    - dead after that, before it moved to S: it counts, as its theta is part of S; it restarts from the anchor and loads it likewise;
    - dead after it moved to S: it counts, and the same;
    - dead at a shift: it restarts from the anchor that was set before the shift.
    So it is at the anchor or at S, with what it trained since, and never between them.
    """

    def __init__(self, islands: IslandGroup, num_units: int) -> None:
        self._islands = islands
        self._state_lock = trio.Lock()
        """Held by what changes theta: a later command sees all islands moved by the one before."""

        self._joined = trio.Event()
        """Whether all islands have moved to the mean of the last snapshot."""

        self._joined.set()
        self._joining: trio.Nursery | None = None
        self._reported = [[0] * len(islands.all) for _ in range(num_units)]
        """Tokens that each island told at a unit's last snapshot and that are not credited yet."""

        self._is_held, self._held_because = False, OWNER_HOLDS
        self._record: Record = nowhere
        self.profile = self._islands.profile

    # --- the Trainer interface ---

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int, unit: int = 0) -> None:
        """Theta <- anchor on all islands."""
        async with self._state_lock:
            await self.wait_joined()
            await self.set_anchor(anchor_N, unit=unit)
            self._reported[unit] = [0] * len(self._islands.all)
            ready = await self._islands.ready()
            self._islands.leave_behind(ready, (unit,), schedule_tokens)
            await side_by_side(
                [partial(island.load, anchor_N, schedule_tokens=schedule_tokens, unit=unit) for island in ready]
            )

    async def snapshot(self, *, unit: int = 0, still_s: float = 0.0) -> Snapshot:
        """The mean of all islands, and the sum of their tokens. Steps are those of the island that took the most.

        Raises:
            WorkerDied: all islands that were there died.
        """
        async with self._state_lock:
            await self.wait_joined()
            offers: list[Offer] = []

            async def ask(island: Island) -> None:
                offer = await island.offer(unit, still_s)
                if offer is not None:
                    offers.append(offer)

            with ExitStack() as undone:
                undone.callback(_withdraw, offers, unit)
                await side_by_side([partial(ask, island) for island in await self._islands.ready()])
                if not offers:
                    raise WorkerDied(
                        "the training processes died at the snapshot", "a snapshot", "they are being restarted"
                    )
                offers.sort(key=lambda offer: self._islands.all.index(offer.island))
                mean_N = await trio.to_thread.run_sync(mean_and_ways, offers)
                undone.pop_all()
            self._note_reported(unit, offers)
            self._begin_to_join(offers, unit, still_s)
            return Snapshot(
                mean_N,
                sum(offer.tokens for offer in offers),
                max(offer.num_steps for offer in offers),
                max(offer.next_step for offer in offers),
                may_overwrite=True,
                num_readers=len(self._islands.all),
            )

    async def shift(
        self,
        shift_N: torch.Tensor,
        *,
        credited_tokens: int,
        schedule_tokens: int,
        kept: Sequence[KeptPart] = (),
        unit: int = 0,
    ) -> None:
        """Theta <- kept theta + shift on all islands; the sum of their ready tokens falls by the credited ones."""
        async with self._state_lock:
            await self.wait_joined()
            ready = await self._islands.ready()
            self._islands.leave_behind(ready, (unit,), schedule_tokens)
            now = [island.progress(unit=unit).tokens_ready for island in self._islands.all]
            shares = divided(credited_tokens, self._reported[unit], now)
            left = [max(0, told - share) for told, share in zip(self._reported[unit], shares, strict=True)]
            self._reported[unit] = left
            give = partial(_shifted, shift_N, schedule_tokens, kept, unit)
            shared = zip(self._islands.all, shares, strict=True)
            await side_by_side([partial(give, island, share) for island, share in shared if island in ready])

    async def set_anchor(self, anchor_N: torch.Tensor, *, unit: int = 0) -> None:
        """Set the anchor for restarts of any island. The vector is kept, not copied."""
        for island in self._islands.all:  # one that is left out begins there when it is tried again
            await island.set_anchor(anchor_N, unit=unit)

    async def evaluate(
        self, read: ReadAnchors, experts: Sequence[int] = (), *, has_prose: bool = True
    ) -> HeldoutLosses:
        """Held-out losses from one island; the others train on. Raises as `WorkerTrainer.evaluate`."""
        return await self._islands.on_one(lambda island: island.evaluate(read, experts, has_prose=has_prose))

    async def score(self, read: ReadAnchors, order: ScoreOrder) -> Scored:
        """Log-likelihoods or answers, from one island. Raises as `evaluate`."""
        return await self._islands.on_one(lambda island: island.score(read, order))

    def progress(self, *, unit: int = 0) -> TrainerProgress:
        """The counters of all islands together, with the ready tokens of this unit."""
        found = together(self._islands.names, [island.progress(unit=unit) for island in self._islands.all])
        return replace(found, state="held", reason=self._held_because) if self._is_held else found

    # --- beyond the Trainer interface ---

    @property
    def record(self) -> Record:
        """Told of each step's time, of any island."""
        return self._record

    @record.setter
    def record(self, record: Record) -> None:
        self._record = record
        for island in self._islands.all:
            island.record = record

    @property
    def card(self) -> str | None:
        """UUID of the first island's card, as `WorkerTrainer.card`."""
        return self._islands.active[0].card

    @property
    def card_report(self) -> CardReport | None:
        """How the first island's card trains."""
        return self._islands.active[0].card_report

    @property
    def cards(self) -> tuple[CardState, ...]:
        """Each island's card, with those that are left out."""
        return self._islands.cards()

    async def set_slowdown(self, factor: float) -> None:
        """All islands train at 1 / factor of full speed from now on."""
        await self._islands.each(lambda island: island.set_slowdown(factor))

    async def pause(self) -> None:
        """No island takes a further step until `resume`. Commands are still obeyed."""
        await self._islands.each(Island.pause)

    async def resume(self) -> None:
        """Resume training, on all islands but those that are paused by themselves."""
        await self._islands.each(Island.resume)

    async def set_paused(self, world: int, is_paused: bool, because: str = "") -> None:
        """Pause one island or let it train again, beside what the owner orders for all. Its ready tokens still count."""
        await self._islands.all[world].set_paused_alone(is_paused, because)

    def hold(self, is_held: bool, because: str = OWNER_HOLDS) -> None:
        """Tell the rounds that nothing can be contributed for now. Trained tokens are kept."""
        self._is_held, self._held_because = is_held, because

    async def wait_joined(self) -> None:
        """Wait until all islands have moved to the mean of the last snapshot."""
        await self._joined.wait()

    # --- the mean ---

    def _note_reported(self, unit: int, offers: Sequence[Offer]) -> None:
        told = {offer.island: offer.tokens for offer in offers}
        self._reported[unit] = [told.get(island, 0) for island in self._islands.all]

    def _begin_to_join(self, offers: Sequence[Offer], unit: int, still_s: float) -> None:
        """Move the islands to the mean while the caller works with it."""
        if len(offers) == 1 or self._islands.joining is None:
            offers[0].island.stand_by(offers[0], unit)
            return
        self._joined = trio.Event()
        self._islands.joining.start_soon(self._join, offers, unit, still_s)

    async def _join(self, offers: Sequence[Offer], unit: int, still_s: float) -> None:
        try:
            await side_by_side([partial(offer.island.join, offer, unit, still_s) for offer in offers])
        finally:
            self._joined.set()


def _withdraw(offers: Sequence[Offer], unit: int) -> None:
    """No mean is made of these offers: the islands stay as they are, and evaluations have room again."""
    for offer in offers:
        offer.island.withdraw(unit)


def mean_and_ways(offers: Sequence[Offer]) -> torch.Tensor:
    """The mean of the offers' thetas by their tokens, (N,) float32, summed in their order. Each theta becomes the way from itself to
    the mean.
    """
    weights = weights_of([offer.tokens for offer in offers])
    counted = [(weight, offer.theta_N) for weight, offer in zip(weights, offers, strict=True) if weight]
    (first, theta_N), *others = counted
    mean_N = theta_N * first if others else theta_N.clone()
    for weight, theta_N in others:
        mean_N.add_(theta_N, alpha=weight)
    for offer in offers:
        torch.sub(mean_N, offer.theta_N, out=offer.theta_N)
    return mean_N


async def _shifted(
    shift_N: torch.Tensor, schedule_tokens: int, kept: Sequence[KeptPart], unit: int, island: Island, share: int
) -> None:
    await island.shift(shift_N, credited_tokens=share, schedule_tokens=schedule_tokens, kept=kept, unit=unit)


@asynccontextmanager
async def open_island_trainer(
    plans: Sequence[TrainingPlan],
    anchor_N: torch.Tensor,
    early: EarlyWorker | None = None,
    devices: Sequence[Sequence[str]] = (),
    without: Without = lambda left: None,
) -> AsyncIterator[IslandTrainer]:
    """Running islands, one for each plan, that begin at `anchor_N`, (N,) with all units one after another. Their processes end with
    the context.

    Args:
        early: the first island's process, which imports already.
        devices: of each island, as of `WorkerTrainer`.
        without: as of `open_trainer`; an island without any card ends.
    """
    of_each = devices or [()] * len(plans)
    islands = IslandGroup(
        [
            Island(plan, anchor_N, None if place else early, own)
            for place, (plan, own) in enumerate(zip(plans, of_each, strict=True))
        ]
    )
    del anchor_N
    for island in islands.all:
        island.without = lambda left: without(left) if left else None
    trainer = IslandTrainer(islands, len(plans[0].units.spans))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(islands.supervise)
            yield trainer
            nursery.cancel_scope.cancel()
    finally:
        islands.close()
