"""How a peer parts from the rounds of a unit: its work is handed over, and nobody is left without bytes that it alone has.

The work since the last commit is taken at once. If a round is under way, its exchange brings it, and so does the exchange of a round
that begins meanwhile. Else another peer takes it, and carries it into the round to come (R8). Work that was trained after the snapshot
of a running round waits for its commit first. All of this has one deadline, for the machine may be taken away after it.

Rules: R8 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Network
from averaging.rounds.exchange.carrier import hand_over
from averaging.rounds.lineage.round_context import Tell
from averaging.rounds.traffic.contribution import EncodedContribution
from protocol.errors import PotluckError
from protocol.identity.names import peer_name
from protocol.ids import CommitId
from protocol.rounds import voting
from protocol.rounds.events import LeaveOrdered
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.requests import CarryHello
from protocol.rounds.participants import carriers
from protocol.rounds.state import RoundState

log = structlog.get_logger()

PARTING_S: Final = 5.0
"""How long a leaving peer may take to hand over its work. Machines that may be taken away at any time mostly get notice of more."""

STAYS_WITHIN_S: Final = 20.0
"""The longest time that a leaving peer stays for a commit whose bytes others need. After a leader's death the others need seconds
to begin a new attempt; then the bytes are fetched from us.
"""

MOST_ASKED: Final = 3
"""Peers that are asked to carry a contribution."""

LOOK_EVERY_S: Final = 0.05


class LeavingRounds(Protocol):
    """The rounds of one unit at a peer that leaves."""

    @property
    def state(self) -> RoundState:
        """The round machine's state."""
        ...

    @property
    def tell(self) -> Tell:
        """Gives the machine an event."""
        ...

    async def drained(self) -> None:
        """Wait until the machine has taken all earlier events."""
        ...

    async def wait_changed(self) -> None:
        """Wait until something happens to the head, the exchange or the bytes on disk."""
        ...


class Parting:
    """The parting of one peer from one unit.

    Attributes:
        base, carrier: the commit on which a peer took our contribution, and that peer's process; None while there is none.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        rounds: LeavingRounds,
        contribution: Callable[[], EncodedContribution | None],
    ) -> None:
        """Args: contribution: ours on the head, once it is signed."""
        self._network = network
        self._clock = clock
        self._rounds = rounds
        self._contribution = contribution
        self._asked_on: CommitId | None = None
        self.base: CommitId | None = None
        self.carrier: Member | None = None

    async def give(self, within_s: float) -> None:
        """Hand over what is ready, for at most so many seconds; none hands over nothing."""
        ordered_s, head = self._clock.monotonic_s(), None
        with trio.move_on_after(within_s):
            while within_s > 0:
                state = self._rounds.state
                if state.link.commit != head:
                    if head is not None and ordered_s <= state.snapshot_at_s:
                        return  # this commit counts what was taken after the order to leave
                    head = state.link.commit
                    await self._rounds.tell(LeaveOrdered(is_soon=True))
                    await self._rounds.drained()
                elif self._is_given(state):
                    return
                elif self._may_hand_over(state):
                    await self._hand_over(state)
                else:
                    with trio.move_on_after(LOOK_EVERY_S):
                        await self._rounds.wait_changed()

    def _is_given(self, state: RoundState) -> bool:
        """Whether there is nothing to wait for on this base."""
        opened = state.open
        if opened.committing is not None or opened.is_preparing:
            return False
        if opened.contribution is None:
            return True  # nothing is ready, or there is no trainer
        return not _brings(state) and self._asked_on == state.link.commit

    def _may_hand_over(self, state: RoundState) -> bool:
        opened = state.open
        is_idle = opened.committing is None and not opened.is_preparing
        return is_idle and not _brings(state) and self._asked_on != state.link.commit

    async def _hand_over(self, state: RoundState) -> None:
        """Ask a few peers, one after another, to carry our contribution."""
        base, mine = state.link.commit, self._contribution()
        self._asked_on = base
        if mine is None:
            return
        hello = CarryHello(state.config.unit, base, mine.header, mine.credential)
        for member in carriers(state, self._clock.monotonic_s())[:MOST_ASKED]:
            try:
                await hand_over(self._network, member.peer, hello, mine, partial(self._begun, base, member))
            except PotluckError as error:
                log.info("not_handed_over", to=peer_name(member.peer), reason=error.one_line())
                continue
            log.info("handed_over", to=peer_name(member.peer), tokens=mine.tokens, index=state.link.index)
            return

    def _begun(self, base: CommitId, carrier: Member) -> None:
        self.base, self.carrier = base, carrier

    async def stay(self) -> None:
        """Stay between our ack and the commit if its leader is dead or is this peer. After a majority has acked, the others must
        commit that record; if every peer that acked leaves, nobody has its bytes.
        """
        ordered_s = self._clock.monotonic_s()
        with trio.move_on_after(STAYS_WITHIN_S):
            while voting.is_owed_bytes(self._rounds.state, self._clock.monotonic_s(), ordered_s):
                with trio.move_on_after(voting.NOTICED_WITHIN_S):
                    await self._rounds.wait_changed()


def _brings(state: RoundState) -> bool:
    """Whether the exchange of a running attempt brings our contribution: then its commit says whether it is counted."""
    proposal, me = state.open.proposal, state.config.me
    return proposal is not None and proposal.member(me.peer) == me
