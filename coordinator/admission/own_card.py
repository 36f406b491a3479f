"""The host's own card: made from the run as it is now, and brought to a list or a directory again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
import trio

from averaging.open_runs.card_directory import CARD_TTL_S, CardRule, publish_card
from averaging.open_runs.card_lists import post_card
from averaging.open_runs.card_network import Now, visited_directory
from protocol.errors import PotluckError
from protocol.host import card_stamp
from protocol.host.card_stamp import day_of, find_stamp
from protocol.host.run_card import CARD_LIFE_S, MAX_ABOUT, RunCard, one_line, seal_card
from protocol.identity.verifier import Ed25519Verifier
from protocol.tables import short_count

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock, Network, Offload
    from coordinator.progress.tracker import RunTracker
    from coordinator.run.run_files import RunFiles
    from protocol.identity.identity import Signer
    from protocol.ids import RunId

_log = structlog.get_logger()

EVERY_S: Final = CARD_LIFE_S / 3
"""Between two cards, in seconds: a list that misses two still has the run."""

AGAIN_S: Final = 60.0
"""Pause after a card that was not taken, in seconds."""

AT_ONCE: Final = 64
"""Numbers that a thread tries for a stamp at once: about a second."""

Visit: TypeAlias = "Callable[[Sequence[str], Now, CardRule], AbstractAsyncContextManager[Network]]"
"""A way into a directory: (its nodes, the time, the rule of cards)."""


def card_of(run: RunFiles, tracker: RunTracker, line: str) -> RunCard:
    """The card of the run as it is now. `line`: the open one."""
    config = run.manifest.config
    return RunCard(
        name=config.run.name,
        about=one_line(run.page.description, MAX_ABOUT),
        model=f"{config.model.family}, {short_count(config.num_elements)} values",
        line=line,
        total_tokens=config.run.total_tokens,
        trained_tokens=tracker.state.total_tokens,
        num_peers=len(tracker.live_peers()),
    )


@dataclass(frozen=True, slots=True)
class OwnCard:
    """The host's card, made anew each time: `make` fills it in, `host` signs it."""

    make: Callable[[], RunCard]
    host: Signer
    run_id: RunId
    clock: Clock

    def sealed(self, stamp: int = 0, stamp_day: int = 0) -> bytes:
        """The card as it is now, with a stamp for a directory. Raises as `seal_card`."""
        made = replace(self.make(), stamp=stamp, stamp_day=stamp_day)
        return seal_card(self.host, self.run_id, made, self.clock.unix_s())

    async def new_stamp(self, day: int, offload: Offload) -> int:
        """A stamp of this day: about a minute of one core, in another thread."""
        _log.info("card_stamp_begun", reason="a directory asks for about a minute of one core each day")
        first = 0
        while True:
            tried = partial(find_stamp, self.host.peer_id, self.run_id, day, first, AT_ONCE, card_stamp.STAMP_BITS)
            found = await offload.run(tried)
            if found is not None:
                return found
            first += AT_ONCE


async def keep_listed(card: OwnCard, url: str, offload: Offload) -> None:
    """Bring the card to the list at `url`, until cancelled. A list that does not take it is told of once, and tried again."""
    is_told = False
    while True:
        why = await offload.run(partial(post_card, url, card.sealed()))
        if why and not is_told:
            _log.warning("run_not_listed", list=url, reason=why, again_in_s=AGAIN_S)
        elif not why:
            _log.info("run_listed", list=url)
        is_told = bool(why)
        await trio.sleep(AGAIN_S if why else EVERY_S)


async def keep_in_directory(
    card: OwnCard, addresses: Sequence[str], offload: Offload, visit: Visit = visited_directory
) -> None:
    """Publish the card in the directory that these nodes belong to, again and again, until cancelled. A directory that is away, or
    does not take it, is told of once, and tried again.
    """
    is_told, named, stamp, stamp_day = False, ", ".join(addresses), 0, 0
    while True:
        try:
            async with visit(addresses, card.clock.unix_s, CardRule(Ed25519Verifier())) as network:
                while True:
                    if stamp_day != (today := day_of(card.clock.unix_s())):
                        stamp, stamp_day = await card.new_stamp(today, offload), today
                    sealed = card.sealed(stamp, stamp_day)
                    if not await publish_card(network, sealed, card.host.peer_id, card.clock.unix_s()):
                        break
                    _log.info("run_announced", directory=named)
                    is_told = False
                    await trio.sleep(CARD_TTL_S / 3)
            why = "no node of it took the card"
        except PotluckError as error:
            why = error.one_line()
        if not is_told:
            _log.warning("run_not_announced", directory=named, reason=why, again_in_s=AGAIN_S)
        is_told = True
        await trio.sleep(AGAIN_S)
