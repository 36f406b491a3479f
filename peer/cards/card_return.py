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
from protocol.errors import MachineError, PotluckError

log = structlog.get_logger()

LOOK_AGAIN_S: Final = 900.0
"""Seconds between two looks. Each starts a process that asks torch, and a card that is free again can wait that long."""


async def watch_for_return(
    own: OwnCards,
    choose: Callable[[OwnCards], LayoutChoice],
    at_work: Callable[[], Sequence[str]],
    take: Callable[[OwnCards, LayoutChoice], bool],
    offload: Offload,
) -> None:
    """Look until cancelled. Returns at once if no card of the machine can come back.

    Args:
        own: the cards as they were at the start.
        choose: the layout for cards that were read anew, at least one. Blocks for a moment.
        at_work: the devices that train now; the CPU trains only in place of a card.
        take: called with the cards as read and a layout of more cards than train now. Returns whether they will train.
    """
    most = len(own.cards)
    while own.again is not None:
        await trio.sleep(LOOK_AGAIN_S)
        most = max(most, len(own.cards))
        training = [device for device in at_work() if device != "cpu"]
        if len(training) >= most and all(out.reason == NOT_NAMED for out in own.left_out):
            continue
        try:
            found = _whole_look(await offload.run(own.again), training)
            choice = await offload.run(partial(choose, found))
        except PotluckError as error:
            log.info("cards_not_read", reason=error.one_line())
            continue
        if sum(len(world.devices) for world in choice.layout.worlds) <= len(training) or take(found, choice):
            own = found


def _whole_look(found: OwnCards, training: Sequence[str]) -> OwnCards:
    """Cards that were read anew. A driver that failed may tell of some of them only, and those that train must stay known as ours.

    Raises:
        MachineError: a card that trains is not among them, or there is none.
    """
    missing = set(training) - {card.device for card in found.cards}
    if missing or not found.cards:
        what = f"no word of {', '.join(sorted(missing))}, which trains" if missing else "no card can be had"
        raise MachineError(what, "all cards of the machine", "the next look is in some minutes")
    return found
