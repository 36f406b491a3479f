"""What a peer with error feedback still owes the run: the work in its local parameters and the residual, together. A commit that
counts its contribution takes out what was sent, by the bytes of the contribution, and nothing else does.

Watched over one process life, between what only a restart, a switch or a death of the training process may give up.
"""

from __future__ import annotations

import torch

from averaging.codecs import Codec
from averaging.error_feedback import FedDelta, Feedback
from averaging.rounds.feedback import ErrorFeedback, counts_of
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.chain import ChainLink
from protocol.tensor_schema import ChunkGrid
from tests.simulation.invariants import Violation

TOLERANCE = 1e-4
"""Of float32 sums, relative to the largest value and to 1."""


class WatchedFeedback(ErrorFeedback):
    """Production, looked at."""

    owed: Owed

    def offer(self, root: Root, fed: FedDelta) -> None:
        """Remember the bytes."""
        super().offer(root, fed)
        self.owed.sent[root] = fed.chunks

    def commit(self, link: ChainLink) -> None:
        """Remember what it counts."""
        super().commit(link)
        self.owed.links.append(link)

    def switch(self, state: Feedback, head: CommitId) -> None:
        """What others' work in the lineage that is left comes to is not known here."""
        super().switch(state, head)
        self.owed.links.clear()
        self.owed.is_known = False


class Owed:
    """The sum of one unit at one process."""

    def __init__(self, me: PeerId, feedback: WatchedFeedback, codec: Codec, grid: ChunkGrid) -> None:
        self._me = me
        self._feedback = feedback
        self._codec = codec
        self._grid = grid
        self._anchor_N = torch.zeros(grid.num_elements)
        self._residual_N = torch.zeros(grid.num_elements)
        self.sent: dict[Root, tuple[bytes, ...]] = {}
        self.links: list[ChainLink] = []
        self.is_known = False
        self.num_checked = 0
        feedback.owed = self

    def sources(self) -> tuple[Root | None, ...]:
        """By chunk, the origin of the residual that the newest contribution took along; None where that was zeros."""
        residual, grid = self._feedback.state.residual, self._grid
        spans = [grid.bounds(chunk) for chunk in range(grid.num_chunks)]
        is_any = [bool(residual.values_N[begin:stop].any()) for begin, stop in spans]
        return tuple(root if is_it else None for root, is_it in zip(residual.origins, is_any, strict=True))

    def started(self, anchor_N: torch.Tensor) -> None:
        """The trainer is on an anchor, without any work."""
        self.links.clear()
        self._remember(anchor_N)

    def shifted(self, before_N: torch.Tensor, after_N: torch.Tensor, anchor_N: torch.Tensor) -> None:
        """The trainer has moved from `before_N` to `after_N`, (N,) float32, which stands to this anchor.

        Raises:
            Violation: more or less is owed than before, short of what was counted.
        """
        owed_N = self._anchor_N - before_N + self._residual_N
        if self.is_known and self._take_counted(owed_N):
            now_N = anchor_N - after_N + self._feedback.state.residual.values_N
            off = float((now_N - owed_N).abs().max())
            if off > TOLERANCE * (1.0 + float(owed_N.abs().max())):
                raise Violation(f"{self._me} owes another sum than what was not counted, by {off}")
            self.num_checked += 1
        self.links.clear()
        self._remember(anchor_N)

    def _remember(self, anchor_N: torch.Tensor) -> None:
        self._anchor_N, self._residual_N = anchor_N, self._feedback.state.residual.values_N.clone()
        self.is_known = True

    def _take_counted(self, owed_N: torch.Tensor) -> bool:
        """Off with what these commits counted; False where they counted an older process' contribution."""
        forgotten = 1.0 - self._feedback.state.beta
        for root, chunks in counts_of(self.links, self._me):
            if root not in self.sent:
                return False
            for chunk in chunks:
                begin, stop = self._grid.bounds(chunk)
                owed_N[begin:stop] -= self._codec.decode(self.sent[root][chunk], stop - begin)
                owed_N[begin:stop] -= forgotten * self._residual_N[begin:stop]
        return True
