"""What lanes bring into the rounds of one stage.

A lane's share waits here for the commit of its round, and the lane with it. Commits name the lanes that they count. Where the round
came without it, because its seat was empty then, the lane goes on from the head and the share is brought into the next round, once
(peer/pipeline/uncounted_shares.py); what cannot be is lost, which is said.
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
from protocol.ids import CommitId, PeerId, short
from protocol.pipeline.lanes.endings import counted_tokens
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.rounds.messages.lane_parts import LanePart
from protocol.tensors.stage_schema import stage_unit

log = structlog.get_logger()

SETTLED_REMEMBERED: Final = 64
ADOPTED_WITHIN_S: Final = 5.0
COMMITS_LOOKED_AT: Final = 64
"""The newest ones, for whether they count a lane's share: a share is brought within seconds, or with the next round."""


def together(shares: Sequence[LaneShare]) -> torch.Tensor:
    """(N,) float32: the mean of what several lanes bring by one peer, by their tokens: it counts as they would one by one."""
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
    """A loss is told to nobody."""


class StageShares:
    """What lanes bring into the rounds of one stage, and what they go on from.

    Args:
        chain: of the stage's unit.
        is_after_the_end: whether the run had all its tokens before this round, by the first stage's commits.
        measured: told (round that a lane began, held-out loss of the parameters that it began with, nats per byte).
    """

    def __init__(
        self,
        chain: UnitChain,
        config: LaneConfig,
        is_after_the_end: Callable[[int], Awaitable[bool]] = _never,
        measured: Callable[[int, float], None] = _unheard,
    ) -> None:
        self.measured_round = -1
        """The newest round whose first parameters were measured with this stage's part done."""

        self._chain = chain
        self._config = config
        self._is_after_the_end = is_after_the_end
        self._measured = measured
        self._base: CommitId | None = None
        self._share: LaneShare | None = None
        self._offset = 0
        """Commits of this stage less those of the first one, by which lanes count their rounds: not 0 where one of the two has lost
        rounds.
        """

        self._settled = deque[tuple[int, int]](maxlen=SETTLED_REMEMBERED)
        """(lane, round) of shares that are done with here."""

        self._owed: dict[tuple[int, int], LaneShare] = {}
        """Of rounds that are over and did not count them, by (lane, round)."""

        self._anchors = Anchors()

        self._gifts: dict[int, LaneShare] = {}
        """Of lanes that are no more, by their numbers, for the round on the head."""

        self._changed = trio.Event()
        self._tokens_trained = 0
        self._loss_nats: float | None = None
        self._steps: list[float] = []
        self._held_because = ""
        self._pace = StageThroughput(config.num_micro_batches, config.step_tokens)

    @property
    def index(self) -> int:
        """Of the stage's newest commit."""
        return self._chain.state.index

    # --- what lanes ask and tell ---

    def newest(self) -> tuple[torch.Tensor, int]:
        """The stage's parameters that a lane begins or goes on with, (N,), and the run's tokens with them."""
        self._base = self._chain.state.head
        return self._chain.state.anchor_N, self._chain.head.total_tokens

    def begins(self, round_: int) -> None:
        """A lane begins with this round here, which is the next one of this stage, whatever its number."""
        self._offset = self._chain.state.index - round_

    def stepped(self, reply: StageReply) -> None:
        """An inner step was taken here."""
        now_s = trio.current_time()
        self._steps = [at_s for at_s in self._steps if now_s - at_s < 10.0] + [now_s]
        if reply.counts:
            self._tokens_trained += self._config.step_tokens
        if reply.loss_nats is not None:
            self._loss_nats = reply.loss_nats

    def passed(self, at: Point, work: Pass, reply: StageReply) -> None:
        """A pass was computed here; the last of those that measure tells the loss, at the last stage."""
        config = self._config
        if not work.is_backward and work.number == config.num_micro_batches + config.heldout_passes - 1 >= 0:
            self.measured_round = max(self.measured_round, at.round)
        if reply.heldout_nats is not None:
            self._measured(at.round, reply.heldout_nats)

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """The training process was busy for so long."""
        self._pace.worked(work, busy_s)

    @property
    def could_tokens_per_s(self) -> float:
        """What this stage could do here, were it never to wait for others; 0 before it is known."""
        return self._pace.tokens_per_s

    @property
    def first_pass_s(self) -> float | None:
        """Of computing until the stage's first pass was done here; None before."""
        return self._pace.first_pass_s

    async def average(self, share: LaneShare) -> torch.Tensor:
        """Bring it into the round; (N,), the parameters of the next one. What a lane brings once more, because it went back to the end
        of a round that is over, counts no more.
        """
        await self._wait_adopted()
        if self._is_done_with(share) or await self._is_after_the_end(share.round):
            return self._goes_on(share)
        if self._base != self._chain.state.head or not self._is_next(share) or share.tokens <= 0:
            self._came_late(share)
            return self._goes_on(share)
        if self._share is not None and self._share.lane != share.lane:
            # of a lane that ended in this round; we serve another one since
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
        """Where a commit came: until it is known here how it moves the parameters."""
        with trio.move_on_after(ADOPTED_WITHIN_S):
            while self._anchors.is_behind(self._chain.state.head):
                await self._changed.wait()

    def _withdraw(self, share: LaneShare) -> None:
        """Its seat is over, or goes back, before the round was: who takes the seat brings the same, or the lane's end says who."""
        if self._share is share:
            self._share = None
            log.info("lane_share_withdrawn", lane=share.lane, stage=share.stage, tokens=share.tokens)
            self._change()

    def _goes_on(self, share: LaneShare) -> torch.Tensor:
        """(N,): a lane that brought this begins its next round from here, which is this stage's next one."""
        self._offset = self._chain.state.index - (share.round + 1)
        return self._chain.state.anchor_N

    async def take_gift(self, giver: PeerId, share: LaneShare, confirm: Confirm) -> str:
        """Bring the part of a lane that is no more into the round, too; why not, where it is not of this round and stage, or was not
        its giver's to give.
        """
        is_ours = stage_unit(share.stage) == self._chain.state.unit
        if is_ours and (self._has_gift(share) or self._is_done_with(share)):
            return ""  # its answer was lost on the way, or who died had brought it
        reason = self._why_no_gift(share) or await confirm() or self._why_no_gift(share)
        if reason:
            return reason
        log.info("lane_gift", lane=share.lane, stage=share.stage, tokens=share.tokens, giver=short(giver))
        if self._is_next(share):
            self._gifts[share.lane] = share
            self._change()
        elif not self._is_done_with(share):
            self._came_late(share)
        return ""

    def _is_next(self, share: LaneShare) -> bool:
        return share.round + self._offset == self._chain.state.index

    def _is_last(self, share: LaneShare) -> bool:
        """Whether it is of the round that came last, from whose beginning on it is known here how the parameters moved."""
        move, link = self._anchors.move, self._chain.links[-1]
        is_known = move is not None and (move.base, move.head) == (link.parent, link.commit)
        return is_known and share.round + self._offset + 1 == self._chain.state.index

    def _is_done_with(self, share: LaneShare) -> bool:
        place = (share.lane, share.round)
        return place in self._settled or place in self._owed or self._counted(share) > 0

    def _counted(self, share: LaneShare) -> int:
        """Tokens of it that commits count, whoever brought them."""
        return counted_tokens(self._chain.links[-COMMITS_LOOKED_AT:], share.lane, share.round)

    def _came_late(self, share: LaneShare) -> None:
        """Of the round before this one: into the next one, if it can be."""
        if share.tokens > 0 and self._is_last(share):
            self._owe(share)
            return
        reason = "the round came without it" if share.tokens else "no step of it counts"
        log.warning("lane_share_lost", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)
        self._settled.append((share.lane, share.round))

    def _owe(self, share: LaneShare) -> None:
        if self._anchors.move is not None:
            self._owed[share.lane, share.round] = self._anchors.move.of(share)
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
        """What is brought into the round here."""
        return [*self._ready, *(share for _, share in sorted(self._owed.items()))]

    @property
    def _ready(self) -> list[LaneShare]:
        """Of this round alone: it is due by these. A lane that waits here, and whose part is given to us, too, because its keeper did
        not hear us, brings it once; the gift stays for where the seat is lost before the commit.
        """
        own = () if self._share is None else (self._share,)
        return [*own, *(gift for lane, gift in sorted(self._gifts.items()) if not own or lane != own[0].lane)]

    @property
    def owed_tokens(self) -> int:
        """Of rounds that are over and did not count them; the next one is to."""
        return sum(share.tokens for share in self._owed.values())

    # --- what the round service asks and tells, by `StageRounds` ---

    @property
    def is_waiting(self) -> bool:
        """Whether a lane that is served here has brought its share and waits for the commit."""
        return self._share is not None

    async def wait_changed(self) -> None:
        """Until something else is brought here, or a commit came."""
        await self._changed.wait()

    def snapshot(self) -> Snapshot:
        """All that is brought here, as one part of the round; there is something."""
        shares = self.brought
        tokens = sum(share.tokens for share in shares)
        steps, begun = tokens // self._config.step_tokens, shares[0].round * self._config.inner_steps
        lanes = tuple(LanePart(one.lane, one.round, one.tokens) for one in shares)
        return Snapshot(together(shares), tokens, steps, begun, lanes)

    def loaded(self, anchor_N: torch.Tensor) -> None:
        """Another state, (N,): what waits is not of it."""
        self._anchors.forget()
        self.spend()
        self._anchors.moved_to(self._chain.state.head, anchor_N)

    def anchor_moved(self, anchor_N: torch.Tensor) -> None:
        """The parameters of the newest commit, (N,)."""
        if anchor_N is self._chain.state.anchor_N:
            self._anchors.moved_to(self._chain.state.head, anchor_N)
        else:  # one more commit is here already, and comes next: what both moved together is not known
            self._anchors.forget()

    def progress(self, num_lanes: int, restarts: int) -> TrainerProgress:
        """Counters as of now; tokens ready are those of the share that waits.

        Args:
            num_lanes: that are kept in the run, 0 where it is not known: of so many the next round is.
            restarts: of the training process.
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
        """The run is over: what is owed here is in no round, so that other stages count that lane once more than this one."""
        for share in self._owed.values():
            reason = "the run is over, and no commit of this stage counts it"
            log.warning("lane_share_lost", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)

    def hold(self, because: str) -> None:
        """Nothing may be contributed, and why; an empty reason ends it."""
        self._held_because = because

    def spend(self) -> None:
        """A commit came: the lane that waits goes on from it, and what it does not count is owed."""
        shares, self._share, self._gifts, self._owed = self.brought, None, {}, {}
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
