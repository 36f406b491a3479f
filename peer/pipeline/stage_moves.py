"""Moves this peer to another stage when the run needs it more there. It happens at the end of a round, as a leave and a join.

protocol/pipeline/placement/rebalancing.py decides. Nothing is carried over: the peer downloads the other stage's state as any
joiner does. The old stage's folder stays on the disk, with the votes given there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from peer.holdings.held_stage import placement_of
from peer.holdings.move_costs import UNMEASURED, MoveCosts, as_measured
from peer.pipeline.lane_service import LaneService
from protocol.ids import PeerId
from protocol.pipeline.placement.placement import StageMove
from protocol.pipeline.placement.rebalancing import MoveDecision, PlacementHistory, decide
from protocol.tensors.stage_schema import StageMap

log = structlog.get_logger()

LOOK_EVERY_S: Final = 5.0
ROUND_ENDS_WITHIN_S: Final = 600.0
"""If the round takes longer than this, stop waiting and decide again."""

SEAT_WITHIN_S: Final = 10.0
_ROUND_POLL_S: Final = 0.1


@dataclass(frozen=True)
class MoveRole:
    """This peer's view of the holders of each stage.

    Attributes:
        me: this peer.
        stage: the stage it holds.
        fits: stages that fit in its memory.
        holders: returns the live holders of a stage, including this peer.
        index: returns the index of our stage's newest commit.
        horizon_s: returns how long a move can pay off: at most until the run ends.
        costs: returns the cost of a move, from measurements of this peer.
    """

    me: PeerId
    stage: int
    stages: StageMap
    fits: Iterable[int]
    holders: Callable[[int], Sequence[PeerId]]
    index: Callable[[], int]
    horizon_s: Callable[[], float]
    costs: Callable[[], MoveCosts] = lambda: UNMEASURED


class StageMoves:
    """`run` ends once the peer has moved.

    Args:
        moves: called with the stage once the seat is given back; it begins the peer's next session.
    """

    def __init__(self, role: MoveRole, moves: Callable[[int], Awaitable[None]]) -> None:
        self.reason = ""
        """Why the peer stays, or when it moves."""

        self._role = role
        self._moves = moves
        self._watch = PlacementHistory()

    async def run(self, lanes: LaneService) -> None:
        """Run until the peer has moved, or until cancelled.

        Args:
            lanes: of this peer. Their seat is given back before the move.
        """
        num_let_by = 0
        while True:
            await trio.sleep(LOOK_EVERY_S)
            serves = lanes.is_in_lane
            if self._decide(lanes) is None:
                num_let_by = 0
            elif await self._round_over(lanes):
                decision = self._decide(lanes)  # a round is long: peers may have joined or left during it
                if decision is None or decision.move is None:
                    num_let_by = 0
                elif serves and num_let_by < decision.num_before:
                    num_let_by += 1
                else:
                    await self._go(lanes, decision.move)
                    return

    def _decide(self, lanes: LaneService) -> MoveDecision | None:
        """The decision to move; None if it is not our turn."""
        role, horizon_s = self._role, self._role.horizon_s()
        if horizon_s <= 0.0:
            self.reason = "the run is complete"
            return None
        held = {peer: stage for stage in range(role.stages.num_stages) for peer in role.holders(stage)}
        held[role.me] = role.stage
        placement = placement_of(
            role.stages,
            held,
            {role.me: role.fits},
            horizon_s=horizon_s,
        )
        measured = as_measured(placement, role.me, role.costs())
        now_s = trio.current_time()
        decision = decide(self._watch, placement, role.me, now_s, is_needed=lanes.is_needed, as_measured=measured)
        self._watch = decision.watch
        self.reason = decision.reason
        return decision if decision.move is not None else None

    async def _round_over(self, lanes: LaneService) -> bool:
        """Wait until the commit of what our seat trained; return at once without a seat. False after a timeout."""
        index = self._role.index()
        with trio.move_on_after(ROUND_ENDS_WITHIN_S):
            while lanes.is_in_lane and self._role.index() == index:
                await trio.sleep(_ROUND_POLL_S)
            return True
        return False

    async def _go(self, lanes: LaneService, move: StageMove) -> None:
        reason = f"moves to stage {move.stage}: {move.reason}"
        log.info("stage_moves", of=self._role.stage, to=move.stage, reason=reason)
        lanes.member.leave(reason)
        with trio.move_on_after(SEAT_WITHIN_S):
            while lanes.is_in_lane:
                await trio.sleep(_ROUND_POLL_S)
        await self._moves(move.stage)
