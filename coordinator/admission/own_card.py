"""The host's own card: made from the run as it is now, and brought to a list again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.open_runs.card_lists import post_card
from protocol.host.run_card import CARD_LIFE_S, MAX_ABOUT, RunCard, one_line, seal_card
from protocol.tables import short_count

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock, Offload
    from coordinator.progress.tracker import RunTracker
    from coordinator.run.run_files import RunFiles
    from protocol.identity.identity import Signer
    from protocol.ids import RunId

_log = structlog.get_logger()

EVERY_S: Final = CARD_LIFE_S / 3
"""Between two cards, in seconds: a list that misses two still has the run."""

AGAIN_S: Final = 60.0
"""After a card that was not taken."""


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


async def keep_listed(
    make: Callable[[], RunCard], host: Signer, run_id: RunId, url: str, clock: Clock, offload: Offload
) -> None:
    """Bring the card to the list at `url`, until cancelled. A list that does not take it is told of once, and tried again."""
    is_told = False
    while True:
        raw = seal_card(host, run_id, make(), clock.unix_s())
        why = await offload.run(partial(post_card, url, raw))
        if why and not is_told:
            _log.warning("run_not_listed", list=url, reason=why, again_in_s=AGAIN_S)
        elif not why:
            _log.info("run_listed", list=url)
        is_told = bool(why)
        await trio.sleep(AGAIN_S if why else EVERY_S)
