"""Names of peers in the reasons of the round machine, which knows peers by the end of their ids."""

from __future__ import annotations

import re
from typing import Final

from protocol.identity.names import peer_name
from protocol.ids import short
from protocol.rounds.state import RoundState

_WORD: Final = re.compile(r"\w+")


def with_names(text: str, state: RoundState) -> str:
    """The text with the names of the peers that the machine knows."""
    named = {short(peer): peer_name(peer) for peer in (*state.peers, state.config.me.peer)}
    return _WORD.sub(lambda found: named.get(found[0], found[0]), text)
