"""The synced steps of a run at one peer: it says where it is free, serves a stage, and owns the group where that falls to it.

As lanes are kept (peer/pipeline/lane_service.py): whoever keeps lanes there owns the group here, of which there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog
import trio

from peer.pipeline.lane_service import LOOK_EVERY_S, LaneRole, LaneService
from peer.pipeline.seats.lane_keeper import SpareHeard
from peer.pipeline.seats.lane_member import LaneMember
from peer.pipeline.seats.lane_seat import LaneSeat
from peer.pipeline.seats.synced_owner import SyncedOwner
from peer.pipeline.seats.synced_seat import SyncedSeat
from peer.pipeline.transport.lane_calls import KEEPER_CHANNEL
from peer.pipeline.transport.lane_network import LaneNetwork, OwnLoop
from peer.pipeline.transport.lane_work import LaneContext
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline.lanes import lane_forming as forming
from protocol.pipeline.messages import lane_messages as lane_msg
from protocol.pipeline.messages.lane_wire import decode_lane_message, encode_parcel
from protocol.pipeline.messages.synced_messages import SyncedReply
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.pipeline.synced.synced_group import GroupConfig
from protocol.pipeline.synced_routing import SyncedConfig

log = structlog.get_logger()

_IN_FLIGHT_A_STAGE: Final = 2


def group_config(config: LaneConfig) -> GroupConfig:
    """The numbers of a group in a run whose lanes would have these: twice as many micro-batches under way as there are stages."""
    in_flight = _IN_FLIGHT_A_STAGE * config.num_stages
    steps = SyncedConfig(config.num_stages, config.num_micro_batches, in_flight)
    return GroupConfig(
        steps,
        config.inner_steps,
        config.step_tokens,
        suspect_after_s=config.suspect_after_s,
        heldout_passes=config.heldout_passes,
    )


class SyncedOwners:
    """The group that this peer owns, where it does."""

    def __init__(self, network: LaneNetwork, spare_heard: SpareHeard) -> None:
        self.owner: SyncedOwner | None = None
        self._network = network
        self._spare_heard = spare_heard

    @property
    def lanes(self) -> Mapping[int, object]:
        """The group, by its number, while there is one."""
        owner = self.owner
        return {} if owner is None or owner.state.phase == "over" else {owner.number: owner.state}

    @property
    def num_due(self) -> int:
        """Of the group's replicas each brings its own."""
        return len(self.lanes)

    def serve(self) -> None:
        """Answer replicas and peers that are free; before the network is started."""
        self._network.serve_calls(KEEPER_CHANNEL, self._called)

    def await_reply(self, sender: PeerId, reply: SyncedReply) -> bool:
        """Before what came of work is taken: whether it is wanted.

        Raises:
            RemoteProtocolError: of no group that is owned here, or nothing that this replica was asked for.
        """
        return self._group(reply.lane).await_reply(sender, reply)

    def take_reply(self, sender: PeerId, reply: SyncedReply, data: bytes) -> None:
        """What came of work.

        Raises:
            RemoteProtocolError: of no group that is owned here.
        """
        self._group(reply.lane).take_reply(sender, reply, data)

    async def _called(self, sender: PeerId, request: bytes) -> bytes:
        try:
            message = decode_lane_message(request)
            if isinstance(message, lane_msg.LaneSpare):
                reason = self._spare_heard(sender, message)
                return encode_parcel(lane_msg.LaneAnswer(reason, 0 if reason else self.num_due))
            self._group(message.lane).hear(sender, message)
        except RemoteProtocolError as error:
            log.warning("lane_refused", sender=short(sender), reason=error.one_line())
            return encode_parcel(lane_msg.LaneAnswer(error.one_line()[:200]))
        return encode_parcel(lane_msg.LaneAnswer(""))

    def _group(self, number: int) -> SyncedOwner:
        if self.owner is None or self.owner.number != number:
            raise RemoteProtocolError(f"a word about group {number}", "one that is owned here")
        return self.owner


class SyncedService(LaneService):
    """`serve` before the network is started, then `run`."""

    def __init__(self, tools: LaneContext, role: LaneRole) -> None:
        super().__init__(tools, role)
        self.owners = SyncedOwners(tools.network, self._spare_heard)
        self.keepers = self.owners
        self.member = LaneMember(tools, self._keeper_of, self.owners.take_reply, self.owners.await_reply)
        self._served: LaneSeat | SyncedSeat | None = None

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            if isinstance(self._tools.network, OwnLoop):  # who owns the group serves in it, too
                nursery.start_soon(self._tools.network.run)
            await super().run()

    async def _keep(self, nursery: trio.Nursery) -> None:
        reason = ""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            self._served = self.member.seat or self._served
            if not self._is_keeping or self.owners.owner is not None:
                continue
            formed, members = forming.look_for_group(self._forming, self._role.index(), trio.current_time())
            self._forming = formed.state
            if formed.reason != reason:
                reason = formed.reason
                log.info("lanes_wait", reason=reason)
            if members:
                number = forming.lane_number(self._me, self._role.session, self._num_begun)
                self._num_begun += 1
                log.info("synced_begins", lane=number, members=[f"{short(p)} {stage}" for p, stage in members.items()])
                self._say_lost()
                await self._own(number, members)

    def _say_lost(self) -> None:
        """What a group had since the commit is lost with its owner, less than a round: who owns the next group says so. What was
        brought into the round already waits there for the commit.
        """
        served, self._served = self._served, None
        if not isinstance(served, SyncedSeat) or not served.has_lost_owner or served.at.round != self._role.index():
            return
        tokens = served.at.step * self._tools.config.step_tokens
        if tokens and served.at.step < self._tools.config.inner_steps:
            log.warning("synced_lost", lane=served.lane, lost_tokens=tokens, reason=served.reason)

    async def _own(self, number: int, members: dict[PeerId, int]) -> None:
        tools = self._tools
        begun = (group_config(tools.config), members, Point(self._role.index(), 0))
        owner = SyncedOwner(number, tools, begun, self._free)
        self.owners.owner = owner
        try:
            state = await owner.run()
        finally:
            self.owners.owner = None
        log.info("synced_ended", lane=number, at=str(state.at), trained_tokens=state.trained_tokens)

    def _free(self) -> tuple[tuple[PeerId, int], ...]:
        """Who could come into the group: free, and before the same round."""
        owner = self.owners.owner
        if owner is None:
            return ()
        self._forming = forming.without(self._forming, owner.state.members)
        listed = forming.spares_listed(self._forming, trio.current_time())
        round_ = owner.state.at.round
        return tuple((p, stage) for p, stages in listed for stage in stages if self._forming.spares[p].index == round_)
