"""Members' offers on one base, as a reducer knows them: each is checked before it counts.

The checks, cheap first: length, roster, round and base, signature, chunk count, Merkle root, then each chunk's length and hash.
Decoding comes last (chunk_means.py).

Rules: R9 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from averaging.codecs import Codec
from averaging.rounds.traffic.batches import Batch
from averaging.rounds.traffic.contribution import EncodedContribution, split_hashes
from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import open_envelope, seal_of
from protocol.identity.identity import Verifier
from protocol.ids import HASH_BYTES, PeerId, RunId
from protocol.merkle import leaf_hash, range_root
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import decode_claim
from protocol.rounds.messages.messages import Proposal, SliceSpec
from protocol.rounds.messages.requests import ContributionHeader, ExchangeHello
from protocol.tensors.tensor_schema import ChunkGrid


@dataclass
class OfferedContribution:
    """One member's checked header, its known chunk hashes, and its chunks that are here; both by number, over all attempts."""

    header: ContributionHeader
    seal: bytes = b""
    credential: bytes = b""
    hashes: dict[int, bytes] = field(default_factory=dict)
    chunks: dict[int, bytes | memoryview] = field(default_factory=dict)

    def has(self, part: SliceSpec) -> bool:
        """Whether the whole slice is here."""
        return all(chunk in self.chunks for chunk in range(part.first_chunk, part.stop_chunk))


class Offers:
    """All offers on one base: chunks that a reducer has are never sent again, in any attempt (R9)."""

    def __init__(
        self,
        run_id: RunId,
        verifier: Verifier,
        codec: Codec,
        grid: ChunkGrid,
        voters: frozenset[PeerId] | None = None,
    ) -> None:
        """Args: voters: the base roster. Others must show the credential that admitted them; None where it is not known here."""
        self._run_id = run_id
        self._verifier = verifier
        self.codec = codec
        self._grid = grid
        self._voters = voters
        self._offers: dict[PeerId, OfferedContribution] = {}

    def admit(self, sender: PeerId, proposal: Proposal, part: SliceSpec, hello: ExchangeHello) -> OfferedContribution:
        """Check a member's hello for a slice: its header by the proposal, the hashes of the slice's chunks by the header.

        Raises:
            RemoteProtocolError: anything that does not fit; the stream is reset.
        """
        offer = self._headed(sender, proposal, hello.contribution)
        self._let_in(sender, offer, hello.credential)
        hashes = split_hashes(hello.chunk_hashes, part.stop_chunk - part.first_chunk)
        path = split_hashes(hello.path, len(hello.path) // HASH_BYTES)
        if range_root(self._grid.num_chunks, part.first_chunk, hashes, path) != offer.header.root:
            raise RemoteProtocolError("chunk hashes that do not make the signed root", "the hashes of the contribution")
        offer.hashes.update(enumerate(hashes, part.first_chunk))
        self._offers[sender] = offer
        return offer

    def _let_in(self, sender: PeerId, offer: OfferedContribution, credential: bytes) -> None:
        must_show = self._voters is not None and sender not in self._voters
        if must_show and not self._verifier.admits(credential, sender, self._run_id):
            raise RemoteProtocolError(f"a contribution of {sender} without its admission", "its credential")
        offer.credential = credential

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
        envelope = open_envelope(
            signed, verifier=self._verifier, domain=ROUND_DOMAIN, run_id=self._run_id, now_unix_ms=None
        )
        header = decode_claim(envelope.payload)
        if envelope.sender != sender or header.member != proposal.member(sender):
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
