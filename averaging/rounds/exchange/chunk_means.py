"""The mean of chunks over the members of a slice, guarded by the run's rule against members that send wrong deltas.

Without such a rule whole runs of chunks are summed in one pass over their bytes. With one every chunk is decoded first, since its rule
looks at all members' values before any of them is added.

Rules: R10 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import torch

from averaging.arithmetic.batched_codec import decode_run
from averaging.arithmetic.robust_mean import robust_mean
from averaging.arithmetic.weighted_mean import WeightedSum, sum_dtype
from averaging.codecs import Codec
from averaging.rounds.exchange.offered_contributions import OfferedContribution
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.rounds.schedule.sum_rules import DEFAULT_SUMS, SumRules
from protocol.tensors.tensor_schema import ChunkGrid

MAX_DELTA: Final = 1e18
"""64 members of 2^53 tokens each times this stay below float32's largest number (3.4e38): the sum cannot overflow."""

Counted: TypeAlias = Sequence[tuple[PeerId, OfferedContribution]]
"""Members whose contributions are summed, in the order of their ids."""


class HasChunks(Protocol):
    """A contribution, or a part of one, of which encoded chunks are here."""

    @property
    def is_stranger(self) -> bool:
        """Whether its claim is a stranger's."""
        ...

    @property
    def chunks(self) -> Mapping[int, bytes | memoryview]:
        """By their number in the unit's grid."""
        ...


Summed: TypeAlias = Sequence[tuple[PeerId, HasChunks]]
"""As `Counted`, with what a mean needs of each."""

LeftOut: TypeAlias = tuple[tuple[PeerId, float], ...]
"""The members whose chunk is left out, each with its agreement as a share of the median one, in [-1, 1]."""


class UndecodableError(Exception):
    """A member's chunk that cannot be counted."""

    def __init__(self, peer: PeerId, error: RemoteProtocolError) -> None:
        super().__init__(error.found)
        self.peer = peer


@dataclass(frozen=True)
class ChunkMeans:
    """The means of chunks of one unit.

    Attributes:
        result_codec: of the means; it decides in which precision they are summed.
        grid: the unit's chunks.
        rules: with the rule that guards each chunk's mean.
    """

    result_codec: Codec
    grid: ChunkGrid
    rules: SumRules = DEFAULT_SUMS

    def of(
        self, run: range, codec: Codec, counted: Summed, weights: Sequence[int]
    ) -> tuple[torch.Tensor, Sequence[LeftOut]]:
        """The mean (n,) float32 of a run of chunks, and who is left out of each of them.

        Args:
            codec: of the contributions.
            counted: at least one keeper or member; all have these chunks.
            weights: of the members, in tokens (stranger_weights.py).

        Raises:
            UndecodableError: a member's bytes do not decode, or to a value beyond MAX_DELTA.
        """
        if self.rules.guard.clips:
            return self._guarded(run, codec, counted, weights)
        total = self._sum_of_plain(run, codec, counted, weights) or self._sum_of_checked(run, codec, counted, weights)
        return total.mean().float(), [()] * len(run)

    def _guarded(
        self, run: range, codec: Codec, counted: Summed, weights: Sequence[int]
    ) -> tuple[torch.Tensor, Sequence[LeftOut]]:
        """Chunk by chunk, by the run's rule."""
        begin, stop = self.grid.span(run.start, run.stop)
        mean_n, left_out, dtype = torch.empty(stop - begin), list[LeftOut](), sum_dtype(self.result_codec.name)
        are_strangers = [offer.is_stranger for _, offer in counted]
        for chunk in run:
            first, last = self.grid.bounds(chunk)
            one, rows_mn = range(chunk, chunk + 1), torch.empty(len(counted), last - first)
            for number, (peer, offer) in enumerate(counted):
                rows_mn[number] = self._decoded(peer, offer, codec, one)
            mean_n[first - begin : last - begin], judgement = robust_mean(
                rows_mn, weights, self.rules.guard, dtype, are_strangers if any(are_strangers) else None
            )
            left_out.append(
                tuple((counted[number][0], float(judgement.shares[number])) for number in judgement.left_out)
            )
        return mean_n, left_out

    def _sum_of_plain(self, run: range, codec: Codec, counted: Summed, weights: Sequence[int]) -> WeightedSum | None:
        """Sum in one pass over each member's bytes; None if the codec does not allow that, or a value must be refused."""
        total = self._empty_sum(run)
        for weight, (_, offer) in zip(weights, counted, strict=True):
            chunks = [offer.chunks[chunk] for chunk in run]
            if not total.add_encoded(weight, codec, chunks, self.grid.chunk_elements, MAX_DELTA):
                return None
        return total

    def _sum_of_checked(self, run: range, codec: Codec, counted: Summed, weights: Sequence[int]) -> WeightedSum:
        """Sum member by member, decoded first."""
        total = self._empty_sum(run)
        for weight, (peer, offer) in zip(weights, counted, strict=True):
            total.add(weight, self._decoded(peer, offer, codec, run), is_spent=True)
        return total

    def _empty_sum(self, run: range) -> WeightedSum:
        begin, stop = self.grid.span(run.start, run.stop)
        return WeightedSum(stop - begin, sum_dtype(self.result_codec.name))

    def _decoded(self, peer: PeerId, offer: HasChunks, codec: Codec, run: range) -> torch.Tensor:
        try:
            return self._decode(offer, codec, run)
        except RemoteProtocolError as error:
            raise UndecodableError(peer, error) from error

    def _decode(self, offer: HasChunks, codec: Codec, run: range) -> torch.Tensor:
        begin, stop = self.grid.span(run.start, run.stop)
        size = self.grid.chunk_elements
        values_n = decode_run(codec, [offer.chunks[chunk] for chunk in run], size, stop - begin)
        smallest, greatest = torch.aminmax(values_n)
        largest = max(-float(smallest), float(greatest))
        if not largest <= MAX_DELTA:
            chunk = run.start + int(values_n.abs().argmax()) // size
            raise RemoteProtocolError(f"a delta of {largest:.3g} in chunk {chunk}", f"at most {MAX_DELTA:.0e}")
        return values_n
