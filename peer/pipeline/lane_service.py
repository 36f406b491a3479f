"""The run's lanes at one peer. It announces when it is free, takes seats, and keeps lanes if it is the keeper.

protocol/pipeline/lanes/lane_forming.py decides, lane_member.py serves a seat, and lane_keeper.py keeps a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId
from protocol.pipeline.lanes import lane_forming as forming
from protocol.pipeline.lanes.endings import empty_since, paused_because
from protocol.pipeline.messages import lane_messages as msg
from protocol.pipeline.messages.lane_wire import encode_lane_message
from protocol.pipeline.stage_machine import Point

log = structlog.get_logger()

TELL_EVERY_S: Final = 1.0
LOOK_EVERY_S: Final = 0.25
GIVEN_TRIES: Final = 3
GONE_FOR_S: Final = 10.0
"""Seconds before a keeper that did not answer is asked again, if there are other candidates."""


@dataclass(frozen=True)
class LaneRole:
    """This peer's role in the run's lanes.

    Attributes:
        stage: the stage it holds.
        session: of its process.
        genesis: of the run's spine.
        holders: returns the live holders of a stage, including this peer.
        index: returns the index of our stage's newest commit.
        why_not: returns why no seat is taken now; empty if one may be.
        capacity_tokens_per_s: the stage's capacity if it never had to wait for others; 0 if unknown.
        owed_tokens: tokens of finished rounds that no commit counted; our stage's next commit is to count them.
        move_reason: why this peer keeps its stage or moves to another; empty until that was decided.
    """

    stage: int
    session: int
    genesis: CommitId
    holders: Callable[[int], Sequence[PeerId]]
    index: Callable[[], int]
    why_not: Callable[[], str]
    capacity_tokens_per_s: Callable[[], float] = lambda: 0.0
    owed_tokens: Callable[[], int] = lambda: 0
    move_reason: Callable[[], str] = lambda: ""


class LaneService:
    """Call `serve` before the network starts, then `run`."""

    def __init__(self, tools: LaneContext, role: LaneRole) -> None:
        self.reason = "no lane yet"
        """Why this peer serves no lane, or the lane it serves."""

        self.paused = ""
        """Why the whole run is stalled, as far as this peer knows; empty while it is not."""

        self._empty_since_s: dict[int, float] = {}
        self._tools = tools
        self._role = role
        self._me = tools.network.peer_id
        self._forming = forming.FormingState(tools.config)
        self._num_begun = 0
        self._announced_index = role.index()
        self._is_keeping = False
        self._keeper: PeerId | None = None
        self._gone: dict[PeerId, float] = {}
        self.keepers = LaneKeepers(tools.network, tools.config, self._spares, self._spare_heard)
        self.member = LaneMember(tools, self._keeper_of, self.bring, self._why_no_lane)

    @property
    def lane(self) -> int | None:
        """Number of the lane served here, or None."""
        return self.member.seat.lane if self.member.seat is not None else None

    def status(self) -> LaneStatus:
        """The status shown to the owner and reported to the host."""
        return LaneStatus(
            lane=self.lane,
            lane_reason=self.reason,
            move_reason=self.move_reason(),
            could_tokens_per_s=self.capacity_tokens_per_s(),
            owed_tokens=self.owed_tokens(),
            paused=self.paused,
        )

    @property
    def role(self) -> LaneRole:
        """This peer's role in the run's lanes."""
        return self._role

    @property
    def is_in_lane(self) -> bool:
        """Whether this peer serves a lane."""
        return self.member.seat is not None

    @property
    def is_needed(self) -> bool:
        """Whether the run would miss this peer more than another: it keeps lanes, or serves in one while others are free."""
        return self._is_keeping or self.is_in_lane

    @property
    def num_lanes(self) -> int:
        """Number of lanes in the run as far as this peer knows; 0 if unknown."""
        return self.keepers.num_due if self._is_keeping else self.member.num_lanes

    def capacity_tokens_per_s(self) -> float:
        """The stage's capacity in tokens/s if it never had to wait for others; 0 if unknown."""
        return self._role.capacity_tokens_per_s()

    def owed_tokens(self) -> int:
        """Tokens of finished rounds that no commit counted. Our stage's next commit is to count them."""
        return self._role.owed_tokens()

    def move_reason(self) -> str:
        """Why this peer keeps its stage or moves to another; empty until that was decided."""
        return self._role.move_reason()

    def serve(self) -> None:
        """Register handlers for keepers, members and spares. Call it before the network starts."""
        self.keepers.serve()
        self.member.serve()

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.member.run)
            nursery.start_soon(self._announce)
            nursery.start_soon(self._keep, nursery)

    # --- as a spare ---

    def _keeper_of(self, lane: int) -> PeerId | None:
        seat = self.member.seat
        return seat.keeper if seat is not None and seat.lane == lane else self._keeper

    def _why_no_lane(self) -> str:
        """Why no lane may begin now. Lanes are formed from what members announced last, so a stage that has advanced since then
        would begin one round ahead.
        """
        index = self._role.index()
        return (
            ""
            if index == self._announced_index
            else f"a lane of round {self._announced_index + 1}, here it is {index + 1}"
        )

    async def _announce(self) -> None:
        """While free, announce this to the keeper. If there is none, become the keeper."""
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
                await self._announce_to_keeper()
            await trio.sleep(TELL_EVERY_S)

    def _look_for_lost_stages(self) -> None:
        """Log when a stage loses its last holder, which stalls all other stages, and when it has one again."""
        now_s, was_paused = trio.current_time(), self.paused
        num_holders = [len(self._role.holders(stage)) for stage in range(self._tools.config.num_stages)]
        self._empty_since_s = empty_since(self._empty_since_s, num_holders, now_s)
        self.paused = paused_because(self._empty_since_s, now_s)
        if self.paused and self.paused != was_paused:
            log.warning("run_paused", reason=self.paused)
        elif was_paused and not self.paused:
            log.info("run_goes_on", reason="every stage has a reachable holder again")

    async def _announce_to_keeper(self) -> None:
        now_s = trio.current_time()
        self._gone = {peer: at_s for peer, at_s in self._gone.items() if now_s - at_s < GONE_FOR_S}
        order = forming.keeper_order(self._role.genesis, self._role.holders(0))
        is_idle = self._keeper == self._me and not self.keepers.lanes  # two peers may have become keepers at once
        if is_idle and (keeper := await self._keeper_with_lanes(order)) is not None:
            log.info("lane_keeper", keeper=peer_name(keeper), reason="it keeps lanes, and we keep none")
            self._keeper, self._is_keeping = keeper, False
            return
        current = [self._keeper] if self._keeper is not None and not is_idle else []
        for peer in dict.fromkeys((*current, *order)):
            if peer not in self._gone and await self._takes_us(peer):
                if peer != self._keeper:
                    log.info("lane_keeper", keeper=peer_name(peer))
                self._keeper, self._is_keeping = peer, self._is_keeping and (peer == self._me or not is_idle)
                return
        self._keeper = None
        self.reason = "no peer keeps lanes: waiting for a holder of the first stage"
        if self._role.stage == 0 and forming.may_begin_keeping(self._me, order, self._gone):
            self._is_keeping, self._keeper = True, self._me
            log.info("lanes_kept", reason="no reachable peer keeps lanes")

    async def _keeper_with_lanes(self, order: Sequence[PeerId]) -> PeerId | None:
        """Another peer that keeps lanes although this one has become a keeper. A peer that rejoins may become a keeper before it
        sees the others. If it comes first in the order, it would wait for peers that wait for it.
        """
        for peer in order:
            if peer not in (self._me, *self._gone) and await self._takes_us(peer) and self.member.num_lanes:
                return peer
        return None

    async def _takes_us(self, peer: PeerId) -> bool:
        self._announced_index = self._role.index()
        spare = msg.LaneSpare(self._role.stage, self._announced_index)
        if peer == self._me:
            return not self._spare_heard(peer, spare)
        try:
            request, within_s = encode_lane_message(spare), 2 * CALL_WITHIN_S
            reply = await call_again(self._tools.network, peer, KEEPER_CHANNEL, request, timeout_s=within_s)
            answer = whole_answer(reply)
        except PotluckError as error:
            log.debug("spare_not_told", to=peer_name(peer), reason=error.one_line())
            if is_gone(error):  # a slow or unreachable peer may still keep lanes
                self._gone[peer] = trio.current_time()
            return False
        if not answer.reason:
            self.member.num_lanes = answer.num_lanes
            self.reason = "free: waiting for a lane"
        return not answer.reason

    async def bring(self, share: LaneShare) -> None:
        """Give another stage's share of a dissolved lane to a holder of that stage. Its own holder is lost, and this peer had the
        second copy.
        """
        gift = msg.LaneGift(
            share.lane,
            Point(share.round, share.tokens // self._tools.config.step_tokens),
            share.stage,
            share.tokens,
            4 * share.theta_N.numel(),
        )
        data = share.theta_N.to(torch.float32).contiguous().numpy().data.cast("B")
        reasons = []
        # the member that served it is gone or leaving, though it may still be listed
        for peer in sorted(self._role.holders(share.stage), key=lambda peer: peer == share.served_by):
            reason = await self._given(peer, gift, data)
            if not reason:
                log.info(
                    "lane_share_given", lane=share.lane, stage=share.stage, tokens=share.tokens, to=peer_name(peer)
                )
                return
            reasons.append(reason)
        reason = "; ".join(reasons) or "nobody holds its stage"
        log.warning("lane_share_lost", lane=share.lane, stage=share.stage, tokens=share.tokens, reason=reason)

    async def _given(self, peer: PeerId, gift: msg.LaneGift, data: memoryview) -> str:
        """Return why the peer refused the gift; empty if it took it. The peer that asked the keeper about the gift is the one to
        receive it, so retry with the same peer when the connection breaks.
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

    # --- as a keeper ---

    def _spare_heard(self, peer: PeerId, spare: msg.LaneSpare) -> str:
        if not self._is_keeping:
            return "no lanes are kept here"
        announced = forming.Spare(spare.stage, spare.index, trio.current_time())
        self._forming = forming.heard(self._forming, peer, announced)
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
                log.info("lane_begins", lane=number, members=[peer_name(peer) for peer in members])
                nursery.start_soon(self._one, number, members, Point(self._role.index(), 0))

    async def _one(self, number: int, members: tuple[PeerId, ...], at: Point) -> None:
        try:
            state = await self.keepers.keep(number, members, at)
        except PotluckError as error:
            log.warning("lane_not_kept", lane=number, reason=error.one_line())
            return
        log.info("lane_ended", lane=number, at=str(state.at), lost_tokens=state.lost_tokens)
