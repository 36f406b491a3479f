"""Which peers in the directory are reachable and hold what they claim.

Records in the directory are the peers' own claims, and outlive a peer that left or was killed. verified_holders_core.py decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network, Offload
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.traffic.transfer import ask
from peer.holdings.verified_holders_core import Believed, HolderReply, Shown, believed
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity.identity import Verifier
from protocol.ids import PeerId, RunId, UnitName, short
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.messages.requests import MAX_KNOWN, FetchCommits
from protocol.rounds.messages.wire import decode_certificate, decode_record

log = structlog.get_logger()

ASK_WITHIN_S: Final = 5.0
PROVE_WITHIN_S: Final = 10.0
"""Total time for all proofs. A proof that arrives later does not count."""

NUM_LOOKED_AT: Final = 4
"""How many commits of a claimed part are fetched and verified."""

Ask = Callable[[PeerId], Awaitable[object]]
"""Calls a peer. Raises PotluckError if it does not answer."""

Prove = Callable[[PeerId, int], Awaitable[int]]
"""Returns how many commits a peer shows of a part that it claims. Raises PotluckError if they do not verify, or if it does not
answer.
"""


class _EnoughError(Exception):
    """Enough commits were received."""


@dataclass(frozen=True)
class CommitProof:
    """Verifies commits of the run's parts that other peers show: each against the previous one, the first against the run's
    start, or a milestone of the part.
    """

    network: Network
    offload: Offload
    verifier: Verifier
    run_id: RunId
    start: bytes
    units: tuple[UnitName, ...]
    milestones: HeldMilestones | None = None

    async def __call__(self, peer: PeerId, part: int) -> int:
        """How many commits a peer has, up to NUM_LOOKED_AT.

        Raises:
            RemoteProtocolError: they are not commits of that part, or the run has no such part. TransportError: it does not
                answer.
        """
        if part >= len(self.units):
            raise RemoteProtocolError(f"part {part} of a run with {len(self.units)}", "one that the run has")
        firsts, frames = self._firsts(self.units[part]), list[bytes]()

        def take(frame: bytes) -> None:
            frames.append(frame)
            if len(frames) >= NUM_LOOKED_AT:
                raise _EnoughError

        known = tuple(link.commit for link in firsts)
        with suppress(_EnoughError):
            await ask(self.network, peer, FetchCommits(self.units[part], known), take)
        return await self.offload.run(partial(self._verified, firsts, frames))

    def _firsts(self, unit: UnitName) -> tuple[ChainLink, ...]:
        """Links on which commits may stand that a peer shows."""
        held = self.milestones.of(unit).held if self.milestones is not None else ()
        newest = tuple(each.link for each in held[:-MAX_KNOWN:-1])
        return (*newest, genesis_link(self.start, unit))

    def _verified(self, firsts: tuple[ChainLink, ...], frames: list[bytes]) -> int:
        links = {link.commit: link for link in firsts}
        for frame in frames:
            certificate = decode_certificate(frame)
            parent = links.get(decode_record(certificate.record).parent)
            if parent is None:
                raise RemoteProtocolError(
                    "a commit that follows none that was named", "one after a milestone or the start"
                )
            link = verify_certificate(certificate, parent, verifier=self.verifier, run_id=self.run_id)
            links = {link.commit: link}
        return len(frames)


async def present(
    listed: Mapping[PeerId, tuple[int, ...]],
    reachable: Collection[PeerId],
    ask_peer: Ask,
    prove: Prove,
    units: tuple[UnitName, ...],
    run_index: int,
    founders: Mapping[PeerId, tuple[int, ...]] = MappingProxyType({}),
) -> Believed:
    """Verify the listed peers for a newcomer's choice of parts. All are asked at once, within ASK_WITHIN_S for a sign of life and
    PROVE_WITHIN_S for proofs. A wrong result only makes the choice less good.
    """
    replies = {peer: HolderReply(can_be_asked=peer in reachable) for peer in listed}

    async def question(peer: PeerId) -> None:
        try:
            with trio.fail_after(ASK_WITHIN_S):
                await ask_peer(peer)
        except (PotluckError, trio.TooSlowError):
            return
        replies[peer] = HolderReply(True, is_there=True, shown=await _all_shown(peer, listed[peer], prove))

    async with trio.open_nursery() as nursery:
        for peer in listed.keys() & set(reachable):
            nursery.start_soon(question, peer)
    if absent := sorted(short(peer) for peer, each in replies.items() if each.can_be_asked and not each.is_there):
        log.info("listed_and_not_there", peers=absent)
    found = believed(listed, replies, units, run_index, founders)
    for reason in found.reasons:
        log.warning("holder_not_believed", reason=reason)
    return found


async def _all_shown(peer: PeerId, parts: Collection[int], prove: Prove) -> Mapping[int, Shown]:
    shown = {part: Shown(refused=f"does not show its commits within {PROVE_WITHIN_S:.0f} s") for part in parts}

    async def ask_part(part: int) -> None:
        try:
            shown[part] = Shown(await prove(peer, part))
        except PotluckError as error:
            shown[part] = Shown(refused=f"shows no commits of it that verify ({error.one_line()})")

    with trio.move_on_after(PROVE_WITHIN_S):
        async with trio.open_nursery() as nursery:
            for part in parts:
                nursery.start_soon(ask_part, part)
    return shown
