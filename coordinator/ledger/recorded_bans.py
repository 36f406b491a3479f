"""Bans in the ledger: an entry that the host signed, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import ConfigError
from protocol.identity.revocation import MAX_REVOCATIONS, Revocation, seal_revocation
from protocol.ids import PeerId, RunId

if TYPE_CHECKING:
    from coordinator.ledger.ledger import Ledger
    from protocol.identity.identity import Signer


@dataclass(frozen=True, slots=True)
class RecordedBans:
    """All bans at one moment: the number of the newest one, the host's signed entries, and the banned peers."""

    number: int = 0
    entries: tuple[bytes, ...] = ()
    peers: frozenset[PeerId] = frozenset()


def recorded_bans(ledger: Ledger, known: RecordedBans) -> RecordedBans:
    """The bans of the ledger, to which another process may have added; `known` itself if there is no new one. Blocks."""
    ((number,),) = ledger.rows("SELECT COALESCE(MAX(number), 0) FROM revocations")
    if number == known.number:
        return known
    return RecordedBans(int(str(number)), tuple(ledger.revocations()), banned_peers(ledger))


def banned_peers(ledger: Ledger) -> frozenset[PeerId]:
    """All peers that are banned. Blocks."""
    return frozenset(PeerId(str(peer)) for (peer,) in ledger.rows("SELECT peer FROM peers WHERE is_banned"))


def record_ban(ledger: Ledger, run_id: RunId, host: Signer, peer: PeerId, reason: str, *, now_unix_s: float) -> bool:
    """Sign and store the ban of a peer. Returns False if it was never admitted.

    Raises:
        ConfigError: the reason is invalid, or there are too many bans.
        StorageError: the ledger cannot be written; nobody was banned.
    """

    def sign(number: int) -> bytes:
        if number > MAX_REVOCATIONS:
            raise ConfigError(f"ban number {number}", f"at most {MAX_REVOCATIONS}", "open a new run")
        return seal_revocation(host, run_id, Revocation(peer, reason, int(now_unix_s), number))

    return ledger.ban(peer, reason, sign) is not None
