"""A peer without any state of the run waits for a donor, and does not train meanwhile.

The rounds already run. They query the known peers, answer requests, and fetch the run's state as soon as one donor can be reached.
The training process is held, so that no round is opened and nothing is contributed.
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
    """Decides once, at the start of the process, whether it may train. A peer that has started is never held again; otherwise a
    founder whose first round is slow would be.

    Args:
        votes: our votes on disk for the round on our head.
        host_index: the round in the host's last answer, 0 without one.
        shown_index: the newest round whose verified commits another peer sent; 0 without any.
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
    def reported_index(self) -> int:
        """The newest round known from a trusted or verified source."""
        return max(self._host_index(), self._proven_index, self._lost_index())

    @property
    def is_missing(self) -> bool:
        """Whether there is no state here yet to train on."""
        return not self._has_begun and self._lacks()

    @property
    def _stands_at(self) -> int:
        return 0 if self._chain.lacks_state else self._chain.head.index

    def _lacks(self) -> bool:
        return self._lost_index() > 0 or lacks_state(Found(self._stands_at, self.reported_index, self._is_next_at_hand))

    async def wait(self) -> None:
        """Wait until there is a state to train on. Shows the owner the reason, the time waited and the remedy."""
        clock, was_logged = self._board.clock, False
        since_s = clock.monotonic_s()
        while self.is_missing:
            sentence = self._say(clock.monotonic_s() - since_s)
            if sentence and not was_logged:
                log.warning("waits_for_state", reason=sentence)
                was_logged = True
            await trio.sleep(LOOK_EVERY_S)
        self._has_begun = True
        if was_logged:
            log.info("state_is_here", index=self._chain.head.index)

    def _say(self, waited_s: float) -> str:
        """Show that the peer waits. Returns the sentence; empty while everything goes normally."""
        board = self._board
        if board.state not in ("catching up", "waiting"):
            return ""  # the peer is leaving, which is shown already
        if board.waits_for_download():
            return ""
        sentence = waiting_sentence(self.reported_index, waited_s, is_outbound_only=board.is_outbound_only)
        if sentence:
            board.say("waiting", sentence)
        else:
            board.say("catching up", "looking for the run's newest state")
        return sentence
