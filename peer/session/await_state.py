"""A peer that has nothing of the run waits for somebody who has, and trains nothing meanwhile.

The rounds run all the same: they ask whoever is there, serve who asks, and bring the run's state here as soon as one donor can be
reached. Nothing is opened or contributed, for the training process is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from averaging.rounds.lineage.unit_chain import UnitChain
from peer.session.await_state_core import Found, lacks_state, waiting_sentence
from peer.status.status_board import StatusBoard
from protocol.rounds.state import OpenRound

log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
HELD_BECAUSE: Final = "there is no state of the run to train on"


class FirstState:
    """Asked once, when the process begins: who has begun is never held again, or a founder that is slow with its first round would be.

    Args:
        votes: what is on our disk of the round on our head.
        host_index: the round that the host told of last, 0 where it has told of none.
        shown_index: the newest round whose commits another peer has shown, verified; 0 without any.
        lost_index: the newest round of a unit whose log was lost here and whose state has not come back; 0 without any.
    """

    def __init__(
        self,
        chain: UnitChain,
        votes: OpenRound,
        host_index: Callable[[], int],
        shown_index: int,
        board: StatusBoard,
        lost_index: Callable[[], int] = lambda: 0,
    ) -> None:
        self._chain = chain
        self._host_index = host_index
        self._board = board
        self._lost_index = lost_index
        logged_index = max(node.link.index for node in chain.tree.nodes.values())
        self._proven_index = max(shown_index, logged_index)
        has_acked = votes.acked is not None or votes.acked_lone is not None
        self._is_next_at_hand = has_acked and logged_index == 0
        self._has_begun = not self._lacks()

    @property
    def told_index(self) -> int:
        """The newest round that anybody told of who is to be believed."""
        return max(self._host_index(), self._proven_index, self._lost_index())

    @property
    def is_missing(self) -> bool:
        """Whether there is nothing here yet to train on."""
        return not self._has_begun and self._lacks()

    def _lacks(self) -> bool:
        return self._lost_index() > 0 or lacks_state(
            Found(self._chain.head.index, self.told_index, self._is_next_at_hand)
        )

    async def wait(self) -> None:
        """Until there is something to train on; its owner is told what for, since when and what mends it."""
        clock, was_told = self._board.clock, False
        since_s = clock.monotonic_s()
        while self.is_missing:
            told = self._say(clock.monotonic_s() - since_s)
            if told and not was_told:
                log.warning("waits_for_state", reason=told)
                was_told = True
            await trio.sleep(LOOK_EVERY_S)
        self._has_begun = True
        if was_told:
            log.info("state_is_here", index=self._chain.head.index)

    def _say(self, waited_s: float) -> str:
        """Returns the sentence of who waits; empty while all goes its way."""
        board = self._board
        if board.state not in ("catching up", "waiting"):
            return ""  # it is leaving, and says so
        if board.waits_for_download():
            return ""
        told = waiting_sentence(self.told_index, waited_s, is_outbound_only=board.is_outbound_only)
        if told:
            board.say("waiting", told)
        else:
            board.say("catching up", "looking for the run's newest state")
        return told
