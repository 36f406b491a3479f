"""Chooses how a card trains a model, and why: a ladder from fast and large to slow and small.

Each rung takes less of the card's memory and more time than the one before. The micro-batch is made smaller first, because that
costs least.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final, get_args

from peer.training.plan.card_memory_core import CARD_LOGITS, CPU_LOGITS, CardLoad, away_bytes
from peer.training.plan.card_plan import CardPlan, Checkpointing, Fit, Moments, Offload, Wishes
from peer.training.plan.cards_core import Card, CardKind, native_precision
from peer.training.plan.layout import Mesh
from peer.training.plan.rank_memory_core import ALONE, rank_bytes
from protocol.run.training_sections import InnerSection
from protocol.tables import in_bytes

_SMALL_BYTES: Final = 100_000_000
"""Less memory is told in megabytes."""

CARD_SHARE: Final = 0.93
CARD_RESERVE_BYTES: Final = 500_000_000
"""Share of a card's memory that training may plan with, less what the driver takes: torch's allocator leaves gaps."""

SHARED_SHARE: Final = 0.5
"""The same where the machine's memory is the card's. The daemon and other programs have the rest."""

_LEAST_TRITON: Final = (7, 0)
"""Compute capability of the oldest NVIDIA cards that torch's compiler makes code for."""

_OWN_MEMORY: Final = frozenset[CardKind](["cuda", "rocm"])

_RUNGS: Final[tuple[tuple[Checkpointing, Moments, Offload], ...]] = (
    ("none", "exact", "none"),
    ("selective", "exact", "none"),
    ("full", "exact", "none"),
    ("full", "int8", "none"),
    ("full", "exact", "moments"),
    ("full", "exact", "all"),
)

_AWAY: Final[tuple[Offload, ...]] = get_args(Offload)
"""Each has more than the one before in the machine's memory."""

MACHINE_SHARE: Final = 0.5
"""Share of the machine's memory that values of the card may lie in. The daemon and other programs have the rest."""

_MAKERS: Final = re.compile(r"^(NVIDIA|AMD|GeForce|Radeon|Instinct|Tesla|Quadro)\s+", re.IGNORECASE)

_CHECKPOINTING_SAYS: Final[dict[Checkpointing, str]] = {
    "none": "",
    "selective": "activations partly computed again",
    "full": "activations computed again",
}
_OFFLOAD_SAYS: Final[dict[Offload, str]] = {
    "none": "",
    "moments": "moments in the machine's memory",
    "all": "parameters and moments in the machine's memory",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that this machine and the run set.

    Attributes:
        most_bytes: of the card's own memory, 0 for all of it.
        has_compiler: whether torch can compile here.
        may_be_int8: whether the run allows moments in 8 bits, and this machine can keep them so.
        machine_bytes: of the machine's memory, for each of its cards that train; 0 if that is not known.
    """

    most_bytes: int = 0
    has_compiler: bool = False
    may_be_int8: bool = False
    machine_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan, and why.

    Attributes:
        reason: one sentence for the volunteer.
        micro_batch: the most sequences at a time that are expected to fit; 1 if not even one is.
        expected_bytes: of the card with so many, of its `usable_bytes`.
    """

    plan: CardPlan
    reason: str
    micro_batch: int
    expected_bytes: int
    usable_bytes: int

    @property
    def missing_bytes(self) -> int:
        """Bytes that the card lacks with the smallest plan; 0 where the model fits."""
        return max(0, self.expected_bytes - self.usable_bytes)


def ladder(
    kind: CardKind, first: CardPlan, *, may_be_int8: bool = False, most_away: Offload = "all"
) -> tuple[CardPlan, ...]:
    """The plans of a card from the fastest to the smallest, in the precision of `first` and compiled if that is. Memory that the
    card shares with the machine is not spared by moving values there.

    Args:
        most_away: of `may_lie_away`.
    """
    most = _AWAY.index(most_away) if kind in _OWN_MEMORY else 0
    return tuple(
        CardPlan(
            precision=first.precision,
            is_compiled=first.is_compiled,
            checkpointing=checkpointing,
            moments=moments,
            offload=offload,
        )
        for checkpointing, moments, offload in _RUNGS
        if (moments == "exact" or may_be_int8) and _AWAY.index(offload) <= most
    )


def may_lie_away(load: CardLoad, inner: InnerSection, mesh: Mesh, machine_bytes: int) -> Offload:
    """The most values that may lie in the machine's memory: as many as it has room for. An adapter has few parameters of its own, and
    keeps them on its card.

    Args:
        machine_bytes: as of `Limits`.
    """
    room_bytes = MACHINE_SHARE * machine_bytes * mesh.num_ranks or inf
    fits = [
        each for each in _AWAY if away_bytes(load, inner, each) <= room_bytes and (each != "all" or not load.frozen)
    ]
    return fits[-1]


def choose(
    card: Card,
    load: CardLoad,
    inner: InnerSection,
    wishes: Wishes,
    limits: Limits,
    micro_batch: int = 0,
    mesh: Mesh = ALONE,
) -> Choice:
    """The fastest plan that fits the card; the smallest one where none does.

    Args:
        micro_batch: where it is given, as in a run of stages; 0 to take the largest that fits.
        mesh: of the ranks that share the model, each on such a card.
    """
    precision = native_precision(card) if wishes.precision == "auto" else wishes.precision
    first = CardPlan(precision=precision, is_compiled=limits.has_compiler and is_worth_compiling(card, wishes))
    most_away = may_lie_away(load, inner, mesh, limits.machine_bytes)
    rungs = ladder(card.kind, first, may_be_int8=limits.may_be_int8, most_away=most_away)
    usable_bytes = usable(card, wishes.fit, limits)
    sizes = (
        [micro_batch] if micro_batch else [*_divisors(inner.batch_tokens // load.model.context_tokens // mesh.readers)]
    )
    tried = ((plan, size) for plan in _of_fit(rungs, wishes.fit) for size in sizes)
    fits = ((plan, size) for plan, size in tried if expected_bytes(card, load, inner, size, plan, mesh) <= usable_bytes)
    plan, size = next(fits, (rungs[-1], sizes[-1]))
    expected = expected_bytes(card, load, inner, size, plan, mesh)
    return Choice(plan, explained(card, plan, expected, usable_bytes), size, expected, usable_bytes)


def next_rung(
    plan: CardPlan, micro_batch: int, kind: CardKind, *, may_be_int8: bool = False, most_away: Offload = "all"
) -> tuple[CardPlan, int] | None:
    """How to go on after running out of memory: with half the micro-batch, or from one sequence on by the next plan of the ladder,
    with a micro-batch to be found (0). None after the last.

    Args:
        micro_batch: that the memory did not suffice for; 0 if it was not found yet.
        most_away: of `may_lie_away`.
    """
    if micro_batch > 1:
        return plan, micro_batch // 2
    rungs = ladder(kind, plan, may_be_int8=may_be_int8, most_away=most_away)
    if plan not in rungs:  # the rungs have changed since it was chosen
        return rungs[-1], 0
    after = dict(pairwise(rungs)).get(plan)
    return None if after is None else (after, 0)


def is_less_away(one: CardPlan, other: CardPlan) -> bool:
    """Whether less lies in the machine's memory by one plan than by the other."""
    return _AWAY.index(one.offload) < _AWAY.index(other.offload)


def allows_int8(inner: InnerSection) -> bool:
    """Whether the run lets peers keep the optimizer's moments in 8 bits."""
    return inner.moments == "int8"


def expected_bytes(
    card: Card, load: CardLoad, inner: InnerSection, micro_batch: int, plan: CardPlan, mesh: Mesh = ALONE
) -> int:
    """Bytes of this card that training takes by a plan, as one rank of the mesh."""
    is_card = card.kind != "cpu"
    logits = CARD_LOGITS if is_card else CPU_LOGITS
    return rank_bytes(load, inner, micro_batch, plan, mesh, has_fused_norms=is_card, chunk_logits=logits)


def usable(card: Card, fit: Fit, limits: Limits) -> int:
    """Bytes of the card that a plan may take. The volunteer's limit holds for a card's own memory."""
    if card.kind == "cpu":
        return int(card.memory_bytes * SHARED_SHARE)
    own_bytes = int(card.memory_bytes * CARD_SHARE) - CARD_RESERVE_BYTES
    if card.kind == "mps":
        own_bytes = int(card.memory_bytes * SHARED_SHARE)
    elif fit == "fast":
        own_bytes = card.memory_bytes
    return min(own_bytes, limits.most_bytes) if limits.most_bytes else own_bytes


def explained(card: Card, plan: CardPlan, expected: int, usable_bytes: int) -> str:
    """A plan in one sentence, as "RTX 3060, 12 GB: bf16, compiled, activations partly computed again, 8.9 of 11.2 GB"."""
    how = plan_words(plan)
    if expected > usable_bytes:
        missing = f"{_gb(expected - usable_bytes)} GB are missing of {_gb(expected)} GB"
        return f"{card_words(card)}: the model is not expected to fit; {missing}, with {how}"
    taken = _gb(expected) if expected >= _SMALL_BYTES else in_bytes(expected)
    return f"{card_words(card)}: {how}, {taken} of {_gb(usable_bytes)} GB"


def plan_words(plan: CardPlan) -> str:
    """A plan in words, as "bf16, compiled, activations partly computed again"."""
    words = [
        plan.precision,
        "compiled" if plan.is_compiled else "",
        _CHECKPOINTING_SAYS[plan.checkpointing],
        "moments in 8 bits" if plan.moments == "int8" else "",
        _OFFLOAD_SAYS[plan.offload],
    ]
    return ", ".join(word for word in words if word)


def card_words(card: Card) -> str:
    """The card's name without its maker's, and its memory, as "RTX 3060, 12 GB"."""
    name = card.name
    while found := _MAKERS.match(name):
        name = name[found.end() :]
    shown = "CPU" if card.kind == "cpu" else name
    return f"{shown}, {round(card.memory_bytes / (1 << 30))} GB"


def is_worth_compiling(card: Card, wishes: Wishes) -> bool:
    """Whether layers are compiled for this card if a compiler works."""
    is_supported = card.kind == "rocm" or (card.kind == "cuda" and card.capability >= _LEAST_TRITON)
    return is_supported and wishes.compiles != "off"


def _of_fit(rungs: Sequence[CardPlan], fit: Fit) -> Sequence[CardPlan]:
    """The part of the ladder that this wish allows."""
    if fit == "smallest":
        return rungs[-1:]
    return [plan for plan in rungs if plan.checkpointing == "full"] if fit == "small" else rungs


def _divisors(sequences: int) -> Iterator[int]:
    """Micro-batches of which a step has a whole number, the largest first."""
    return (size for size in range(max(1, sequences), 0, -1) if sequences % size == 0 or size == 1)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}" if num_bytes >= _SMALL_BYTES else f"{num_bytes / 1e9:.2g}"
