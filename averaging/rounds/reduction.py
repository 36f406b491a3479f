"""A reducer's side of one slice: take contributions chunk by chunk, each checked before it counts, and sum them in fixed order.

The checks, cheap first: length, roster, round and base, signature, chunk count, Merkle
root, then each chunk's length and hash, then decoding within the budget and finiteness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
import trio

from averaging.codecs import Codec
from averaging.rounds.contribution import result_root, split_hashes
from averaging.weighted_mean import WeightedSum
from protocol.envelope import open_envelope
from protocol.errors import RemoteProtocolError
from protocol.identity import Verifier
from protocol.ids import PeerId, RunId
from protocol.merkle import leaf_hash, merkle_root
from protocol.rounds.chain import ROUND_DOMAIN
from protocol.rounds.messages import (
    ContributionHeader,
    Included,
    Omission,
    Proposal,
    ResultHeader,
    SliceSpec,
)
from protocol.rounds.requests import ExchangeHello
from protocol.tensor_schema import ChunkGrid
from protocol.wire import decode_body

MAX_DELTA: Final = 1e18
"""64 members of 2^53 tokens each times this stay below float32's largest number (3.4e38): the sum cannot overflow."""


@dataclass
class Offer:
    """One member's checked header, its chunk hashes, and the chunks of it that are here (by number, over all attempts)."""

    header: ContributionHeader
    hashes: tuple[bytes, ...]
    chunks: dict[int, bytes] = field(default_factory=dict)

    def has(self, part: SliceSpec) -> bool:
        """Whether the whole slice is here."""
        return all(chunk in self.chunks for chunk in range(part.first_chunk, part.stop_chunk))


class Offers:
    """All offers on one base: what a reducer has is never sent again, in any attempt (rule 9)."""

    def __init__(self, run_id: RunId, verifier: Verifier, codec: Codec, grid: ChunkGrid) -> None:
        self._run_id = run_id
        self._verifier = verifier
        self.codec = codec
        self._grid = grid
        self._offers: dict[PeerId, Offer] = {}

    def admit(self, sender: PeerId, proposal: Proposal, hello: ExchangeHello) -> Offer:
        """Check a member's header against the proposal; one root per session. A peer that was restarted may offer again, in an attempt
        that names its new session: what its session before sent is then no longer counted.

        Raises:
            RemoteProtocolError: anything that does not fit; the stream is reset.
        """
        envelope = open_envelope(
            hello.contribution, verifier=self._verifier, domain=ROUND_DOMAIN, run_id=self._run_id, now_unix_ms=None
        )
        header = decode_body(ContributionHeader, envelope.payload)
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
        hashes = split_hashes(hello.chunk_hashes, self._grid.num_chunks)
        if merkle_root(hashes) != header.root:
            raise RemoteProtocolError("chunk hashes that do not make the signed root", "the hashes of the contribution")
        offer = Offer(header, hashes)
        self._offers[sender] = offer
        return offer

    def add_chunk(self, offer: Offer, chunk: int, data: bytes) -> None:
        """Take one chunk.

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
        if leaf_hash(data) != offer.hashes[chunk]:
            raise RemoteProtocolError(f"chunk {chunk} with another hash", "the chunk that was signed")
        offer.chunks[chunk] = data

    def get(self, peer: PeerId) -> Offer | None:
        """The offer of a peer."""
        return self._offers.get(peer)


@dataclass(frozen=True)
class SliceResult:
    """A closed slice: its header's content and its encoded chunks."""

    header: ResultHeader
    chunks: tuple[bytes, ...]


class Reduction:
    """One slice of one attempt at its reducer: waits for the members, closes, sums."""

    def __init__(
        self, proposal: Proposal, part: SliceSpec, offers: Offers, result_codec: Codec, grid: ChunkGrid
    ) -> None:
        self.part = part
        self._proposal = proposal
        self._offers = offers
        self._result_codec = result_codec
        self._grid = grid
        self._absent: dict[PeerId, str] = {}
        self._changed = trio.Event()
        self.closed = trio.Event()
        self.result: SliceResult | None = None
        self.signed_header = b""

    def set_absent(self, peer: PeerId, reason: str) -> None:
        """Stop waiting for a member: it offers nothing, or is suspected."""
        self._absent.setdefault(peer, reason)
        self.wake()

    def set_present(self, peer: PeerId) -> None:
        """A suspect spoke again: wait for it like for anybody."""
        self._absent.pop(peer, None)

    def wake(self) -> None:
        """Look again whether the slice may close."""
        event, self._changed = self._changed, trio.Event()
        event.set()

    def _is_settled(self, peer: PeerId) -> bool:
        offer = self._offers.get(peer)
        return peer in self._absent or (offer is not None and offer.has(self.part))

    async def wait_ready(self, within_s: float) -> None:
        """Returns when all members' ranges are in or accounted for, or at the deadline with at least one (rule 10)."""
        with trio.move_on_after(within_s):
            while not all(self._is_settled(member.peer) for member in self._proposal.members):
                await self._changed.wait()
            return
        while not self._whole_offers():
            await self._changed.wait()

    def _whole_offers(self) -> list[tuple[PeerId, Offer]]:
        members = sorted(member.peer for member in self._proposal.members)
        offers = [(peer, self._offers.get(peer)) for peer in members]
        return [
            (peer, offer)
            for peer, offer in offers
            if offer is not None and offer.has(self.part) and offer.header.tokens > 0
        ]

    def reduce(self) -> SliceResult | None:
        """Sum what is whole, in the order of peer ids, and encode the mean once; None when there is nothing to sum."""
        whole = self._whole_offers()
        included: list[tuple[PeerId, Offer]] = []
        decoded = []
        for peer, offer in whole:
            try:
                decoded.append([self._decode(offer, chunk) for chunk in self._chunk_numbers()])
            except RemoteProtocolError as error:
                self._absent[peer] = f"not decodable: {error.found}"
                continue
            included.append((peer, offer))
        if not included:
            return None
        cap = self._proposal.weight_cap_tokens
        weights = [min(offer.header.tokens, cap) for _, offer in included]
        chunks = []
        for position, chunk in enumerate(self._chunk_numbers()):
            begin, stop = self._grid.bounds(chunk)
            total = WeightedSum(stop - begin)
            for weight, parts in zip(weights, decoded, strict=True):
                total.add(weight, parts[position])
            chunks.append(self._result_codec.encode(total.mean()))
        header = self._header(included, sum(weights), tuple(chunks))
        return SliceResult(header, tuple(chunks))

    def _chunk_numbers(self) -> range:
        return range(self.part.first_chunk, self.part.stop_chunk)

    def _decode(self, offer: Offer, chunk: int) -> torch.Tensor:
        begin, stop = self._grid.bounds(chunk)
        values_n = self._offers.codec.decode(offer.chunks[chunk], stop - begin)
        largest = float(values_n.abs().max())
        if not largest <= MAX_DELTA:
            raise RemoteProtocolError(f"a delta of {largest:.3g} in chunk {chunk}", f"at most {MAX_DELTA:.0e}")
        return values_n

    def _header(self, included: list[tuple[PeerId, Offer]], weight_sum: int, chunks: tuple[bytes, ...]) -> ResultHeader:
        proposal = self._proposal
        counted = {peer for peer, _ in included}
        omitted = tuple(
            Omission(member.peer, self._absent.get(member.peer, "late"))
            for member in sorted(proposal.members, key=lambda member: member.peer)
            if member.peer not in counted
        )
        return ResultHeader(
            unit=proposal.unit,
            base=proposal.base,
            ballot=proposal.ballot,
            first_chunk=self.part.first_chunk,
            stop_chunk=self.part.stop_chunk,
            reducer=self.part.reducer,
            included=tuple(_included(peer, offer) for peer, offer in included),
            omitted=omitted,
            weight_sum=weight_sum,
            result_hash=result_root(chunks),
        )


def _included(peer: PeerId, offer: Offer) -> Included:
    header = offer.header
    return Included(peer, header.member.incarnation, header.root, header.tokens, header.attested, header.attested_root)
