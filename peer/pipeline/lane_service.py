"""The lanes of a run at one peer: it says where it is free, takes seats, and keeps lanes where that falls to it.

What decides is in protocol/pipeline/lanes/lane_forming.py; lane_member.py serves a seat, lane_keeper.py keeps a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import torch
import trio

from averaging.rounds.lineage.round_context import is_gone
from peer.pipeline.seats.lane_keeper import LaneKeepers
from peer.pipeline.seats.lane_member import LaneMember
from peer.pipeline.transport.lane_calls import CALL_WITHIN_S, KEEPER_CHANNEL, call_again, whole_answer
from peer.pipeline.transport.lane_outbox import RETRY_AFTER_S, give
from peer.pipeline.transport.lane_work import LaneContext, LaneShare
from peer.status.status import LaneStatus
from protocol.errors import PotluckError, TransportError
from protocol.ids import CommitId, PeerId, short
from protocol.pipeline.lanes import lane_forming as forming
from protocol.pipeline.lanes.endings import EndedLane, empty_since, paused_because
from protocol.pipeline.messages import lane_messages as msg
from protocol.pipeline.messages.lane_wire import encode_lane_message
from protocol.pipeline.stage_machine import Point

log = structlog.get_logger()

TELL_EVERY_S: Final = 1.0
LOOK_EVERY_S: Final = 0.25
GIVEN_TRIES: Final = 3
GONE_FOR_S: Final = 10.0
"""A keeper that did not answer is not asked again for so long while others are there."""


@dataclass(frozen=True)
class LaneRole:
    """What this peer is in the run's lanes.

    Attributes:
        stage: that it holds.
        session: of its process.
        genesis: of the run's spine.
        holders: the live holders of a stage, ourselves with them where we are one.
        index: of the newest commit of our stage.
        why_not: why no seat is taken now, in words; empty where one is.
        could_tokens_per_s: what our stage could do, were it never to wait for others; 0 where it is not known.
        owed_tokens: of lanes' rounds that are over and did not count them: our stage's next commit is to.
        move_reason: why our stage is the one to hold, or when we go over to another; empty before that was looked at.
    """

    stage: int
    session: int
    genesis: CommitId
    holders: Callable[[int], Sequence[PeerId]]
    index: Callable[[], int]
    why_not: Callable[[], str]
    could_tokens_per_s: Callable[[], float] = lambda: 0.0
    owed_tokens: Callable[[], int] = lambda: 0
    move_reason: Callable[[], str] = lambda: ""


class LaneService:
    """`serve` before the network is started, then `run`."""

    def __init__(self, tools: LaneContext, role: LaneRole) -> None:
        self.reason = "no lane yet"
        """Why this peer serves no lane, or which it serves."""

        self.paused = ""
        """Why the whole run stands still, as far as is known here; empty while it does not."""

        self._empty_since_s: dict[int, float] = {}
        self._tools = tools
        self._role = role
        self._me = tools.network.peer_id
        self._forming = forming.FormingState(tools.config)
        self._num_begun = 0
        self._told_index = role.index()
        self._is_keeping = False
        self._keeper: PeerId | None = None
        self._gone: dict[PeerId, float] = {}
        self.keepers = LaneKeepers(tools.network, tools.config, self._spares, self._spare_heard)
        self.member = LaneMember(tools, self._keeper_of, self.bring, self._why_no_lane)

    @property
    def lane(self) -> int | None:
        """That is served here."""
        return self.member.seat.lane if self.member.seat is not None else None

    def status(self) -> LaneStatus:
        """As it is shown to the owner and reported to the host."""
        return LaneStatus(
            lane=self.lane,
            lane_reason=self.reason,
            move_reason=self.move_reason(),
            could_tokens_per_s=self.could_tokens_per_s(),
            owed_tokens=self.owed_tokens(),
            paused=self.paused,
        )

    @property
    def role(self) -> LaneRole:
        """What this peer is in the run."""
        return self._role

    @property
    def is_in_lane(self) -> bool:
        """Whether one is served here."""
        return self.member.seat is not None

    @property
    def is_needed(self) -> bool:
        """Whether this peer would be missed where others would not be: it keeps lanes, or serves in one while others are free."""
        return self._is_keeping or self.is_in_lane

    @property
    def num_lanes(self) -> int:
        """That are kept in the run, as far as it is known here; 0 where it is not."""
        return self.keepers.num_due if self._is_keeping else self.member.num_lanes

    @property
    def ended_lanes(self) -> Mapping[int, EndedLane]:
        """How the newest lanes that were kept here ended, by their numbers."""
        return self.keepers.ended

    def could_tokens_per_s(self) -> float:
        """What our stage could do, were it never to wait for others; 0 where it is not known."""
        return self._role.could_tokens_per_s()

    def owed_tokens(self) -> int:
        """Of lanes' rounds that are over and did not count them: our stage's next commit is to."""
        return self._role.owed_tokens()

    def move_reason(self) -> str:
        """Why our stage is the one to hold, or when we go over to another; empty before that was looked at."""
        return self._role.move_reason()

    def serve(self) -> None:
        """Answer keepers, members and spares; before the network is started."""
        self.keepers.serve()
        self.member.serve()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.member.run)
            nursery.start_soon(self._tell)
            nursery.start_soon(self._keep, nursery)

    # --- as one who may take a seat ---

    def _keeper_of(self, lane: int) -> PeerId | None:
        seat = self.member.seat
        return seat.keeper if seat is not None and seat.lane == lane else self._keeper

    def _why_no_lane(self) -> str:
        """A lane is made of what its members said last. One whose stage went on since would begin a round ahead of the others."""
        index = self._role.index()
        return "" if index == self._told_index else f"a lane of round {self._told_index + 1}, here it is {index + 1}"

    async def _tell(self) -> None:
        """While we are free, say so to who keeps lanes; where nobody does, begin to."""
        while True:
            self._look_for_lost_stages()
            seat, why_not = self.member.seat, self._role.why_not()
            if seat is not None:
                self.reason = f"stage {seat.stage} of lane {seat.lane}"
                if why_not:
                    self.member.leave(why_not)
            elif why_not:
                self.reason = why_not
            else:
                await self._tell_keeper()
            await trio.sleep(TELL_EVERY_S)

    def _look_for_lost_stages(self) -> None:
        """A stage that nobody holds stops all others, and its next holder lets them go on: both are said once."""
        now_s, was_paused = trio.current_time(), self.paused
        num_holders = [len(self._role.holders(stage)) for stage in range(self._tools.config.num_stages)]
        self._empty_since_s = empty_since(self._empty_since_s, num_holders, now_s)
        self.paused = paused_because(self._empty_since_s, now_s)
        if self.paused and self.paused != was_paused:
            log.warning("run_paused", reason=self.paused)
        elif was_paused and not self.paused:
            log.info("run_goes_on", reason="somebody who is there holds each stage again")

    async def _tell_keeper(self) -> None:
        now_s = trio.current_time()
        self._gone = {peer: at_s for peer, at_s in self._gone.items() if now_s - at_s < GONE_FOR_S}
        order = forming.keeper_order(self._role.genesis, self._role.holders(0))
        is_idle = self._keeper == self._me and not self.keepers.lanes  # two may have begun to keep lanes at once
        if is_idle and (keeper := await self._keeper_with_lanes(order)) is not None:
            log.info("lane_keeper", keeper=short(keeper), reason="it keeps lanes, and we keep none")
            self._keeper, self._is_keeping = keeper, False
            return
        asked = [self._keeper] if self._keeper is not None and not is_idle else []
        for peer in dict.fromkeys((*asked, *order)):
            if peer not in self._gone and await self._takes_us(peer):
                if peer != self._keeper:
                    log.info("lane_keeper", keeper=short(peer))
                self._keeper, self._is_keeping = peer, self._is_keeping and (peer == self._me or not is_idle)
                return
        self._keeper = None
        self.reason = "nobody keeps lanes: a holder of the first stage is waited for"
        if self._role.stage == 0 and forming.may_begin_keeping(self._me, order, self._gone):
            self._is_keeping, self._keeper = True, self._me
            log.info("lanes_kept", reason="nobody who is there keeps lanes")

    async def _keeper_with_lanes(self, order: Sequence[PeerId]) -> PeerId | None:
        """Who keeps lanes although we began to: a peer that comes back may begin before it has seen that others are there. Where it
        stands before them all it would then wait for those who wait for it.
        """
        for peer in order:
            if peer not in (self._me, *self._gone) and await self._takes_us(peer) and self.member.num_lanes:
                return peer
        return None

    async def _takes_us(self, peer: PeerId) -> bool:
        self._told_index = self._role.index()
        spare = msg.LaneSpare(self._role.stage, self._told_index)
        if peer == self._me:
            return not self._spare_heard(peer, spare)
        try:
            request, within_s = encode_lane_message(spare), 2 * CALL_WITHIN_S
            reply = await call_again(self._tools.network, peer, KEEPER_CHANNEL, request, timeout_s=within_s)
            answer = whole_answer(reply)
        except PotluckError as error:
            log.debug("spare_not_told", to=short(peer), reason=error.one_line())
            if is_gone(error):  # who is slow to answer, or cut off from us just now, may keep lanes all the same
                self._gone[peer] = trio.current_time()
            return False
        if not answer.reason:
            self.member.num_lanes = answer.num_lanes
            self.reason = "free: a lane is waited for"
        return not answer.reason

    async def bring(self, share: LaneShare) -> None:
        """Give another stage's part of a lane that is no more to somebody who holds that stage: its own holder is lost, and the second
        copy was here.
        """
        gift = msg.LaneGift(
            share.lane,
            Point(share.round, share.tokens // self._tools.config.step_tokens),
            share.stage,
            share.tokens,
            4 * share.theta_N.numel(),
        )
        data = share.theta_N.to(torch.float32).numpy().tobytes()
        reasons = []
        # who served it is gone, or is about to go, though it may still be listed
        for peer in sorted(self._role.holders(share.stage), key=lambda peer: peer == share.served_by):
            reason = await self._given(peer, gift, data)
            if not reason:
                log.info("lane_share_given", lane=share.lane, stage=share.stage, tokens=share.tokens, to=short(peer))
                return
            reasons.append(reason)
        reason = "; ".join(reasons) or "nobody holds its stage"
        log.warning("lane_share_lost", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)

    async def _given(self, peer: PeerId, gift: msg.LaneGift, data: bytes) -> str:
        """Why it was not taken; empty where it was. Whoever asked the keeper for it is the one to have it: where the way to it breaks
        it is given once more.
        """
        reason = ""
        for _ in range(GIVEN_TRIES):
            try:
                return await give(self._tools.network, peer, gift, data)
            except TransportError as error:
                reason = error.one_line()
                if is_gone(error) and peer not in self._role.holders(gift.stage):
                    break
            except PotluckError as error:
                return error.one_line()
            await trio.sleep(RETRY_AFTER_S)
        return reason

    # --- as one who keeps lanes ---

    def _spare_heard(self, peer: PeerId, spare: msg.LaneSpare) -> str:
        if not self._is_keeping:
            return "no lanes are kept here"
        told = forming.Spare(spare.stage, spare.index, trio.current_time())
        self._forming = forming.heard(self._forming, peer, told)
        return ""

    def _spares(self) -> tuple[tuple[PeerId, frozenset[int]], ...]:
        return forming.spares_listed(self._forming, trio.current_time())

    async def _keep(self, nursery: trio.Nursery) -> None:
        reason = ""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if not self._is_keeping:
                continue
            lanes = self.keepers.lanes.values()
            taken = {peer for lane in lanes for peer in lane.living}
            self._forming = forming.without(self._forming, taken)
            running = [lane.at for lane in lanes]
            formed = forming.decide(self._forming, self._role.index(), running, trio.current_time())
            self._forming = formed.state
            if formed.reason != reason:
                reason = formed.reason
                log.info("lanes_wait", reason=reason)
            for members in formed.lanes:
                number = forming.lane_number(self._me, self._role.session, self._num_begun)
                self._num_begun += 1
                log.info("lane_begins", lane=number, members=[short(peer) for peer in members])
                nursery.start_soon(self._one, number, members, Point(self._role.index(), 0))

    async def _one(self, number: int, members: tuple[PeerId, ...], at: Point) -> None:
        try:
            state = await self.keepers.keep(number, members, at)
        except PotluckError as error:
            log.warning("lane_not_kept", lane=number, reason=error.one_line())
            return
        log.info("lane_ended", lane=number, at=str(state.at), lost_tokens=state.lost_tokens)
