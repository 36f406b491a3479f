"""The keeper of lanes. It hears their members, decides by protocol/pipeline/lanes/lane_machine.py, and gives orders to the
members.

A keeper is any peer that all members of a lane know; it need not be a member. If the keeper is lost, its lanes end without
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from peer.pipeline.transport.lane_calls import KEEPER_CHANNEL, MEMBER_CHANNEL, CallLine
from peer.pipeline.transport.lane_network import LaneNetwork
from protocol.errors import LocalProtocolError, PotluckError, RemoteProtocolError
from protocol.identity.names import peer_name
from protocol.ids import PeerId, short
from protocol.pipeline.lanes import endings as ended_lanes
from protocol.pipeline.lanes import lane_machine as lane
from protocol.pipeline.messages import lane_messages as msg
from protocol.pipeline.messages.lane_wire import decode_lane_message, encode_parcel
from protocol.pipeline.stage_machine import LaneConfig, Point

log = structlog.get_logger()

TICK_S: Final = 0.1
GOODBYE_WITHIN_S: Final = 5.0
GIVEN_WITHIN_S: Final = 3.0
"""How long a round waits for the shares of a dissolved lane. If one stage committed without its share and another with it, the
lane would count at some stages only.
"""

Spares = Callable[[], tuple[tuple[PeerId, frozenset[int]], ...]]
"""Peers that could take a seat, each with the stages it could serve, best first."""

SpareHeard = Callable[[PeerId, msg.LaneSpare], str]
"""Maps (spare peer, its announcement) to why no keeper here can use it; empty if one can."""


def _nobody(_peer: PeerId, _spare: msg.LaneSpare) -> str:
    return "no lanes are kept here"


class LaneKeepers:
    """All lanes that this peer keeps. Call `serve` before the network starts, then `keep` for each lane."""

    def __init__(
        self, network: LaneNetwork, config: LaneConfig, spares: Spares, spare_heard: SpareHeard = _nobody
    ) -> None:
        self._network = network
        self._config = config
        self._spares = spares
        self._spare_heard = spare_heard
        self._kept: dict[int, _KeptLane] = {}
        self._ended = ended_lanes.EndedLanes()
        self._giving_s: dict[int, float] = {}

    @property
    def lanes(self) -> dict[int, lane.LaneState]:
        """States of all lanes kept here, by lane number."""
        return {number: kept.state for number, kept in self._kept.items() if kept.state.phase != "over"}

    @property
    def ended(self) -> Mapping[int, ended_lanes.EndedLane]:
        """How the most recent lanes kept here ended, by lane number."""
        return self._ended.ended

    @property
    def num_due(self) -> int:
        """Lanes whose share of the round is still to come, as announced to members. These are the lanes kept here, and lanes that
        just ended with a share, which the lost member's neighbour may still have to give to a holder of that stage.
        """
        return len(self.lanes) + len(self._giving())

    def _giving(self) -> dict[int, float]:
        now_s = trio.current_time()
        return {number: at_s for number, at_s in self._giving_s.items() if now_s - at_s < GIVEN_WITHIN_S}

    def serve(self) -> None:
        """Register the handler for members. Call it before the network starts."""
        self._network.serve_calls(KEEPER_CHANNEL, self._called)

    def state_of(self, number: int) -> lane.LaneState | None:
        """State of a lane; None if it is not kept here."""
        kept = self._kept.get(number)
        return None if kept is None else kept.state

    async def keep(self, number: int, members: tuple[PeerId, ...], at: Point) -> lane.LaneState:
        """Begin a lane and keep it until it ends. Returns its last state.

        Args:
            number: unique in the run, so that late messages of another lane are not taken for this one's.

        Raises:
            LocalProtocolError: the number of members is not the number of stages, or a lane of this number is kept already.
        """
        if number in self._kept:
            raise LocalProtocolError(f"lane {number} once more", "a lane that is not kept yet")
        state = lane.begin(self._config, members, at, trio.current_time())
        links = LaneLinks(lambda: self.num_due, partial(self._note_end, number))
        kept = self._kept[number] = _KeptLane(number, self._network, state, self._spares, links)
        try:
            return await kept.run()
        finally:
            del self._kept[number]

    def _note_end(self, number: int, ended: ended_lanes.EndedLane) -> None:
        self._ended = ended_lanes.has_ended(self._ended, number, ended)
        if ended.end.tokens:
            self._giving_s = {**self._giving(), number: trio.current_time()}

    def _claim(self, asker: PeerId, claim: msg.LaneClaim) -> str:
        done = ended_lanes.claimed(self._ended, asker, claim)
        self._ended = done.state
        return done.reason

    async def _called(self, sender: PeerId, request: bytes) -> bytes:
        try:
            message = decode_lane_message(request)
            if isinstance(message, msg.LaneSpare):
                reason = self._spare_heard(sender, message)
                return encode_parcel(msg.LaneAnswer(reason, 0 if reason else self.num_due))
            if isinstance(message, msg.LaneClaim):
                return encode_parcel(msg.LaneAnswer(self._claim(sender, message)[:200]))
            kept = self._kept.get(message.lane)
            if kept is None:
                raise RemoteProtocolError(f"a message about lane {message.lane}", "a lane that is kept here")
            kept.hear(sender, message)
        except RemoteProtocolError as error:
            log.warning("lane_refused", sender=peer_name(sender), reason=error.one_line())
            return encode_parcel(msg.LaneAnswer(error.one_line()[:200]))
        return encode_parcel(msg.LaneAnswer(""))


@dataclass(frozen=True, slots=True)
class LaneLinks:
    """Links one lane to the others: the number of lanes, and a callback for its end, called before its members hear of it."""

    num_lanes: Callable[[], int]
    ends: Callable[[ended_lanes.EndedLane], None]


class _KeptLane:
    def __init__(
        self, number: int, network: LaneNetwork, state: lane.LaneState, spares: Spares, links: LaneLinks
    ) -> None:
        self.state = state
        self._number = number
        self._network = network
        self._spares = spares
        self._links = links
        self._lines: dict[PeerId, CallLine] = {}
        self._nursery: trio.Nursery | None = None
        self._end: lane.Dissolve | None = None
        self._over = trio.Event()

    async def run(self) -> lane.LaneState:
        """Run the lane from its beginning to its end. Returns its last state."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            begin = msg.LaneBegin(self._number, self.state.epoch, self.state.at, self.state.members)
            self._send(self.state.members, begin)
            ticked_s = trio.current_time()
            while not self._over.is_set():
                self._feed(lane.SparesListed(self._spares()))
                self._feed(lane.LaneTicked(max(0.0, trio.current_time() - ticked_s - 2 * TICK_S)))
                ticked_s = trio.current_time()
                with trio.move_on_after(TICK_S):
                    await self._over.wait()
            with trio.move_on_after(GOODBYE_WITHIN_S):
                while self._lines:
                    await trio.sleep(TICK_S)
            for member in sorted(self._lines):
                self._log_lost_share(
                    member, f"was not heard for {GOODBYE_WITHIN_S:g} s, so it may have missed the end of the lane"
                )
            nursery.cancel_scope.cancel()
        return self.state

    # --- messages from members ---

    def hear(self, sender: PeerId, message: msg.LaneMessage) -> None:
        """Handle a member's message.

        Raises:
            RemoteProtocolError: the sender is not a member, or the message is not one that members send.
        """
        if sender not in self.state.living:
            raise RemoteProtocolError(f"{short(sender)} about lane {self._number}", "a member of it")
        event = _event(sender, message)
        if isinstance(event, lane.MemberLost):
            self._hang_up({sender})
        self._feed(event)

    def _feed(self, event: lane.Event) -> None:
        done = lane.step(self.state, event, trio.current_time())
        self.state = done.state
        if done.remark:
            log.debug("lane_remark", lane=self._number, remark=done.remark)
        for order in done.orders:
            log.info("lane_order", lane=self._number, order=type(order).__name__, reason=order.reason)
            self._perform(order)

    # --- messages to members ---

    def _perform(self, order: lane.Order) -> None:
        number, epoch, living = self._number, self.state.epoch, self.state.living
        match order:
            case lane.AgreeStep():
                self._send(living, msg.LaneStep(number, order.epoch, order.at, order.whole_square))
            case lane.KeepFrom():
                self._send(
                    living, msg.LanePing(number, epoch, self._links.num_lanes())
                )  # members of a busy lane get no other ping
                self._send(living, msg.LaneKeep(number, epoch, order.at))
            case lane.GoBack():
                back = msg.LaneBack(number, order.epoch, order.at, order.counted, order.members)
                self._hang_up(set(self._lines) - set(order.members))
                self._send(order.members, back, is_instead=True)
            case lane.Resume():
                self._send(living, msg.LaneResume(number, order.epoch))
            case lane.Dissolve():
                end = msg.LaneEnd(number, epoch, order.at, order.tokens, order.holders, order.reason[:200])
                self._end = order
                self._links.ends(ended_lanes.EndedLane(self.state.members, order))
                self._hang_up(set(self._lines) - set(order.survivors))
                self._send(order.survivors, end, is_instead=True)
                self._over.set()

    def _send(self, members: tuple[PeerId, ...], message: msg.FromKeeper, *, is_instead: bool = False) -> None:
        for member in members:
            line = self._lines.get(member) or self._call(member)
            if line is not None:
                (line.put_instead if is_instead else line.put)(message)

    def _call(self, member: PeerId) -> CallLine | None:
        """Open a line to a member, which carries heartbeats both ways while there is nothing else to send."""
        if self._nursery is None:
            return None
        line = self._lines[member] = CallLine(
            self._network, member, MEMBER_CHANNEL, lambda message, refused: self._answered(member, message, refused),
            lambda: msg.LanePing(self._number, self.state.epoch, self._links.num_lanes()),
        )  # fmt: skip
        self._nursery.start_soon(self._run_line, member, line)
        return line

    def _answered(self, member: PeerId, message: msg.LaneMessage, refused: str) -> None:
        if isinstance(message, msg.LaneEnd):
            self._hang_up({member})
        elif refused:
            log.info("lane_refused", lane=self._number, member=peer_name(member), reason=refused)
            self._hang_up({member})
            self._feed(lane.MemberLost(member))
        else:
            self._feed(lane.MemberHeard(member))

    async def _run_line(self, member: PeerId, line: CallLine) -> None:
        try:
            await line.run()
        except PotluckError as error:
            log.info("lane_member_lost", lane=self._number, member=peer_name(member), reason=error.one_line())
            if self._lines.get(member) is line:
                del self._lines[member]
                self._log_lost_share(member, "was lost before it heard that the lane ended")
            self._feed(lane.MemberLost(member))

    def _log_lost_share(self, member: PeerId, because: str) -> None:
        """Log the share that this member was to contribute for a dissolved lane. Other stages count more of that lane."""
        end = self._end
        for stage, holder in enumerate(() if end is None else end.holders):
            if end is not None and holder == member:
                reason = f"{short(member)}, which was to contribute it, {because}"
                log.warning("lane_share_lost", lane=self._number, stage=stage, tokens=end.tokens, reason=reason)

    def _hang_up(self, members: set[PeerId]) -> None:
        for member in sorted(members):
            line = self._lines.pop(member, None)
            if line is not None:
                line.scope.cancel()


def _event(sender: PeerId, message: msg.LaneMessage) -> lane.Event:
    match message:
        case msg.LaneSquare():
            return lane.SquareReported(sender, message.epoch, message.at, message.square)
        case msg.LaneCopied():
            return lane.SnapshotReported(sender, message.epoch, message.at)
        case msg.LaneLoaded():
            return lane.LoadedReported(sender, message.epoch)
        case msg.LaneLoadFailed():
            return lane.LoadFailed(sender, message.epoch)
        case msg.LaneLeave():
            return lane.MemberLost(sender)
        case msg.LaneHere():
            return lane.MemberHeard(sender)
        case _:
            raise RemoteProtocolError(f"{type(message).__name__} from a member", "a member's message")
