"""Peers that fetch the same state as we do, and what they have of it by now.

They are found among the listed peers by asking each which chunks it has. A peer without any is asked again later, since it may have
begun meanwhile. A peer that has the whole state is one more donor, if there are few.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.traffic.striping import Layout
from averaging.rounds.traffic.transfer import fetch_parts
from protocol.errors import PotluckError
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.messages.requests import FetchParts
from protocol.rounds.schedule.asking_order import asking_order

log = structlog.get_logger()

Others = Callable[[], Awaitable[Sequence[PeerId]]]
"""Lists the peers that may fetch the same state."""


async def nobody() -> Sequence[PeerId]:
    """For a download from given donors alone."""
    return ()


MOST_FELLOWS: Final = 12
"""Fellows that are followed at a time, drawn for each newcomer anew. More would only cost more questions."""

ASKED_AT_ONCE: Final = 8
ANSWER_WITHIN_S: Final = 4.0
LOOK_EVERY_S: Final = 2.0
AGAIN_AFTER_S: Final = 2.0
MOST_AGAIN_S: Final = 60.0
"""Pauses before a peer that had nothing is asked again, each twice as long as the one before."""

LIST_EVERY_S: Final = 5.0
MOST_BETWEEN_LISTS_S: Final = 60.0
"""Pauses before the peers are listed again, each twice as long as the one before while nobody new is there."""

ANSWER_BYTES_PER_S: Final = 4096.0
"""Most that the answers of one fellow may take of its line: a large state has a long list of chunks, and changes slowly."""


class Fellows:
    """The fellows of one download. `follow` runs until cancelled."""

    def __init__(self, network: Network, unit: UnitName, num_chunks: int, commit: CommitId) -> None:
        self._network = network
        self._unit = unit
        self._num_chunks = num_chunks
        self._commit = commit
        self._asked: dict[PeerId, tuple[int, float]] = {}
        """How often a peer was asked in vain, and when it is asked again."""
        self._followed: set[PeerId] = set()
        self._begun: set[PeerId] = set()

    async def follow(
        self,
        layout: Layout,
        others: Others,
        donors: Sequence[PeerId],
        learn: Callable[[PeerId, int], None],
        begin: Callable[[PeerId], None],
    ) -> None:
        """Find fellows and keep up with them.

        Args:
            others: lists the peers that are there now.
            donors: peers that have the whole state and are asked already.
            learn: takes (fellow, its stripes, a bit each), again and again.
            begin: called once for each fellow, after it has shown something.
        """
        limiter, me = trio.CapacityLimiter(ASKED_AT_ONCE), self._network.peer_id
        listed, pause_s, list_at_s = frozenset[PeerId](), LIST_EVERY_S, trio.current_time()
        async with trio.open_nursery() as nursery:
            while True:
                if trio.current_time() >= list_at_s:
                    before, listed = listed, frozenset(await others())
                    pause_s = LIST_EVERY_S if listed - before else min(2 * pause_s, MOST_BETWEEN_LISTS_S)
                    list_at_s = trio.current_time() + pause_s
                now_s = trio.current_time()
                for peer in asking_order(me, listed):
                    times, not_before_s = self._asked.get(peer, (0, now_s))
                    is_known = peer == me or peer in donors or peer in self._followed
                    if not is_known and now_s >= not_before_s and len(self._followed) < MOST_FELLOWS:
                        self._asked[peer] = times + 1, now_s + min(AGAIN_AFTER_S * 2.0**times, MOST_AGAIN_S)
                        nursery.start_soon(self._meet, limiter, layout, peer, learn, begin)
                await trio.sleep(LOOK_EVERY_S)

    async def _meet(
        self,
        limiter: trio.CapacityLimiter,
        layout: Layout,
        peer: PeerId,
        learn: Callable[[PeerId, int], None],
        begin: Callable[[PeerId], None],
    ) -> None:
        """Ask a peer what it has. Follow it from then on if that is something."""
        async with limiter:
            if len(self._followed) >= MOST_FELLOWS:
                return
            here = await self._ask(layout, peer)
            if not here or not any(here) or len(self._followed) >= MOST_FELLOWS:
                return
            self._followed.add(peer)
        learn(peer, layout.held(here))
        if peer not in self._begun:
            self._begun.add(peer)
            begin(peer)
        log.info("fellow_found", peer=peer_name(peer), groups=sum(here), of=len(here))
        try:
            while here is not None and not all(here):
                await trio.sleep(max(LOOK_EVERY_S, len(here) / 8 / ANSWER_BYTES_PER_S))
                here = await self._ask(layout, peer)
                learn(peer, layout.held(here or b""))
        finally:
            if here is None:
                self._followed.discard(peer)

    async def _ask(self, layout: Layout, peer: PeerId) -> bytes | None:
        """Its groups of chunks; None if it does not answer, or does not know the question."""
        request = FetchParts(self._unit, self._commit, layout.group)
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                return await fetch_parts(self._network, peer, request, self._num_chunks)
        except (PotluckError, trio.TooSlowError) as error:
            log.debug("fellow_not_asked", peer=peer_name(peer), reason=str(error))
            return None
