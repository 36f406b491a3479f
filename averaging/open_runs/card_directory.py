"""A public directory of open runs: signed cards in a DHT of their own, under one key that everybody knows.

A run's own directory takes records of its members only, so this one has nodes of its own. Anybody can run a node with
`potluck directory`; hosts publish their cards there, and volunteers read them. Every node checks each card that it stores, and every
reader checks it again. A card proves only that its host's key signed it a short time ago.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from averaging.network.seams.directory import CLOCK_SLACK_S, MAX_ADDRESS_LETTERS, Record, directory_id
from averaging.open_runs.card_places import MOST_ASKING, CardPlaces
from protocol.errors import PotluckError
from protocol.host.card_stamp import is_stamped, why_no_day
from protocol.host.run_card import MAX_CARD_BYTES, SignedCard, open_card

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Network
    from protocol.identity.identity import Verifier

RUNS_KEY: Final = "potluck/open-runs"
"""The key of all cards; each has its host's peer id as subkey, so a host has one."""

CARD_TTL_S: Final = 600.0
"""Seconds after which a card is gone if it is not published again."""

MOST_READ: Final = 64
"""Cards that a reader takes of a directory."""

MOST_KEPT: Final = 256
"""Hosts whose cards a node keeps. Of more, some are drawn (card_places.py)."""

CHECKS_PER_S: Final = 10.0
CHECK_BURST: Final = 40.0
"""Stamps that a node checks: so many in a second, and so many at once. One takes a hundredth of a second or two."""

MOST_COUNTED: Final = 1024
"""Refused cards that are counted; beyond that the count stands still."""

MOST_NODES: Final = 8
"""Addresses of nodes that a setting may name."""

_EXPECTED: Final = "addresses as `potluck directory` prints them, such as /ip4/192.0.2.1/tcp/4700/p2p/12D3KooW..."


class CardRule:
    """The rule for the cards that a node stores and a reader believes: (record, unix time in s) -> why not, "" for a good one.

    It is called on the thread of the network alone. `num_refused` counts what was refused, each record once.

    Args:
        stamp_bits: work that a card's stamp must show; None to take cards without a look at their stamps.
        seed: of the draw of places (card_places.py); secret, and drawn where none is given.
    """

    def __init__(self, verifier: Verifier, stamp_bits: int | None = None, seed: bytes = b"") -> None:
        self.num_refused = 0
        self._verifier = verifier
        self._stamp_bits = stamp_bits
        self._allowance, self._looked_unix_s = CHECK_BURST, 0.0
        self._stamped: dict[str, tuple[bytes, int, int]] = {}
        self._places = CardPlaces(MOST_KEPT, 2.0 * CARD_TTL_S, seed)
        self._key = directory_id(RUNS_KEY)
        self._refused: set[bytes] = set()

    def __call__(self, record: Record, now_unix_s: float) -> str:
        """Judge a record."""
        why_not = self._why_not(record, now_unix_s)
        digest = sha256(record.value[: MAX_CARD_BYTES + 1]).digest()
        if why_not and digest not in self._refused and len(self._refused) < MOST_COUNTED:
            self._refused.add(digest)
            self.num_refused += 1
        return why_not

    def _why_not(self, record: Record, now_unix_s: float) -> str:
        if record.key != self._key:
            return "another key than that of the open runs"
        if len(record.value) > MAX_CARD_BYTES:
            return f"{len(record.value)} bytes, at most {MAX_CARD_BYTES}"
        left_s = record.expires_unix_s - now_unix_s
        if not -CLOCK_SLACK_S < left_s <= CARD_TTL_S + CLOCK_SLACK_S:
            return f"expires in {left_s:.0f} s, allowed are 0 to {CARD_TTL_S:.0f} s"
        try:
            card = open_card(record.value, verifier=self._verifier, now_unix_s=now_unix_s)
        except PotluckError as error:
            return error.one_line()
        if card.host != record.subkey:
            return f"signed by {card.host}, stored for {record.subkey}"
        if why_not := self._why_not_stamped(card, now_unix_s):
            return why_not
        return "" if self._places.takes(card.host, record.expires_unix_s, now_unix_s) else "the directory is full now"

    def _why_not_stamped(self, signed: SignedCard, now_unix_s: float) -> str:
        """A stamp that was checked is not checked again, and a host that had a good one waits for nobody with its next. So a flood of
        false stamps takes nobody's place.
        """
        if self._stamp_bits is None:
            return ""
        if why_not := why_no_day(signed.card, now_unix_s):
            return why_not
        stamp = (signed.run_id, signed.card.stamp_day, signed.card.stamp)
        if self._stamped.get(signed.host) == stamp:
            return ""
        if signed.host not in self._stamped and not self._may_check(now_unix_s):
            return "a crowd at the directory"
        if not is_stamped(signed, self._stamp_bits):
            self._stamped.pop(signed.host, None)
            return "a false stamp"
        if len(self._stamped) >= MOST_ASKING:
            self._stamped = {host: known for host, known in self._stamped.items() if self._places.knows(host)}
        self._stamped[signed.host] = stamp
        return ""

    def _may_check(self, now_unix_s: float) -> bool:
        passed_s = max(0.0, now_unix_s - self._looked_unix_s)
        self._allowance = min(CHECK_BURST, self._allowance + passed_s * CHECKS_PER_S)
        self._looked_unix_s = now_unix_s
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True


def unfit_directory(text: str) -> str:
    """The expected kind of addresses; empty if these are multiaddresses of nodes of a directory, separated by commas."""
    addresses = directory_addresses(text)
    are_few = 0 < len(addresses) <= MOST_NODES
    return "" if are_few and all(map(_is_fine, addresses)) else _EXPECTED


def directory_addresses(text: str) -> tuple[str, ...]:
    """The addresses in a text with commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _is_fine(address: str) -> bool:
    way, _, peer = address.rpartition("/p2p/")
    is_plain = (
        address.isascii() and address.isprintable() and " " not in address and len(address) <= MAX_ADDRESS_LETTERS
    )
    return is_plain and way.startswith("/") and "/tcp/" in way and peer.isalnum()


async def publish_card(network: Network, raw: bytes, host: str, now_unix_s: float) -> bool:
    """Store a host's card for CARD_TTL_S. Returns whether a node took it."""
    return await network.publish(RUNS_KEY, host, raw, expires_unix_s=now_unix_s + CARD_TTL_S)


async def read_cards(network: Network, choose: Callable[[int], int] = secrets.randbelow) -> tuple[list[bytes], int]:
    """Cards of the directory, unchecked where the network does not check records, and how many more there are.

    Args:
        choose: (n) -> a number in [0, n). Of too many cards some are drawn: nobody can buy the first places.
    """
    entries = list(await network.lookup(RUNS_KEY))
    drawn = [entries.pop(choose(len(entries))) for _ in range(min(MOST_READ, len(entries)))]
    return [entry.value for entry in drawn], len(entries)
