"""The loss gate of the host: signs holds and rewinds, keeps them in the ledger, and gives them to peers with answers to their reports.

The decisions are in coordinator/audits/loss_gate_core.py. A rewind is a commit like others, so the log of commits has it, too.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from coordinator.audits.loss_gate_core import (
    HOLD_S,
    MOST_MEASURES,
    GateAction,
    GateFacts,
    GoBack,
    LiftHold,
    Rise,
    SignHold,
    measures_on,
    next_action,
)
from coordinator.progress.heldout_core import WHOLE
from coordinator.progress.run_core import Phase
from protocol.errors import PotluckError
from protocol.host.host_statements import NO_GATE_NEWS, GateNews
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.hold import MAX_HOLD_S, Hold, open_hold, seal_hold
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from protocol.rounds.messages.wire import encode_certificate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from averaging.network.seams.interfaces import Clock
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.chain_log import ChainLog
    from coordinator.progress.tracker import RunTracker
    from protocol.identity.credential import CertificateAuthority
    from protocol.identity.identity import Signer
    from protocol.rounds.lineage.chain_link import ChainLink
    from protocol.rounds.lineage.lineage import TreeNode
    from protocol.rounds.lineage.record_rules import SignatureCheck

_log = structlog.get_logger()

HOLD: Final = "hold"
"""Ledger name of the newest hold as sealed."""

REWINDS: Final = "rewinds"
"""Ledger name of the number of the newest rewind, 4 bytes big-endian."""

_NAMED: Final = 8
"""Peers of the rounds that are taken back whose names are logged."""


class LossGate:
    """The gate of one run. Call `restore` before anything else. `authority`: the key of the run's certificate authority."""

    def __init__(
        self, tracker: RunTracker, authority: Signer, check: SignatureCheck, ledger: LedgerWriter, clock: Clock
    ) -> None:
        self.words = ""
        """Why the run is held, or might be, in a sentence; empty while all is well."""

        self._tracker = tracker
        self._authority = authority
        self._check = check
        self._ledger = ledger
        self._clock = clock
        self._hold: Hold | None = None
        self._sealed = b""
        self._number = 0
        self._head: CommitId | None = None
        self._came_s = 0.0

    async def restore(self) -> None:
        """Read what an earlier process signed. A hold of another start, or one that cannot be read, is named and left out."""
        sealed, number = await self._ledger.run(lambda ledger: (ledger.get(HOLD), ledger.get(REWINDS)))
        self._number = int.from_bytes(number or b"", "big")
        chain = self._tracker.chain
        if not sealed or chain is None:
            return
        try:
            self._hold, self._sealed = open_hold(sealed, check=self._check, genesis=chain.genesis.commit), sealed
        except PotluckError as error:
            _log.warning("hold_not_restored", reason=error.one_line())

    async def look(self) -> None:
        """Decide again. Call about once a second. If the ledger refuses, the next call tries again."""
        chain = self._tracker.chain
        if chain is None or self._tracker.state.phase is not Phase.TRAINING:
            self.words = ""
            return
        now_s = self._clock.monotonic_s()
        if chain.head.commit != self._head:
            self._head, self._came_s = chain.head.commit, now_s
        facts = self._facts(chain, now_s)
        action, self.words = next_action(facts)
        try:
            if action is not None:
                await self._act(chain, action, facts)
        except PotluckError as error:
            _log.warning("loss_gate_failed", reason=error.one_line())

    def _facts(self, chain: ChainLog, now_s: float) -> GateFacts:
        links, curves = chain.lineage(MOST_MEASURES), self._tracker.curves
        live = self._tracker.live_peers()
        measures = measures_on(links, curves.points, WHOLE)
        number = self._number = max(self._number, newest_number(chain))
        unix_s, still_s = self._clock.unix_s(), now_s - self._came_s
        return GateFacts(links, measures, self._hold, number, unix_s, still_s, is_back(chain, number), live)

    async def _act(self, chain: ChainLog, action: GateAction, facts: GateFacts) -> None:
        _log.warning("loss_gate", reason=self.words)
        match action:
            case SignHold(number, rise):
                await self._sign_hold(chain, number, rise)
            case LiftHold(hold):
                now_unix_s = max(int(self._clock.unix_s()), hold.unix_s + 1)
                await self._keep(replace(hold, unix_s=now_unix_s, lasts_s=0))
            case GoBack(number, good, rise):
                await self._lower_hold(rise)
                await self._go_back(chain, number, good, facts.links)

    async def _sign_hold(self, chain: ChainLog, number: int, rise: Rise) -> None:
        head, last, unix_s = chain.head, rise.bad[-1], int(self._clock.unix_s())
        if self._hold is not None and self._hold.number == number:
            unix_s = max(unix_s, self._hold.unix_s + 1)
        genesis = chain.genesis.commit
        losses = (rise.good.index, rise.good.nats, last.index, last.nats)
        await self._keep(Hold(number, head.unit, genesis, head.commit, unix_s, HOLD_S, *losses))

    async def _lower_hold(self, rise: Rise) -> None:
        """A hold ends with a rewind that comes after its good round. Losses that came later may have put that round further back."""
        hold, unix_s = self._hold, int(self._clock.unix_s())
        if hold is not None and rise.good.index < hold.good_index:
            later_s = max(unix_s, hold.unix_s + 1)
            await self._keep(replace(hold, unix_s=later_s, good_index=rise.good.index, good_nats=rise.good.nats))

    async def _keep(self, hold: Hold) -> None:
        sealed = seal_hold(self._authority, self._check.run_id, hold)
        await self._ledger.run(lambda ledger: ledger.put(HOLD, sealed))
        self._hold, self._sealed = hold, sealed

    async def _go_back(self, chain: ChainLog, number: int, good: ChainLink, links: Sequence[ChainLink]) -> None:
        rewind = Rewind(number, chain.head.commit, int(self._clock.unix_s()))
        certificate = encode_certificate(seal_rewind(self._authority, self._check.run_id, good, rewind))
        await self._ledger.run(lambda ledger: ledger.put(REWINDS, number.to_bytes(4, "big")))
        self._number = number
        await self._tracker.go_back(certificate)
        named = ", ".join(map(peer_name, counted_in(links, good.index)[:_NAMED]))
        _log.warning("run_went_back", index=good.index, number=number, counted_since=named)

    def news(self, head: CommitId) -> GateNews:
        """The newest hold while it may count, and the newest rewind for a peer whose head does not follow it."""
        chain = self._tracker.chain
        if chain is None:
            return NO_GATE_NEWS
        hold, now_unix_s = self._hold, self._clock.unix_s()
        sealed = self._sealed if hold is not None and now_unix_s < hold.unix_s + MAX_HOLD_S else b""
        node = rewind_in(chain, self._number)
        if node is None or node.certificate is None or chain.tree.path(node.link.commit, head) is not None:
            return GateNews(sealed)
        return GateNews(sealed, (encode_certificate(node.certificate),))


def is_back(chain: ChainLog, number: int) -> bool:
    """Whether the followed lineage has the rewind of this number; true where it is not among the commits that are remembered."""
    node = rewind_in(chain, number)
    return node is None or chain.tree.path(node.link.commit, chain.head.commit) is not None


def newest_number(chain: ChainLog) -> int:
    """The highest number of a rewind among the commits that may be followed, 0 for none. An old copy of the ledger has a lower one."""
    return max((node.link.rewind for node in chain.tree.nodes.values()), default=0)


def rewind_in(chain: ChainLog, number: int) -> TreeNode | None:
    """The rewind of this number among the commits that may be followed. Of several, which a host with an old copy of its ledger may
    have signed, the one behind the head.
    """
    tree, head = chain.tree, chain.head.commit
    nodes = [node for node in tree.nodes.values() if number and node.link.rewind == number]
    return max(nodes, key=lambda node: tree.path(node.link.commit, head) is not None, default=None)


def counted_in(links: Sequence[ChainLink], after: int) -> list[PeerId]:
    """The peers that rounds after this one count, in the order of peers."""
    records = [link.record for link in links if link.index > after]
    return sorted({entry.peer for record in records if record is not None for entry in record.contributors})


async def opened_gate(
    tracker: RunTracker, authority: CertificateAuthority, check: SignatureCheck, ledger: LedgerWriter, clock: Clock
) -> LossGate | None:
    """The gate of a run that has one.

    Raises:
        StorageError: the ledger cannot be read.
    """
    if not tracker.has_gate:
        return None
    gate = LossGate(tracker, authority.signer, check, ledger, clock)
    await gate.restore()
    return gate
