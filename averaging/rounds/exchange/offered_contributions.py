"""Members' offers on one base, as a reducer knows them: each is checked before it counts.

The checks, cheap first: length, roster, round and base, signature, chunk count, Merkle root, then each chunk's length and hash.
Decoding comes last (chunk_means.py).

Rules: R9 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from averaging.codecs import Codec
from averaging.rounds.exchange.carried_contribution import CarriedContribution
from averaging.rounds.traffic.batches import Batch
from averaging.rounds.traffic.contribution import EncodedContribution, split_hashes
from protocol.errors import RemoteProtocolError, TransportError
from protocol.identity.envelope import open_envelope, seal_of
from protocol.identity.identity import Verifier
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.ids import HASH_BYTES, PeerId, Root, RunId
from protocol.merkle import leaf_hash, path_of_one, range_root
from protocol.rounds.audit.sum_proof import ShownChunk
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import decode_claim
from protocol.rounds.messages.messages import Member, Proposal, SliceSpec
from protocol.rounds.messages.requests import CarryHello, ContributionHeader, ExchangeHello
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

MAX_CARRIED: Final = 4
"""Contributions of leavers that a peer keeps for a round, each as large as its own. A leaver that is refused asks another peer."""


@dataclass
class OfferedContribution:
    """One member's checked header, its known chunk hashes, and its chunks that are here; both by number, over all attempts. `paths`
    lead from the hashes of a range of chunks to the root.
    """

    header: ContributionHeader
    seal: bytes = b""
    credential: bytes = b""
    hashes: dict[int, bytes] = field(default_factory=dict)
    chunks: dict[int, bytes | memoryview] = field(default_factory=dict)
    paths: dict[range, tuple[bytes, ...]] = field(default_factory=dict)

    @property
    def member(self) -> Member:
        """The process that offers it."""
        return self.header.member

    @property
    def root(self) -> Root:
        """Of all its chunks."""
        return self.header.root

    @property
    def is_stranger(self) -> bool:
        """Whether its claim is a stranger's."""
        return self.header.is_stranger

    def has(self, part: SliceSpec) -> bool:
        """Whether the whole slice is here."""
        return all(chunk in self.chunks for chunk in range(part.first_chunk, part.stop_chunk))

    def path_of(self, chunk: int, num_chunks: int) -> tuple[bytes, ...] | None:
        """The hashes that lead from one chunk to the root; None where those of its range are not known here."""
        whole = range(num_chunks)
        if len(self.hashes) == num_chunks:
            return path_of_one(num_chunks, 0, [self.hashes[each] for each in whole], (), chunk)
        for numbers, path in self.paths.items():
            if chunk in numbers:
                return path_of_one(num_chunks, numbers.start, [self.hashes[each] for each in numbers], path, chunk)
        return None


class Offers:
    """All offers on one base: chunks that a reducer has are never sent again, in any attempt (R9)."""

    def __init__(
        self,
        run_id: RunId,
        verifier: Verifier,
        codec: Codec,
        grid: ChunkGrid,
        voters: frozenset[PeerId] | None = None,
        *,
        tells_strangers: bool = False,
    ) -> None:
        """Args: voters: the base roster. Others must show the credential that admitted them; None where it is not known here.
        tells_strangers: whether strangers' claims say that they are, as rules with bounded strangers ask.
        """
        self._run_id = run_id
        self._verifier = verifier
        self.codec = codec
        self._grid = grid
        self._voters = voters
        self._tells_strangers = tells_strangers
        self._offers: dict[PeerId, OfferedContribution] = {}
        self._carried: dict[PeerId, CarriedContribution] = {}

    def admit(
        self, sender: PeerId, proposal: Proposal, part: SliceSpec, hello: ExchangeHello, root: Root | None = None
    ) -> OfferedContribution:
        """Check a member's hello for a slice: its header by the proposal, the hashes of the slice's chunks by the header.

        Args:
            root: as `root_in` made it of this hello, if it was made already.

        Raises:
            RemoteProtocolError: anything that does not fit; the stream is reset.
        """
        offer = self._headed(sender, proposal, hello.contribution)
        self._require_admission(sender, hello.credential, offer.header)
        offer.credential = hello.credential
        if (root or self.root_in(part, hello)) != offer.header.root:
            raise RemoteProtocolError("chunk hashes that do not make the signed root", "the hashes of the contribution")
        hashes = split_hashes(hello.chunk_hashes, part.stop_chunk - part.first_chunk)
        offer.hashes.update(enumerate(hashes, part.first_chunk))
        offer.paths[range(part.first_chunk, part.stop_chunk)] = _path_in(hello)
        self._offers[sender] = offer
        return offer

    def root_in(self, part: SliceSpec, hello: ExchangeHello) -> Root:
        """The root that a slice's chunk hashes make with their path; may run in a thread.

        Raises:
            RemoteProtocolError: not one hash for each chunk, or a path of another length.
        """
        hashes = split_hashes(hello.chunk_hashes, part.stop_chunk - part.first_chunk)
        return range_root(self._grid.num_chunks, part.first_chunk, hashes, _path_in(hello))

    def _require_admission(self, sender: PeerId, credential: bytes, claim: ContributionHeader) -> None:
        must_show = self._voters is not None and sender not in self._voters
        standing = self._verifier.standing(credential, sender, self._run_id) if must_show else PeerStanding.KEEPER
        if standing is None:
            raise RemoteProtocolError(f"a contribution of {sender} without its admission", "its credential")
        is_told = claim.is_stranger or standing.may_reduce or not self._tells_strangers
        if not is_told or (claim.is_stranger and not self._tells_strangers):
            raise RemoteProtocolError(
                f"a claim of {sender} that tells another standing than its credential",
                "a stranger's claim of a stranger",
                "ask its owner to install the run's release",
            )

    def admit_own(self, me: PeerId, proposal: Proposal, mine: EncodedContribution) -> OfferedContribution:
        """Our own contribution, with the hashes of all of its chunks. Raises as `admit`."""
        offer = self._headed(me, proposal, mine.header)
        offer.credential = mine.credential
        offer.hashes.update(enumerate(mine.hashes))
        self._offers[me] = offer
        return offer

    def _headed(self, sender: PeerId, proposal: Proposal, signed: bytes) -> OfferedContribution:
        """The offer of a signed header; one root per session. A restarted peer may offer again, in an attempt that names its new
        session. Chunks of its earlier session do not count then.
        """
        signer, header = self._opened(signed)
        if signer != sender or header.member != proposal.member(sender):
            raise RemoteProtocolError(
                f"a contribution of {header.member.peer} from {sender}", "the member's own, of its session"
            )
        if header.base != proposal.base or header.unit != proposal.unit or header.codec != proposal.codec:
            raise RemoteProtocolError("a contribution to another round or in another codec", "the proposal's")
        known = self._offers.get(sender)
        if known is not None and known.header.member == header.member:
            if known.header.root != header.root:
                raise RemoteProtocolError(f"two contributions of {sender} on one base", "one, whatever the attempts")
            return known
        return OfferedContribution(header, seal_of(signed))

    def _opened(self, signed: bytes) -> tuple[PeerId, ContributionHeader]:
        """The signer of a claim, and the claim."""
        envelope = open_envelope(
            signed, verifier=self._verifier, domain=ROUND_DOMAIN, run_id=self._run_id, now_unix_ms=None
        )
        return envelope.sender, decode_claim(envelope.payload)

    def owner(self, sender: PeerId, hello: ExchangeHello) -> PeerId:
        """The peer whose contribution a hello opens: its sender, or the leaver that signed what the sender carries. Raises as
        `open_envelope`.
        """
        return self._opened(hello.contribution)[0] if hello.carried else sender

    # --- of leavers -----------------------------------------------------------------------------------------------------------

    def begin_carried(self, sender: PeerId, hello: CarryHello) -> CarriedContribution:
        """The memory for a leaver's contribution, which it is about to send us; the same one if it sends it again.

        Raises:
            RemoteProtocolError: it does not fit the unit, the base or what the leaver offered before. TransportError: no room.
        """
        signer, header = self._opened(hello.contribution)
        if signer != sender or header.member.peer != sender:
            raise RemoteProtocolError(f"a contribution of {header.member.peer} from {sender}", "the leaver's own")
        if (header.unit, header.base, header.codec) != (hello.unit, hello.base, self.codec.name):
            raise RemoteProtocolError("a contribution to another round or in another codec", "one on our head")
        known, offer = self._carried.get(sender), self._offers.get(sender)
        for other in (known, offer):
            if other is not None and other.member == header.member and other.root != header.root:
                raise RemoteProtocolError(f"two contributions of {sender} on one base", "one, whoever brings it")
        if known is not None and known.member == header.member:
            return known
        self._require_admission(sender, hello.credential, header)
        if known is None and len(self._carried) >= MAX_CARRIED:
            raise TransportError(
                f"{MAX_CARRIED} contributions of leavers are here", "room for one more", "ask another peer"
            )
        carried = CarriedContribution(hello.contribution, hello.credential, header, self.codec, self._grid)
        self._carried[sender] = carried
        return carried

    def carried_in(self, proposal: Proposal) -> Sequence[CarriedContribution]:
        """The contributions that we carry into this attempt, which names the processes that made them. They are on offer here."""
        found = [
            each
            for each in self._carried.values()
            if each.is_known and proposal.member(each.member.peer) == each.member
        ]
        for each in list(found):
            try:
                offer = self._headed(each.member.peer, proposal, each.header)
            except RemoteProtocolError as error:  # it gave a carrier something else than it offers itself
                log.info("not_carried", of=peer_name(each.member.peer), reason=error.one_line())
                found.remove(each)
                continue
            offer.credential = each.credential
            offer.hashes.update(enumerate(each.tree.levels[0]))
            offer.chunks.update((chunk, each.chunks[chunk]) for chunk in each.here if chunk not in offer.chunks)
            self._offers[each.member.peer] = offer
        return found

    # --- chunks ---------------------------------------------------------------------------------------------------------------

    def check_batch(self, offer: OfferedContribution, batch: Batch) -> None:
        """Check that these are chunks of the offer; may run in a thread. Raises as `check_chunk`."""
        for chunk, data in batch:
            self.check_chunk(offer, chunk, data)

    def check_chunk(self, offer: OfferedContribution, chunk: int, data: bytes | memoryview) -> None:
        """Check that this is a chunk of the offer.

        Raises:
            RemoteProtocolError: no such chunk, wrong length, or a hash that is not the signed one.
        """
        if not 0 <= chunk < self._grid.num_chunks:
            raise RemoteProtocolError(f"chunk {chunk}", f"0 to {self._grid.num_chunks - 1}")
        begin, stop = self._grid.bounds(chunk)
        if len(data) != self.codec.encoded_bytes(stop - begin):
            raise RemoteProtocolError(
                f"chunk {chunk} of {len(data)} bytes", f"{self.codec.encoded_bytes(stop - begin)}"
            )
        if leaf_hash(data) != offer.hashes.get(chunk):
            raise RemoteProtocolError(f"chunk {chunk} with another hash", "the chunk that was signed")

    def get(self, peer: PeerId) -> OfferedContribution | None:
        """The offer of a peer."""
        return self._offers.get(peer)

    def shown(self, chunk: int, roots: Collection[bytes]) -> list[ShownChunk]:
        """This chunk of each of these contributions of which it is here, with its path to the root; may run in a thread."""
        found: list[ShownChunk] = []
        for offer in list(self._offers.values()):
            data = offer.chunks.get(chunk) if offer.root in roots else None
            path = offer.path_of(chunk, self._grid.num_chunks) if data is not None else None
            if data is not None and path is not None:
                found.append(ShownChunk(offer.root, b"".join(path), bytes(data)))
        return found


def _path_in(hello: ExchangeHello) -> tuple[bytes, ...]:
    return split_hashes(hello.path, len(hello.path) // HASH_BYTES)
