"""The tokens of one unit at one peer, over all process lives: each is counted, ready, or lost for a reason with a name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from protocol.ids import CommitId, PeerId, Root
from tests.simulation import accounting
from tests.simulation.accounting import Tokens
from tests.simulation.invariants import Observed, Violation
from tests.simulation.trainer import UNNAMED, SimulatedTrainer

COUNTED = "counted"
READY = "ready"
MINTED = "minted"
UNREPORTED = "killed before it was offered"
UNCOUNTED = "killed before what was offered was counted"
LEFT = "its peer left"
AWAY = "its lineage was left while its peer was away"

NUM_KEPT_OFFERS = 4
"""A peer's last offer, which it must be able to take out of its parameters when it changes lineages (averaging/README.md, 24)."""


@dataclass
class _Life:
    """One process life, and what it is answerable for: what it trained, and what it found counted on any lineage that it stood on.

    Attributes:
        left: where it stood when it changed lineages.
        reported: its contributions, in order: base and root.
        ended: what was lost with it, by reason; None while it lives.
        minted, handed_on: at its end, what it had trained, and what its lineage counted.
    """

    trainer: SimulatedTrainer
    left: list[CommitId] = field(default_factory=list)
    reported: list[tuple[CommitId, Root]] = field(default_factory=list)
    ended: dict[str, Tokens] | None = None
    minted: Tokens = field(default_factory=list)
    handed_on: Tokens = field(default_factory=list)
    dropped: dict[str, Tokens] = field(default_factory=dict)


class Lives:
    """The lives of one peer as far as one unit goes."""

    def __init__(self, peer: PeerId, observed: Observed, elsewhere: Lives | None = None) -> None:
        """`elsewhere`: those of the peer on another machine, which may go on for a while."""
        self._peer = peer
        self._observed = observed
        self._elsewhere = elsewhere
        self._lives: list[_Life] = []

    @property
    def _all(self) -> list[_Life]:
        return [*(self._elsewhere._all if self._elsewhere is not None else ()), *self._lives]

    @property
    def _current(self) -> _Life | None:
        return self._lives[-1] if self._lives and self._lives[-1].ended is None else None

    def begin(self, trainer: SimulatedTrainer) -> None:
        """A process has restored the unit, and trains."""
        if self._current is not None:
            raise Violation(f"two lives of {self._peer} at once")
        self._lives.append(_Life(trainer))

    def tell(self, base: CommitId, root: Root, tokens: Tokens) -> None:
        """The living process has offered these tokens on this base."""
        self._observed.claim(self._peer, base, root, tokens)
        if self._current is not None:
            self._current.reported.append((base, root))

    def leave_lineage(self, head: CommitId) -> None:
        """The living process is about to change lineages."""
        if self._current is not None:
            self._current.left.append(head)

    def has_offers(self, contributions: list[tuple[CommitId, Root]]) -> bool:
        """Whether the living process must still have the bytes of all of these."""
        kept = self._current.reported[-NUM_KEPT_OFFERS:] if self._current is not None else []
        return all(reported in kept for reported in contributions)

    def end(self, head: CommitId, *, is_killed: bool) -> None:
        """The process, which stood there, is about to be gone, and with it whatever was ready."""
        life = self._current
        if life is None:
            return
        self._check_life(life, head)
        trainer = life.trainer
        gone = accounting.union([*trainer.ready, *trainer.returning])
        reported = accounting.union(
            part for base, root in life.reported for part in self._observed.claims[self._peer, base, root]
        )
        offered = accounting.overlap(gone, reported)
        life.ended = {UNCOUNTED: offered, UNREPORTED: accounting.without(gone, offered)} if is_killed else {LEFT: gone}
        life.minted, life.dropped = trainer.minted, dict(trainer.dropped)
        life.handed_on = accounting.union(self._observed.counted(self._peer, head))

    def _check_life(self, life: _Life, head: CommitId) -> None:
        """Nothing that it is answerable for may have vanished in the middle of a life."""
        trainer = life.trainer
        if accounting.count(trainer.dropped.get(UNNAMED, [])):
            raise Violation(f"tokens of {self._peer} were dropped for no reason: {trainer.dropped[UNNAMED]}")
        known = [part for left in life.left for part in self._observed.counted(self._peer, left)]
        counted = self._observed.counted(self._peer, head)
        dropped = [part for tokens in trainer.dropped.values() for part in tokens]
        owed = accounting.union([*trainer.minted, *known])
        lost = accounting.without(owed, accounting.union([*counted, *trainer.ready, *trainer.returning, *dropped]))
        unknown = accounting.without(accounting.union(trainer.ready), owed)
        if lost or unknown:
            raise Violation(f"tokens of {self._peer} in one life: lost {lost}, ready and never trained {unknown}")

    def account(self, head: CommitId) -> Counter[str]:
        """The places of all tokens of all lives, once all stand there and every trainer knows it; lost ones by reason.

        Raises Violation where one is lost without a reason, is both counted and ready, or is counted and was never trained.
        """
        life = self._current
        if life is not None:
            self._check_life(life, head)
        if any(one.ended is None for one in self._all if one is not life):
            raise Violation(f"an older process of {self._peer} goes on")
        ready = accounting.union(life.trainer.ready) if life is not None else []
        counted = accounting.union(self._observed.counted(self._peer, head))
        twice = accounting.overlap(counted, ready)
        if twice:
            raise Violation(f"tokens of {self._peer} are counted and yet ready: {twice}")
        minted = accounting.union(part for one in self._all for part in self._minted(one))
        missing, unknown = accounting.differing(minted, [*counted, *ready])
        sums = Counter({MINTED: accounting.count(minted), COUNTED: accounting.count(counted)})
        sums[READY] = accounting.count(ready)
        for reason, tokens in self._reasons():
            named = accounting.overlap(missing, tokens)
            sums[reason] += accounting.count(named)
            missing = accounting.without(missing, named)
        if missing or unknown:
            raise Violation(f"tokens of {self._peer}: lost {missing}, never trained {unknown}")
        return +sums

    def _minted(self, life: _Life) -> Tokens:
        return life.trainer.minted if life.ended is None else life.minted

    def _reasons(self) -> list[tuple[str, Tokens]]:
        found: list[tuple[str, Tokens]] = []
        for life in self._all:
            dropped = life.trainer.dropped if life.ended is None else life.dropped
            found += [*dropped.items(), *(life.ended or {}).items()]
        return found + [(AWAY, life.handed_on) for life in self._all]
