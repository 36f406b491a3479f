"""The shares that lanes contribute to the rounds of one stage.

A lane's share waits here for the commit of its round, and the lane waits with it. Commits name the lanes that they count. If the
round completes without the share because the seat was empty, the lane continues from the head. The share then goes into the next
round, once (peer/pipeline/uncounted_shares.py). A share that cannot go into the next round is lost, and logged as lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import Snapshot, TrainerProgress
from averaging.rounds.lineage.unit_chain import UnitChain
from peer.pipeline.stage.stage_channel import StageReply
from peer.pipeline.stage.stage_throughput import StageThroughput
from peer.pipeline.transport.lane_work import Confirm, LaneShare
from peer.pipeline.uncounted_shares import Anchors
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId
from protocol.pipeline.lanes.endings import counted_tokens
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.rounds.messages.lane_parts import LanePart
from protocol.tensors.stage_schema import stage_unit

log = structlog.get_logger()

SETTLED_REMEMBERED: Final = 64
ADOPTED_WITHIN_S: Final = 5.0
COMMITS_LOOKED_AT: Final = 64
"""How many recent commits are searched for a lane's share. A share arrives within seconds, or with the next round."""


def together(shares: Sequence[LaneShare]) -> torch.Tensor:
    """(N,) float32: the mean of the shares that one peer contributes, weighted by tokens. It counts as the single shares would."""
    if len(shares) == 1:
        return shares[0].theta_N.to(torch.float32)
    tokens = sum(share.tokens for share in shares)
    mean_N = torch.zeros_like(shares[0].theta_N, dtype=torch.float64)
    for share in shares:
        mean_N += share.theta_N.to(torch.float64) * (share.tokens / tokens)
    return mean_N.to(torch.float32)


async def _never(_round: int) -> bool:
    return False


def _unheard(_round: int, _nats: float) -> None:
    """Ignore the loss."""


class StageShares:
    """The shares that lanes contribute to the rounds of one stage, and the parameters they continue from.

    Args:
        chain: of the stage's unit.
        is_after_the_end: whether the run had all its tokens before this round, by the first stage's commits.
        measured: receives (round that a lane began, held-out loss of the parameters that it began with, nats per byte).
    """

    def __init__(
        self,
        chain: UnitChain,
        config: LaneConfig,
        is_after_the_end: Callable[[int], Awaitable[bool]] = _never,
        measured: Callable[[int, float], None] = _unheard,
    ) -> None:
        self.measured_round = -1
        """The newest round whose initial parameters this stage has finished measuring."""

        self._chain = chain
        self._config = config
        self._is_after_the_end = is_after_the_end
        self._measured = measured
        self._base: CommitId | None = None
        self._share: LaneShare | None = None
        self._offset = 0
        """This stage's commit count minus the first stage's, by which lanes number rounds. It is not 0 if one of them lost
        rounds.
        """

        self._settled = deque[tuple[int, int]](maxlen=SETTLED_REMEMBERED)
        """(lane, round) of shares that are settled here."""

        self._uncounted: dict[tuple[int, int], LaneShare] = {}
        """Shares that the commit of their round did not count, by (lane, round)."""

        self._anchors = Anchors()

        self._gifts: dict[int, LaneShare] = {}
        """Shares of dissolved lanes, by lane number, for the round on the head."""

        self._changed = trio.Event()
        self._tokens_trained = 0
        self._loss_nats: float | None = None
        self._steps: list[float] = []
        self._held_because = ""
        self._throughput = StageThroughput(config.num_micro_batches, config.step_tokens)

    @property
    def index(self) -> int:
        """Index of the stage's newest commit."""
        return self._chain.state.index

    # --- called by lanes ---

    def newest(self) -> tuple[torch.Tensor, int]:
        """The stage's parameters that a lane begins or continues with, (N,), and the run's tokens at that point."""
        self._base = self._chain.state.head
        return self._chain.state.anchor_N, self._chain.head.total_tokens

    def begins(self, round_: int) -> None:
        """A lane begins with this round, which is this stage's next one, whatever its own index."""
        self._offset = self._chain.state.index - round_

    def stepped(self, reply: StageReply) -> None:
        """An inner step was taken."""
        now_s = trio.current_time()
        self._steps = [at_s for at_s in self._steps if now_s - at_s < 10.0] + [now_s]
        if reply.counts:
            self._tokens_trained += self._config.step_tokens
        if reply.loss_nats is not None:
            self._loss_nats = reply.loss_nats

    def passed(self, at: Point, work: Pass, reply: StageReply) -> None:
        """A pass was computed. At the last stage, the last measuring pass gives the held-out loss."""
        config = self._config
        if not work.is_backward and work.number == config.num_micro_batches + config.heldout_passes - 1 >= 0:
            self.measured_round = max(self.measured_round, at.round)
        if reply.heldout_nats is not None:
            self._measured(at.round, reply.heldout_nats)

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """The training process was busy for this long."""
        self._throughput.worked(work, busy_s)

    @property
    def capacity_tokens_per_s(self) -> float:
        """This stage's capacity here if it never had to wait for others; 0 if unknown."""
        return self._throughput.tokens_per_s

    @property
    def first_pass_s(self) -> float | None:
        """Compute time until the stage's first pass was done; None before that."""
        return self._throughput.first_pass_s

    async def average(self, share: LaneShare) -> torch.Tensor:
        """Contribute the share to its round. Returns the parameters of the next round, (N,). A repeat for a round that is over,
        after the lane went back to its end, is not counted again.
        """
        await self._wait_adopted()
        if self._is_done_with(share) or await self._is_after_the_end(share.round):
            return self._goes_on(share)
        if self._base != self._chain.state.head or not self._is_next(share) or share.tokens <= 0:
            self._came_late(share)
            return self._goes_on(share)
        if self._share is not None and self._share.lane != share.lane:
            # of a lane that ended in this round; this peer now serves another one
            self._gifts[self._share.lane] = self._share
        self._share = share
        self._change()
        try:
            while self._share is share:
                await self._changed.wait()
        finally:
            self._withdraw(share)
        return self._goes_on(share)

    async def _wait_adopted(self) -> None:
        """After a commit, wait until its effect on the parameters is known here."""
        with trio.move_on_after(ADOPTED_WITHIN_S):
            while self._anchors.is_behind(self._chain.state.head):
                await self._changed.wait()

    def _withdraw(self, share: LaneShare) -> None:
        """Withdraw a share whose seat ended or went back before the round completed. The new seat holder contributes the same
        share, or the end of the lane names a contributor.
        """
        if self._share is share:
            self._share = None
            log.info("lane_share_withdrawn", lane=share.lane, stage=share.stage, tokens=share.tokens)
            self._change()

    def _goes_on(self, share: LaneShare) -> torch.Tensor:
        """(N,): the parameters from which the lane begins its next round, which is this stage's next round."""
        self._offset = self._chain.state.index - (share.round + 1)
        return self._chain.state.anchor_N

    async def take_gift(self, giver: PeerId, share: LaneShare, confirm: Confirm) -> str:
        """Contribute the share of a dissolved lane to the round. Returns why not, if it is of another round or stage or was not
        its giver's to give.
        """
        is_ours = stage_unit(share.stage) == self._chain.state.unit
        if is_ours and (self._has_gift(share) or self._is_done_with(share)):
            return ""  # the answer was lost, or the dead member contributed it
        reason = self._why_no_gift(share) or await confirm() or self._why_no_gift(share)
        if reason:
            return reason
        log.info("lane_gift", lane=share.lane, stage=share.stage, tokens=share.tokens, giver=peer_name(giver))
        if self._is_next(share):
            self._gifts[share.lane] = share
            self._change()
        elif not self._is_done_with(share):
            self._came_late(share)
        return ""

    def _is_next(self, share: LaneShare) -> bool:
        return share.round + self._offset == self._chain.state.index

    def _is_last(self, share: LaneShare) -> bool:
        """Whether the share is of the newest completed round, for which the parameter move is known here."""
        move, link = self._anchors.move, self._chain.links[-1]
        is_known = move is not None and (move.base, move.head) == (link.parent, link.commit)
        return is_known and share.round + self._offset + 1 == self._chain.state.index

    def _is_done_with(self, share: LaneShare) -> bool:
        place = (share.lane, share.round)
        return place in self._settled or place in self._uncounted or self._counted(share) > 0

    def _counted(self, share: LaneShare) -> int:
        """Tokens of the share that commits already count, whichever peer contributed them."""
        return counted_tokens(self._chain.links[-COMMITS_LOOKED_AT:], share.lane, share.round)

    def _came_late(self, share: LaneShare) -> None:
        """The share is of the previous round: move it to the next one if possible."""
        if share.tokens > 0 and self._is_last(share):
            self._owe(share)
            return
        reason = "the round came without it" if share.tokens else "no step of it counts"
        log.warning("lane_share_lost", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)
        self._settled.append((share.lane, share.round))

    def _owe(self, share: LaneShare) -> None:
        if self._anchors.move is not None:
            self._uncounted[share.lane, share.round] = self._anchors.move.of(share)
        reason = "its round's commit does not count it: the next one is to"
        log.info("lane_share_owed", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)

    def _has_gift(self, share: LaneShare) -> bool:
        before = self._gifts.get(share.lane)
        if before is None or not self._is_next(share):
            return False
        return (before.stage, before.round, before.tokens) == (share.stage, share.round, share.tokens)

    def _why_no_gift(self, share: LaneShare) -> str:
        if stage_unit(share.stage) != self._chain.state.unit:
            return f"stage {share.stage}, here it is {self._chain.state.unit}"
        if not (self._is_next(share) or self._is_last(share)) or share.lane in self._gifts:
            return f"a part of round {share.round + 1}, here it is round {self._chain.state.index + 1}, or one that is here"
        return ""

    @property
    def brought(self) -> list[LaneShare]:
        """The shares contributed to the round here."""
        return [*self._ready, *(share for _, share in sorted(self._uncounted.items()))]

    @property
    def _ready(self) -> list[LaneShare]:
        """The shares of this round only; they make it due. If a waiting lane's share also arrives as a gift because its keeper
        did not hear us, it is contributed once. The gift is kept in case the seat is lost before the commit.
        """
        own = () if self._share is None else (self._share,)
        return [*own, *(gift for lane, gift in sorted(self._gifts.items()) if not own or lane != own[0].lane)]

    @property
    def owed_tokens(self) -> int:
        """Tokens of finished rounds that no commit counted. The next commit is to count them."""
        return sum(share.tokens for share in self._uncounted.values())

    # --- called by the round service, through `StageRounds` ---

    @property
    def is_waiting(self) -> bool:
        """Whether a lane served here has contributed its share and waits for the commit."""
        return self._share is not None

    async def wait_changed(self) -> None:
        """Wait until the contributed shares change or a commit arrives."""
        await self._changed.wait()

    def snapshot(self) -> Snapshot:
        """All contributed shares as one contribution. There must be at least one."""
        shares = self.brought
        tokens = sum(share.tokens for share in shares)
        steps, begun = tokens // self._config.step_tokens, shares[0].round * self._config.inner_steps
        lanes = tuple(LanePart(one.lane, one.round, one.tokens) for one in shares)
        return Snapshot(together(shares), tokens, steps, begun, lanes)

    def loaded(self, anchor_N: torch.Tensor) -> None:
        """Another state, (N,), was loaded. Discards the waiting share, which belongs to the old one."""
        self._anchors.forget()
        self.spend()
        self._anchors.moved_to(self._chain.state.head, anchor_N)

    def anchor_moved(self, anchor_N: torch.Tensor) -> None:
        """The parameters of the newest commit, (N,)."""
        if anchor_N is self._chain.state.anchor_N:
            self._anchors.moved_to(self._chain.state.head, anchor_N)
        else:  # another commit is already here and comes next, so their joint move is not known
            self._anchors.forget()

    def progress(self, num_lanes: int, restarts: int) -> TrainerProgress:
        """Current counters. The ready tokens are those of the waiting share.

        Args:
            num_lanes: number of lanes in the run, 0 if unknown. The next round expects this many shares.
            restarts: number of restarts of the training process.
        """
        now_s = trio.current_time()
        recent = sum(1 for at_s in self._steps if now_s - at_s < 10.0)
        return TrainerProgress(
            tokens_ready=sum(share.tokens for share in self._ready),
            tokens_trained=self._tokens_trained,
            loss_nats=self._loss_nats,
            tokens_per_s=recent * self._config.step_tokens / 10.0,
            restarts=restarts,
            state="held" if self._held_because else "training",
            reason=self._held_because,
            due_tokens=num_lanes * self._config.inner_steps * self._config.step_tokens,
        )

    def say_owed(self) -> None:
        """The run is over. Log the shares that no round counts: other stages count one more lane than this one."""
        for share in self._uncounted.values():
            reason = "the run is over, and no commit of this stage counts it"
            log.warning("lane_share_lost", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)

    def hold(self, because: str) -> None:
        """Block contributions and say why. An empty reason allows them again."""
        self._held_because = because

    def spend(self) -> None:
        """A commit arrived: the waiting lane continues from it, and shares that it does not count stay uncounted."""
        shares, self._share, self._gifts, self._uncounted = self.brought, None, {}, {}
        for share in shares:
            counted = self._counted(share)
            if counted == 0 and self._anchors.move is not None:
                self._owe(share)
            else:
                self._settled.append((share.lane, share.round))
                self._say_lost([share.lane], share.tokens - counted)
        self._change()

    def _say_lost(self, lanes: Sequence[int], tokens: int) -> None:
        if tokens > 0:
            reason = "the round's commit does not count it"
            log.warning("lane_share_lost", lanes=lanes, tokens=tokens, reason=reason)

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
