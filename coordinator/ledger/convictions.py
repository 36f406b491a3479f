"""Bans members that their own signatures convict: voters of two that contradict each other, reducers of a false sum.

The proofs against voters come with reports, or from forks that the host records itself. Those of false sums are fetched from the
members that have them (coordinator/audits/sum_judge.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from coordinator.ledger.accused_reducers import AccusedReducers
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.recorded_bans import record_ban
from protocol.errors import ConfigError
from protocol.host.reports import AckPair
from protocol.identity.names import peer_name
from protocol.ids import PeerId, RunId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.double_votes import conviction_of, double_voters
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.wire import decode_certificate, decode_record

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.ledger.ledger_writer import LedgerWriter
    from protocol.identity.identity import Signer, Verifier

_log = structlog.get_logger()

_Find = Callable[[Ledger], Sequence[tuple[bytes, bytes]]]
"""Finds pairs of signed messages that may convict their signer."""


class Convictions:
    """The host checks each proof itself, and bans the voter in its ledger. Peers hear of it as of every other ban."""

    def __init__(self, run_id: RunId, host: Signer, verifier: Verifier, ledger: LedgerWriter, clock: Clock) -> None:
        self._run_id = run_id
        self._host = host
        self.check = SignatureCheck(verifier, run_id)
        self.sums = AccusedReducers()
        self._ledger = ledger
        self._clock = clock

    async def take(self, pairs: Sequence[AckPair]) -> None:
        """Judge pairs of acks, or claims, that a peer reported. Those that prove nothing are ignored.

        Raises:
            StorageError: the ledger refused; the peer will send the same again.
        """
        if pairs:
            await self._ban(lambda _: [(pair.one, pair.other) for pair in pairs])

    async def look_at(self, forked: Sequence[ChainLink]) -> None:
        """Compare the acks of recorded commits that have siblings with those of the siblings.

        Raises:
            StorageError: the ledger refused.
        """
        if forked:
            await self._ban(lambda ledger: self._pairs_on(ledger, forked))

    async def ban_reducer(self, reducer: PeerId, words: str) -> None:
        """A checked proof convicts this reducer of a false sum; `words` say of which.

        Raises:
            StorageError: the ledger refused.
        """
        now_unix_s = self._clock.unix_s()

        def ban(ledger: Ledger) -> str | None:
            return None if ledger.is_banned(reducer) else self._banned(ledger, reducer, words, now_unix_s)

        trouble = await self._ledger.run(ban)
        if trouble is not None:
            _log.warning("reducer_convicted", peer=peer_name(reducer), reason=words, trouble=trouble)

    def _pairs_on(self, ledger: Ledger, forked: Sequence[ChainLink]) -> Sequence[tuple[bytes, bytes]]:
        pairs: list[tuple[bytes, bytes]] = []
        for link in forked:
            rows = ledger.commits(link.unit, link.parent)
            by_commit = {row.commit: decode_certificate(row.certificate) for row in rows}
            own = by_commit.pop(link.commit)
            for other in (each for each in by_commit.values() if not decode_record(each.record).lone):
                pairs += [(one, two) for _, one, two in double_voters(own, other, self.check)]
        return pairs

    async def _ban(self, find: _Find) -> None:
        now_unix_s = self._clock.unix_s()

        def ban_all(ledger: Ledger) -> Sequence[tuple[PeerId, str, str]]:
            found = (conviction_of(*pair, self.check) for pair in find(ledger))
            by_voter = {each.voter: each for each in found if each is not None}
            new = [each for each in by_voter.values() if not ledger.is_banned(each.voter)]
            return [(each.voter, each.words, self._banned(ledger, each.voter, each.words, now_unix_s)) for each in new]

        for voter, words, trouble in await self._ledger.run(ban_all):
            _log.warning("voter_convicted", peer=peer_name(voter), reason=words, trouble=trouble)

    def _banned(self, ledger: Ledger, member: PeerId, words: str, now_unix_s: float) -> str:
        """Why a convicted member is not banned; empty once it is."""
        try:
            is_known = record_ban(ledger, self._run_id, self._host, member, words, now_unix_s=now_unix_s)
        except ConfigError as error:
            return error.one_line()
        return "" if is_known else "it was never admitted here, so there is nothing to take back"
