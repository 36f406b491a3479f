"""The debt of a peer with error feedback to the run: the work in its local parameters and the residual, together. A commit that
counts its contribution takes out what was sent, by the bytes of the contribution, and nothing else does.

A commit that is mixed into the parameters changes two things more, in the chunks that it counted alone: of what we sent otherwise than
all moved alpha is owed again, and 1 - alpha of the work since the snapshot is given up, which is at most the delay's.

Watched over one process life, between what only a restart, a switch or a death of the training process may give up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from averaging.arithmetic.error_feedback import FedDelta, Feedback
from averaging.codecs import Codec
from averaging.network.seams.interfaces import KeptPart
from averaging.rounds.lineage.adoption import Mixing
from averaging.rounds.lineage.unit_feedback import ErrorFeedback, counts_of
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.tensors.tensor_schema import ChunkGrid
from tests.simulation.invariants import Violation

TOLERANCE = 1e-4
"""Of float32 sums, relative to the largest value and to 1."""

LATE_TOKENS = 200
"""Training goes on for at most two steps between the decision that a commit came in time and the move of the parameters."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot: (N,) float32, and how many tokens it offers."""

    theta_N: torch.Tensor
    tokens: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A contribution's chunks, and the snapshot that it was made of."""

    chunks: tuple[bytes, ...]
    snapshot: Taken


@dataclass(frozen=True, slots=True)
class Moved:
    """The trainer has moved from `before_N` to `after_N`, with so many tokens ready, and was told to keep these shares of theta."""

    before_N: torch.Tensor
    after_N: torch.Tensor
    kept: Sequence[KeptPart] = ()
    tokens_ready: int = 0


class WatchedFeedback(ErrorFeedback):
    """Production, looked at."""

    owed: Owed

    def offer(self, root: Root, fed: FedDelta) -> None:
        """Remember the bytes."""
        super().offer(root, fed)
        self.owed.offered(root, fed.chunks)

    def commit(self, link: ChainLink) -> None:
        """Remember what it counts."""
        super().commit(link)
        self.owed.links.append(link)

    def switch(self, state: Feedback, head: CommitId) -> None:
        """The sum of others' work in the abandoned lineage is not known here."""
        super().switch(state, head)
        self.owed.links.clear()
        self.owed.is_known = False


class Owed:
    """The sum of one unit at one process."""

    def __init__(
        self,
        me: PeerId,
        feedback: WatchedFeedback,
        codec: Codec,
        grid: ChunkGrid,
        mixing: Mixing | None = None,
        has_mixed: Callable[[], None] = lambda: None,
    ) -> None:
        self._me = me
        self._feedback = feedback
        self._codec = codec
        self._grid = grid
        self._mixing = mixing
        self._has_mixed = has_mixed
        self._anchor_N = torch.zeros(grid.num_elements)
        self._residual_N = torch.zeros(grid.num_elements)
        self._newest: Taken | None = None
        self._sent: dict[Root, Sent] = {}
        self._moves: dict[CommitId, torch.Tensor] = {}
        self._after: dict[CommitId, torch.Tensor] = {}
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

    def snapshot(self, theta_N: torch.Tensor, tokens: int) -> None:
        """The trainer has given this one."""
        self._newest = Taken(theta_N.clone(), tokens)

    def offered(self, root: Root, chunks: tuple[bytes, ...]) -> None:
        """The newest snapshot was offered as these bytes."""
        if self._newest is not None:
            self._sent[root] = Sent(chunks, self._newest)

    def applied(self, commit: CommitId, before_N: torch.Tensor, after_N: torch.Tensor) -> None:
        """A commit has moved the anchor, (N,) float32."""
        self._moves[commit] = torch.sub(before_N, after_N)
        self._after[commit] = after_N

    def shifted(self, moved: Moved, anchor_N: torch.Tensor) -> None:
        """The trainer has moved, and stands to this anchor, (N,) float32; after commits to that of the last one, since the anchor may
        have moved on in the same memory.

        Raises:
            Violation: more or less is owed than before, short of what was counted and of what a mixed commit may give up.
        """
        anchor_N = self._after[self.links[-1].commit] if self.links else anchor_N
        owed_N = self._anchor_N - moved.before_N + self._residual_N
        if self.is_known and self._take_counted(owed_N, moved):
            now_N = anchor_N - moved.after_N + self._feedback.state.residual.values_N
            off = float((now_N - owed_N).abs().max())
            if off > TOLERANCE * (1.0 + float(owed_N.abs().max())):
                raise Violation(f"{self._me} owes another sum than what was not counted, by {off}")
            self.num_checked += 1
        self.links.clear()
        self._remember(anchor_N)

    def _remember(self, anchor_N: torch.Tensor) -> None:
        self._anchor_N, self._residual_N = anchor_N.clone(), self._feedback.state.residual.values_N.clone()
        self.is_known = True

    def _take_counted(self, owed_N: torch.Tensor, moved: Moved) -> bool:
        """Off with what these commits counted; False where they counted an older process' contribution."""
        forgotten = 1.0 - self._feedback.state.beta
        shares = self._shares(moved.kept)
        counted = set[int]()
        for link in self.links:
            for root, chunks in counts_of([link], self._me):
                sent = self._sent.get(root)
                if sent is None:
                    return False
                self._check_delay(sent.snapshot, shares, moved)
                counted |= chunks
                for chunk in chunks:
                    span = slice(*self._grid.bounds(chunk))
                    sent_n = self._codec.decode(sent.chunks[chunk], span.stop - span.start)
                    owed_N[span] -= sent_n + forgotten * self._residual_N[span]
                    if chunk in shares:
                        since_n = moved.before_N[span] - sent.snapshot.theta_N[span]
                        owed_N[span] += shares[chunk] * (sent_n - self._moves[link.commit][span])
                        owed_N[span] += (1.0 - shares[chunk]) * since_n
        if not shares.keys() <= counted:
            raise Violation(f"{self._me} mixes away what was not counted, in chunks {sorted(shares.keys() - counted)}")
        return True

    def _shares(self, kept: Sequence[KeptPart]) -> dict[int, float]:
        """By chunk, the share of the parameters that was kept, where it is not all of them."""
        grid, alpha = self._grid, self._mixing.alpha if self._mixing is not None else 1.0
        if any(part.share != alpha for part in kept):
            raise Violation(f"{self._me} keeps other shares of its parameters than {alpha}: {kept}")
        spans = {chunk: grid.bounds(chunk) for chunk in range(grid.num_chunks)}
        return {
            chunk: part.share
            for chunk, (begin, stop) in spans.items()
            for part in kept
            if part.begin <= begin and stop <= part.stop
        }

    def _check_delay(self, snapshot: Taken, shares: dict[int, float], moved: Moved) -> None:
        """Mixed is what came within the delay; a commit with others behind it may have waited for longer."""
        if self._mixing is None:
            return
        since = moved.tokens_ready - snapshot.tokens
        if shares and since > self._mixing.delay_tokens + LATE_TOKENS:
            raise Violation(f"{self._me} mixes in a commit {since} tokens after its snapshot, later than it may")
        if not shares and since <= self._mixing.delay_tokens and len(self.links) == 1:
            raise Violation(f"{self._me} does not mix in a commit {since} tokens after its snapshot")
        if shares:
            self._has_mixed()
