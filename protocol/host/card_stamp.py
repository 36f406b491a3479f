"""The stamp on the card of an open run: work that a host does once a day, so that keys to fill a directory with are not free.

It is the door's puzzle (protocol/identity/puzzle.py) with a challenge that everybody can make: the day. Its answer is bound to the
host's key and to the run. Nodes of a directory and readers check it. A stamp costs a host about a minute of one core a day, and
somebody who fills a directory as much for each card; it is no defence against somebody with many machines.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.host.run_card import RunCard, SignedCard
from protocol.identity.identity import public_key_from_peer_id
from protocol.identity.puzzle import CODE_BYTES, NONCE_BYTES, Challenge, find_answer, is_answer
from protocol.ids import PeerId, RunId

STAMP_BITS: Final = 12
"""2^12 tries on average, each a hundredth of a second or two. All directories ask for the same."""

DAY_S: Final = 86_400

_NONCE: Final = b"potluck card day"


def day_of(unix_s: float) -> int:
    """Days since 1970, UTC."""
    return int(unix_s) // DAY_S


def find_stamp(host: PeerId, run_id: RunId, day: int, first: int, count: int, bits: int) -> int | None:
    """The first stamp among `count` numbers from `first` on; None if none is one. Blocks."""
    return find_answer(_challenge(day, bits), run_id, public_key_from_peer_id(host), first, count)


def why_no_day(card: RunCard, now_unix_s: float) -> str:
    """Why the stamp's day is wrong; empty for today's and yesterday's. A card without a stamp has day 0."""
    today = day_of(now_unix_s)
    return "" if today - 1 <= card.stamp_day <= today else "no stamp of today, as newer releases make one"


def is_stamped(signed: SignedCard, bits: int) -> bool:
    """Whether the stamp holds for the card's host, run and day. Blocks for one try."""
    try:
        public_key = public_key_from_peer_id(signed.host)
    except RemoteProtocolError:
        return False
    card = signed.card
    return is_answer(_challenge(card.stamp_day, bits), signed.run_id, public_key, card.stamp)


def _challenge(day: int, bits: int) -> Challenge:
    return Challenge(_NONCE[:NONCE_BYTES], (day + 1) * DAY_S, bits, bytes(CODE_BYTES))
