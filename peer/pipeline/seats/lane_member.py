"""A peer's part in lanes. It takes a seat that a keeper assigns, serves it, and is a spare again when the seat ends.

`serve` sets the handlers before the network starts; `run` holds the seat's tasks. A peer has one seat at a time, as it holds one
stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import Stream
from peer.pipeline.seats.lane_seat import LaneSeat
from peer.pipeline.stage.stage_snapshot import is_finite
from peer.pipeline.transport.lane_calls import CALL_WITHIN_S, KEEPER_CHANNEL, MEMBER_CHANNEL, call_again, whole_answer
from peer.pipeline.transport.lane_outbox import (
    PARCEL_CHANNEL,
    answer,
    receive_in_time,
    receive_memory,
)
from peer.pipeline.transport.lane_work import PASS_COST_S, LaneContext, LaneShare
from protocol.errors import PotluckError, RemoteProtocolError, TransportError
from protocol.identity.names import peer_name
from protocol.ids import PeerId, short
from protocol.pipeline import stage_machine as lane_stage
from protocol.pipeline.messages import lane_messages as msg
from protocol.pipeline.messages.lane_wire import (
    decode_lane_message,
    decode_parcel,
    encode_lane_message,
    encode_parcel,
)
from protocol.rounds.schedule.liveness_timing import SEAT_WAIT_S
from protocol.tensors.stage_schema import StageMap, stage_schema

log = structlog.get_logger()

SEAT_WITHIN_S: Final = SEAT_WAIT_S
"""How long a member's data may arrive before the keeper's message that the lane begins or goes back."""


class LaneMember:
    """Takes seats in lanes.

    Args:
        keeper_of: returns the keeper of a lane, None for no lane of this run. Orders of any other peer are refused.
        bring: gives the share that another stage has in a dissolved lane to a holder of that stage.
        why_no_lane: returns why no lane may begin here now; empty if one may.
    """

    def __init__(
        self,
        tools: LaneContext,
        keeper_of: Callable[[int], PeerId | None],
        bring: Callable[[LaneShare], Awaitable[None]],
        why_no_lane: Callable[[], str] = lambda: "",
    ) -> None:
        self.refused = Counter[PeerId]()
        """Number of refused messages, by sender."""

        self.num_lanes = 0
        """Number of lanes in the run, as announced by the keeper; 0 if unknown."""

        self._tools = tools
        self._keeper_of = keeper_of
        self._bring_elsewhere = bring
        self._why_no_lane = why_no_lane
        self._seat: LaneSeat | None = None
        self._nursery: trio.Nursery | None = None
        self._changed = trio.Event()

    @property
    def seat(self) -> LaneSeat | None:
        """The current seat; None for a spare."""
        return self._seat

    def serve(self) -> None:
        """Register handlers for keepers and members. Call it before the network starts."""
        self._tools.network.serve_calls(MEMBER_CHANNEL, self._called)
        self._tools.network.serve_streams(PARCEL_CHANNEL, self._streamed)

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def leave(self, reason: str) -> None:
        """Give the seat back, if there is one."""
        if self._seat is not None:
            self._seat.leave(reason)

    # --- messages from the keeper ---

    async def _called(self, sender: PeerId, request: bytes) -> bytes:
        try:
            self._hear(sender, decode_lane_message(request))
        except RemoteProtocolError as error:
            self._count(sender, error)
            return encode_parcel(msg.LaneAnswer(error.one_line()[:200]))
        return encode_parcel(msg.LaneAnswer(""))

    def _hear(self, sender: PeerId, message: msg.LaneMessage) -> None:
        if isinstance(message, msg.LaneSpare | msg.LaneClaim):
            raise RemoteProtocolError(f"{type(message).__name__} to a member", "one to its keeper")
        if self._keeper_of(message.lane) != sender:
            raise RemoteProtocolError(f"{short(sender)} about lane {message.lane}", "its keeper")
        if not isinstance(message, msg.FromKeeper):
            raise RemoteProtocolError(f"{type(message).__name__} from a keeper", "a keeper's message")
        seat = self._seat if self._seat is not None and self._seat.lane == message.lane else None
        if isinstance(message, msg.LanePing):
            self.num_lanes = message.num_lanes
        if isinstance(message, msg.LaneBegin | msg.LaneBack):
            self._placed(seat, sender, message)
        elif seat is not None:
            seat.hear(message)
        elif not isinstance(message, msg.LaneEnd):
            raise RemoteProtocolError(f"a message about lane {message.lane}", "a lane that this peer has a seat in")
        self._change()

    def _placed(self, seat: LaneSeat | None, keeper: PeerId, message: msg.LaneBegin | msg.LaneBack) -> None:
        """Take, keep or lose a seat, as the keeper says."""
        me = self._tools.network.peer_id
        if me not in message.members or len(message.members) != self._tools.config.num_stages:
            if seat is not None and message.epoch > seat.state.epoch:
                seat.finish("the seat was given to another")
                return
            without = "" if me in message.members else " without this peer"
            raise RemoteProtocolError(
                f"a lane of {len(message.members)} members{without}", f"{self._tools.config.num_stages} with it"
            )
        if seat is not None:
            if seat.state.epoch != message.epoch and seat.members.index(me) != message.members.index(me):
                raise RemoteProtocolError("another stage in the same lane", f"stage {seat.stage}")
            seat.hear(message)
        elif self._seat is not None:
            raise RemoteProtocolError(f"a seat in lane {message.lane}", f"a free peer: it has one in {self._seat.lane}")
        else:
            self._take_seat(keeper, message)

    def _take_seat(self, keeper: PeerId, message: msg.LaneBegin | msg.LaneBack) -> None:
        if self._nursery is None:
            raise RemoteProtocolError("a seat in a lane", "a peer that has begun to work")
        config, stage = self._tools.config, message.members.index(self._tools.network.peer_id)
        if isinstance(message, msg.LaneBegin):
            if reason := self._why_no_lane():
                raise RemoteProtocolError(reason, "a lane whose members are at the round they announced")
            self._tools.begins(message.at.round)
            begun = lane_stage.begin(config, stage, message.at, epoch=message.epoch)
        else:
            begun = lane_stage.join(config, stage, lane_stage.WentBack(message.epoch, message.at, message.counted))
        self._seat = LaneSeat(self._tools, message.lane, keeper, message.members, begun)
        self._nursery.start_soon(self._sit, self._seat)
        log.info("lane_joined", lane=message.lane, stage=stage, epoch=message.epoch)

    async def _sit(self, seat: LaneSeat) -> None:
        try:
            shares = await seat.run()
        finally:
            self._seat = None
        self._change()
        log.info("lane_over", lane=seat.lane, stage=seat.stage, reason=seat.reason, shares=len(shares))
        async with trio.open_nursery() as bringing:  # each waits for its own round
            for share in shares:
                bringing.start_soon(self._bring, share, seat.stage)

    async def _bring(self, share: LaneShare, own_stage: int) -> None:
        try:
            await (self._tools.average(share) if share.stage == own_stage else self._bring_elsewhere(share))
        except PotluckError as error:
            log.warning("lane_share_lost", lane=share.lane, stage=share.stage, reason=error.one_line())

    # --- parcels of members ---

    async def _streamed(self, sender: PeerId, stream: Stream) -> None:
        try:
            frame = await receive_in_time(stream)
            while frame is not None:
                frame = await self._took(sender, stream, frame)
        except TransportError:
            return
        except RemoteProtocolError as error:
            self._count(sender, error)
            with suppress(TransportError):
                await answer(stream, error.one_line())

    async def _took(self, sender: PeerId, stream: Stream, frame: bytes) -> bytes | None:
        """Handle one parcel. Returns the first frame of the next one. Without a seat for it, the stream ends without an answer,
        and the sender tries again until its keeper reports the change.
        """
        parcel = decode_parcel(frame)
        if isinstance(parcel, msg.LaneGift):
            await self._take_gift(sender, parcel, stream)
            return await receive_in_time(stream)
        seat = await self._seat_of(parcel)
        frames = list[bytes | None]()
        if seat is not None:
            with seat.until_it_goes_back():
                if await seat.serve(sender, parcel, stream):
                    await answer(stream)
                frames.append(await stream.receive_frame())
        return frames[0] if frames else None

    async def _take_gift(self, sender: PeerId, gift: msg.LaneGift, stream: Stream) -> None:
        """Receive a stage's share of a dissolved lane.

        Raises:
            RemoteProtocolError: why it is not contributed to the round; it counts nowhere.
        """
        tools = self._tools
        if not 0 <= gift.stage < tools.config.num_stages:
            raise RemoteProtocolError(f"a gift of stage {gift.stage}", f"less than {tools.config.num_stages}")
        most_tokens, num_values = gift.at.step * tools.config.step_tokens, stage_size(tools.stages, gift.stage)
        if gift.tokens > most_tokens or gift.at.step > tools.config.inner_steps or gift.num_bytes != 4 * num_values:
            raise RemoteProtocolError(
                f"a gift of {gift.tokens} tokens and {gift.num_bytes} bytes",
                f"at most {most_tokens} and {4 * num_values}",
            )
        data = await receive_memory(stream, gift.num_bytes)
        theta_N = await tools.offload.run(partial(_values, data), cost_s=PASS_COST_S)
        share = LaneShare(gift.lane, gift.stage, gift.at.round, gift.tokens, theta_N)
        reason = await tools.take_gift(sender, share, partial(self._confirm, sender, gift))
        if reason:
            raise RemoteProtocolError(reason, "a part of this round")
        await answer(stream)

    async def _confirm(self, giver: PeerId, gift: msg.LaneGift) -> str:
        """Ask the lane's keeper whether this share was the giver's to give. Returns why not. The keeper confirms a share to one
        asker only.
        """
        keeper = self._keeper_of(gift.lane)
        if keeper is None:
            return f"a part of lane {gift.lane}, whose keeper is not known here"
        claim = msg.LaneClaim(gift.lane, gift.at, gift.stage, gift.tokens, giver)
        try:
            request, within_s = encode_lane_message(claim), 2 * CALL_WITHIN_S
            reply = await call_again(self._tools.network, keeper, KEEPER_CHANNEL, request, timeout_s=within_s)
            return whole_answer(reply).reason
        except PotluckError as error:
            return f"the keeper of lane {gift.lane} cannot be asked: {error.one_line()}"

    async def _seat_of(self, parcel: msg.LaneParcel) -> LaneSeat | None:
        if isinstance(parcel, msg.LaneAnswer | msg.LaneGift):
            raise RemoteProtocolError("an answer to nothing", "a parcel")
        with trio.move_on_after(SEAT_WITHIN_S):
            while True:
                seat = self._seat
                if seat is not None and seat.lane == parcel.lane and seat.epoch >= parcel.epoch:
                    return seat if seat.epoch == parcel.epoch else None
                await self._changed.wait()
        return None

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _count(self, sender: PeerId, error: RemoteProtocolError) -> None:
        self.refused[sender] += 1
        log.warning("lane_refused", sender=peer_name(sender), reason=error.one_line())


def stage_size(stages: StageMap, stage: int) -> int:
    """Number of values of a stage."""
    return stage_schema(stages, stage).num_elements


def _values(data: memoryview) -> torch.Tensor:
    """(N,) float32 in the memory of these little-endian bytes."""
    theta_N = torch.frombuffer(data, dtype=torch.float32)
    if not is_finite(theta_N):
        raise RemoteProtocolError("parameters that are not finite", "numbers")
    return theta_N
