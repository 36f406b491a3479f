"""Asks the host at each start whether others can connect to this peer, while the port is still free for a probe."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
import trio

from peer.checks.host_core import PortTaken, ReachReport
from peer.checks.host_readings import reach_of
from peer.checks.machine_core import Unread
from peer.checks.reach_core import has_owners_word, is_outbound_only, outbound_sentence
from peer.membership.coordinator_client import CoordinatorClient, ProbeProof
from peer.settings.config import PeerConfig
from protocol.errors import RefusedError, RunOverError

log = structlog.get_logger()

TOLD_FILE: Final = "told_outbound_only"
"""In the state folder: what the owner was told about connections."""

_PORT: Final = re.compile(r"\b[0-9]{4,5}\b")
"""A port that nobody chose is another one at each start."""

WITHIN_S: Final = 6.0
"""The host tries for three seconds. No start waits longer than this for a slow host."""


async def find_outbound_only(
    config: PeerConfig, client: CoordinatorClient, credential: bytes, *, is_host_there: bool
) -> bool:
    """Whether to announce that nobody can connect to this peer. If the host found that, the owner is shown the remedy."""
    reach = await _ask(config, client, credential) if is_host_there else None
    is_outbound = is_outbound_only(no_listen=config.no_listen, announce_host=config.announce_host, reach=reach)
    if is_outbound and isinstance(reach, ReachReport):
        _tell_once(config.state_dir, outbound_sentence(reach))
    return is_outbound


def _tell_once(state_dir: Path, sentence: str) -> None:
    """Warn the owner, but not again at each start while it is the same. A file that cannot be kept only costs another warning."""
    path = state_dir / TOLD_FILE
    try:
        was_told = _PORT.sub("", path.read_text(encoding="utf8")) == _PORT.sub("", sentence)
    except (OSError, UnicodeError):
        was_told = False
    if was_told:
        log.info("nobody_can_connect", reason=sentence)
        return
    log.warning("nobody_can_connect", reason=sentence)
    with suppress(OSError):
        path.write_text(sentence, encoding="utf8")


async def _ask(
    config: PeerConfig, client: CoordinatorClient, credential: bytes
) -> ReachReport | PortTaken | Unread | None:
    if has_owners_word(no_listen=config.no_listen, announce_host=config.announce_host):
        return None
    found: ReachReport | PortTaken | Unread | None = None
    try:
        with trio.move_on_after(WITHIN_S):
            found = await reach_of(config, ProbeProof(b"", credential), client)
    except (RefusedError, RunOverError) as error:
        found = Unread(error.one_line())
    if not isinstance(found, ReachReport):
        log.info("reach_not_known", reason=str(found))
    return found
