"""The rounds of one stage, between what a lane brings and what the round service wants of a trainer (averaging/network/seams.py).

A lane's share waits here for the commit of its round, and the lane with it. It is of the commit on which the lane began; where that
is no longer the head, because the round came without the lane, its work is lost, which is said, and it goes on from the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import torch
import trio

from averaging.network.seams import KeptPart, Snapshot, TrainerProgress
from averaging.rounds.unit import UnitChain
from peer.lane_work import LaneShare
from peer.stage_channel import StageReply
from protocol.errors import ConfigError, TemporaryError
from protocol.ids import CommitId
from protocol.pipeline.lane_stage import LaneConfig

log = structlog.get_logger()


class NoShare(TemporaryError):
    """No lane has brought anything of this round here."""


class StageRounds:
    """The Trainer seam of one stage, and `average`, the lanes' seam.

    Args:
        chain: of the stage's unit.
        num_lanes: that are kept in the run, 0 where it is not known: of so many the next round is.
        is_in_lane: whether a lane is served, whose share will come.
    """

    def __init__(
        self,
        chain: UnitChain,
        config: LaneConfig,
        num_lanes: Callable[[], int] = lambda: 0,
        is_in_lane: Callable[[], bool] = lambda: False,
    ) -> None:
        self.num_lanes = num_lanes
        self.is_in_lane = is_in_lane
        self.restarts: Callable[[], int] = lambda: 0
        self._chain = chain
        self._config = config
        self._base: CommitId | None = None
        self._share: LaneShare | None = None
        self._changed = trio.Event()
        self._tokens_trained = 0
        self._loss_nats: float | None = None
        self._steps: list[float] = []
        self._held_because = ""

    # --- the lanes' side ---

    def newest(self) -> tuple[torch.Tensor, int]:
        """The stage's parameters that a lane begins or goes on with, (N,), and the run's tokens with them."""
        self._base = self._chain.state.head
        return self._chain.state.anchor_N, self._chain.head.total_tokens

    def stepped(self, reply: StageReply) -> None:
        """An inner step was taken here."""
        now_s = trio.current_time()
        self._steps = [at_s for at_s in self._steps if now_s - at_s < 10.0] + [now_s]
        if reply.counts:
            self._tokens_trained += self._config.step_tokens
        if reply.loss_nats is not None:
            self._loss_nats = reply.loss_nats

    async def average(self, share: LaneShare) -> torch.Tensor:
        """Bring it into the round; (N,), the parameters of the next one."""
        if self._base != self._chain.state.head or share.tokens <= 0:
            reason = "the round came without it" if share.tokens else "no step of it counts"
            log.warning("lane_share_lost", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)
            return self._chain.state.anchor_N
        self._share = share
        self._change()
        while self._share is share:
            await self._changed.wait()
        return self._chain.state.anchor_N

    # --- the round service's side ---

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Another state: what waits is not of it."""
        self._spend(0)

    async def snapshot(self) -> Snapshot:
        """The share that waits; of a lane that is still working it is waited for.

        Raises:
            NoShare: none will come.
        """
        while self._share is None:
            if not self.is_in_lane():
                raise NoShare("no lane has brought anything of this round here", "a lane")
            with trio.move_on_after(1.0):
                await self._changed.wait()
        share, steps = self._share, self._share.tokens // self._config.step_tokens
        return Snapshot(share.theta_N.to(torch.float32), share.tokens, steps, share.round * self._config.inner_steps)

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """A commit came: the lane that waits goes on from it."""
        self._spend(credited_tokens)

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Nothing: a lane goes back to its snapshots, and begins from the chain's state."""

    async def evaluate(self, anchor_N: torch.Tensor) -> float:
        """Nobody holds the whole model.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a held-out loss of one stage", "one of the whole model")

    async def evaluate_prose(self, anchor_N: torch.Tensor) -> float | None:
        """None: as `evaluate`."""
        return None

    def progress(self) -> TrainerProgress:
        """Counters as of now; tokens ready are those of the share that waits."""
        now_s = trio.current_time()
        recent = sum(1 for at_s in self._steps if now_s - at_s < 10.0)
        return TrainerProgress(
            tokens_ready=self._share.tokens if self._share is not None else 0,
            tokens_trained=self._tokens_trained,
            loss_nats=self._loss_nats,
            tokens_per_s=recent * self._config.step_tokens / 10.0,
            restarts=self.restarts(),
            state="held" if self._held_because else "training",
            reason=self._held_because,
            due_tokens=self.num_lanes() * self._config.inner_steps * self._config.step_tokens,
        )

    def hold(self, because: str) -> None:
        """Nothing may be contributed, and why; an empty reason ends it."""
        self._held_because = because

    def _spend(self, credited_tokens: int) -> None:
        share, self._share = self._share, None
        if share is not None and credited_tokens < share.tokens:
            log.warning(
                "lane_share_lost",
                lane=share.lane,
                stage=share.stage,
                tokens=share.tokens - credited_tokens,
                reason="the round's commit does not count it",
            )
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
