"""Looks now and then whether a card that was left out is free again, and lets it train from the next round on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Offload
from peer.cards.own_cards import OwnCards
from peer.training.plan.layout_core import LayoutChoice
from peer.training.plan.owned_cards_core import NOT_NAMED
from protocol.errors import PotluckError

log = structlog.get_logger()

LOOK_AGAIN_S: Final = 900.0
"""Seconds between two looks. Each starts a process that asks torch, and a card that is free again can wait that long."""


async def watch_for_return(
    own: OwnCards,
    choose: Callable[[OwnCards], LayoutChoice],
    at_work: Callable[[], Sequence[str]],
    take: Callable[[OwnCards, LayoutChoice], None],
    offload: Offload,
) -> None:
    """Look until cancelled. Returns at once if no card of the machine can come back.

    Args:
        own: the cards as they were at the start.
        choose: the layout for cards that were read anew, at least one. Blocks for a moment.
        at_work: the devices that train now.
        take: called with the cards as read and a layout of more cards than train now.
    """
    most = len(own.cards)
    while own.again is not None:
        await trio.sleep(LOOK_AGAIN_S)
        most = max(most, len(own.cards))
        if len(at_work()) >= most and all(out.reason == NOT_NAMED for out in own.left_out):
            continue
        try:
            found = await offload.run(own.again)
            if not found.cards:  # a driver that failed tells of none, and those that train stay known as ours
                log.info("cards_not_read", reason="no card can be had")
                continue
            own, choice = found, await offload.run(partial(choose, found))
        except PotluckError as error:
            log.info("cards_not_read", reason=error.one_line())
            continue
        devices = choice.layout.worlds[0].devices
        if len(choice.layout.worlds) == 1 and len(devices) > len(at_work()):
            log.info("cards_back", devices=", ".join(devices), reason=choice.layout.reason)
            take(own, choice)
