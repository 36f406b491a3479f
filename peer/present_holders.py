"""Who of those that the directory names is there: its records outlive whoever left, or was killed, by two minutes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

import structlog
import trio

from protocol.errors import PotluckError
from protocol.ids import PeerId, short

log = structlog.get_logger()

ASK_WITHIN_S: Final = 5.0

T = TypeVar("T")

Ask = Callable[[PeerId], Awaitable[object]]
"""Call a peer; raises PotluckError where it does not answer."""


async def present(listed: Mapping[PeerId, T], reachable: Collection[PeerId], ask: Ask) -> dict[PeerId, T]:
    """Those of a list that answer, or of whom that cannot be known: who takes no connections is taken to be there.

    For the choice of what a peer holds: one who is gone holds nothing that the run has. A wrong guess costs a choice that is not the
    best, and nothing else.
    """
    absent: set[PeerId] = set()

    async def look(peer: PeerId) -> None:
        try:
            with trio.fail_after(ASK_WITHIN_S):
                await ask(peer)
        except (PotluckError, trio.TooSlowError):
            absent.add(peer)

    async with trio.open_nursery() as nursery:
        for peer in listed.keys() & set(reachable):
            nursery.start_soon(look, peer)
    if absent:
        log.info("listed_and_not_there", peers=sorted(map(short, absent)))
    return {peer: what for peer, what in listed.items() if peer not in absent}
