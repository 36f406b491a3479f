"""Asks the host at each start whether others can connect to this peer, while the port is still free for a probe."""

from __future__ import annotations

from typing import Final

import structlog
import trio

from peer.checks.host_core import PortTaken, ReachReport
from peer.checks.host_readings import reach_of
from peer.checks.machine_core import Unread
from peer.checks.reach_core import has_owners_word, is_outbound_only, outbound_sentence
from peer.membership.coordinator_client import CoordinatorClient, ProbeProof
from peer.settings.config import PeerConfig
from protocol.errors import RefusedError

log = structlog.get_logger()

WITHIN_S: Final = 6.0
"""The host tries for three seconds. No start waits longer than this for a slow host."""


async def find_outbound_only(
    config: PeerConfig, client: CoordinatorClient, credential: bytes, *, is_host_there: bool
) -> bool:
    """Whether to announce that nobody can connect to this peer. If the host found that, the owner is shown the remedy."""
    reach = await _ask(config, client, credential) if is_host_there else None
    is_outbound = is_outbound_only(no_listen=config.no_listen, announce_host=config.announce_host, reach=reach)
    if is_outbound and isinstance(reach, ReachReport):
        log.warning("nobody_can_connect", reason=outbound_sentence(reach))
    return is_outbound


async def _ask(
    config: PeerConfig, client: CoordinatorClient, credential: bytes
) -> ReachReport | PortTaken | Unread | None:
    if has_owners_word(no_listen=config.no_listen, announce_host=config.announce_host):
        return None
    found: ReachReport | PortTaken | Unread | None = None
    try:
        with trio.move_on_after(WITHIN_S):
            found = await reach_of(config, ProbeProof(b"", credential), client)
    except RefusedError as error:
        found = Unread(error.one_line())
    if not isinstance(found, ReachReport):
        log.info("reach_not_known", reason=str(found))
    return found
