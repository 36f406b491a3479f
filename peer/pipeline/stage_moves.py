"""Goes over to another stage when the run has more of it: at the end of a round, as one who leaves and joins again.

What decides is in protocol/pipeline/placement/rebalancing.py. Nothing is carried over: the other stage's state is downloaded as any
joiner does, and the old one's folder stays on the disk, with the votes that were given there.
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
"""A round that does not end by then is not waited for: the decision is made anew."""

SEAT_WITHIN_S: Final = 10.0
_ROUND_LOOK_S: Final = 0.1


@dataclass(frozen=True)
class MoveRole:
    """What is known here of who holds what.

    Attributes:
        me: who moves, or not.
        stage: that it holds.
        fits: stages that it has room for.
        holders: the live holders of a stage, ourselves with them where we are one.
        index: of the newest commit of our stage.
        horizon_s: for how long what is won by a move is won: no longer than the run lasts.
        costs: what a move of ours takes, as it was measured here.
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
    """`run` ends when it has moved.

    Args:
        moves: told the stage once the seat is given back; what it does begins the peer's next life.
    """

    def __init__(self, role: MoveRole, moves: Callable[[int], Awaitable[None]]) -> None:
        self.reason = ""
        """Why we stay, or when we go."""

        self._role = role
        self._moves = moves
        self._watch = PlacementHistory()

    async def run(self, lanes: LaneService) -> None:
        """Until it has moved, or is cancelled.

        Args:
            lanes: of this peer, whose seat is given back before it moves.
        """
        num_let_by = 0
        while True:
            await trio.sleep(LOOK_EVERY_S)
            serves = lanes.is_in_lane
            if self._look(lanes) is None:
                num_let_by = 0
            elif await self._round_over(lanes):
                looked = self._look(lanes)  # a round is long, and others may have come or gone in it
                if looked is None or looked.move is None:
                    num_let_by = 0
                elif serves and num_let_by < looked.num_before:
                    num_let_by += 1
                else:
                    await self._go(lanes, looked.move)
                    return

    def _look(self, lanes: LaneService) -> MoveDecision | None:
        """Whether it is our turn; None where it is not."""
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
        looked = decide(self._watch, placement, role.me, now_s, is_needed=lanes.is_needed, as_measured=measured)
        self._watch = looked.watch
        self.reason = looked.reason
        return looked if looked.move is not None else None

    async def _round_over(self, lanes: LaneService) -> bool:
        """When what was trained in our seat is committed; at once where there is none."""
        index = self._role.index()
        with trio.move_on_after(ROUND_ENDS_WITHIN_S):
            while lanes.is_in_lane and self._role.index() == index:
                await trio.sleep(_ROUND_LOOK_S)
            return True
        return False

    async def _go(self, lanes: LaneService, move: StageMove) -> None:
        reason = f"goes over to stage {move.stage}: {move.reason}"
        log.info("stage_moves", of=self._role.stage, to=move.stage, reason=reason)
        lanes.member.leave(reason)
        with trio.move_on_after(SEAT_WITHIN_S):
            while lanes.is_in_lane:
                await trio.sleep(_ROUND_LOOK_S)
        await self._moves(move.stage)
