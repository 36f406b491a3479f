"""Core: when documents are sent to experts anew, by which losses, and how many of them at a time.

At every so manieth commit of the trunk a holder of each expert measures it on the sample of the data set. As soon as all experts are
there of one commit, documents may go to where their loss is lowest (averaging/data/packing/reassignment_core.py).

Shapes: D windows of the sample, X experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from averaging.data.packing.reassignment_core import reassigned
from protocol.host.reassignment import is_measured
from protocol.host.reports import SampleLosses
from protocol.ids import CommitId

LEAST_SHARE: Final = 4
"""Of the sample no expert falls below its even share divided by this: experts with little text stop learning (OpenDiPaCo)."""

MOVED_SHARE: Final = 8
"""Of the sample at most one in so many goes elsewhere at a time: an expert whose documents all change has learned for nothing."""

KEPT_COMMITS: Final = 4
"""With losses that are not complete; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The losses at one commit of the trunk: of each expert that was measured, in nats a token, D of them."""

    index: int
    losses: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class SampleBook:
    """What was measured at the newest commits. `num_windows` is D."""

    num_experts: int
    num_windows: int
    every_rounds: int
    measured: Mapping[CommitId, Measured] = field(default_factory=lambda: MappingProxyType({}))

    def with_losses(self, sample: SampleLosses, index: int) -> SampleBook:
        """The book with one expert's losses at the commit of this round, too. The first that was told of an expert at a commit stands;
        what no sample of this run is, is left out: the book is the same then.
        """
        known = self.measured.get(sample.commit, Measured(index, MappingProxyType({})))
        is_fit = sample.expert < self.num_experts and len(sample.nats) == self.num_windows
        if not is_fit or not is_measured(index, self.every_rounds) or sample.expert in known.losses:
            return self
        measured = {
            **self.measured,
            sample.commit: Measured(index, MappingProxyType({**known.losses, sample.expert: sample.nats})),
        }
        newest = sorted(measured.items(), key=lambda item: (item[1].index, item[0]))[-KEPT_COMMITS:]
        return replace(self, measured=MappingProxyType(dict(newest)))

    def until(self, head_index: int) -> SampleBook:
        """The book without what was measured at later rounds than the trunk's: of a lineage that is not followed any more."""
        kept = {commit: each for commit, each in self.measured.items() if each.index <= head_index}
        return self if len(kept) == len(self.measured) else replace(self, measured=MappingProxyType(kept))

    def unmeasured(self, after_index: int, head_index: int) -> tuple[int, tuple[int, ...]] | None:
        """The newest round after this one at which some experts were measured and others not, and those, once the trunk has come
        to the next round at which they all are: nobody will tell of this one any more. None where there is none.
        """
        rounds = [
            each
            for each in self.measured.values()
            if after_index < each.index <= head_index - self.every_rounds and len(each.losses) < self.num_experts
        ]
        if not rounds:
            return None
        newest = max(rounds, key=lambda each: each.index)
        return newest.index, tuple(expert for expert in range(self.num_experts) if expert not in newest.losses)

    def complete(self, after_index: int) -> tuple[int, tuple[tuple[float, ...], ...]] | None:
        """The newest round after this one at which all experts were measured, and (D, X) losses; None where there is none."""
        rounds = [
            each for each in self.measured.values() if each.index > after_index and len(each.losses) == self.num_experts
        ]
        if not rounds:
            return None
        newest = max(rounds, key=lambda each: each.index)
        by_expert = [newest.losses[expert] for expert in range(self.num_experts)]
        return newest.index, tuple(zip(*by_expert, strict=True))


@dataclass(frozen=True, slots=True)
class Watch:
    """How far the host has looked.

    Attributes:
        done_index: the round whose losses were taken last, whatever came of them.
        said_index: the round of which it was said last that experts were not measured.
    """

    done_index: int = 0
    said_index: int = 0


@dataclass(frozen=True, slots=True)
class Looked:
    """The host has looked at what was measured.

    Attributes:
        book: what was.
        head_index: the trunk's newest round.
        from_round: of what was signed last, the round from which it is read; 0 where nothing was.
    """

    book: SampleBook
    head_index: int
    from_round: int = 0


@dataclass(frozen=True, slots=True)
class Forget:
    """Only this of the book is of the lineage that is followed."""

    book: SampleBook


@dataclass(frozen=True, slots=True)
class PackAnew:
    """Send documents to experts by these losses, (D, X), of this round."""

    index: int
    losses_DX: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class SayUnmeasured:
    """Nobody measured these experts at this round, at which others were."""

    index: int
    experts: tuple[int, ...]


def step(watch: Watch, event: Looked) -> tuple[Watch, tuple[Forget | PackAnew | SayUnmeasured, ...], str]:
    """How far it has looked then, what to do, and why.

    Where the trunk goes back, losses of later rounds are forgotten, and those of its rounds count once more.
    """
    head_index, book = event.head_index, event.book.until(event.head_index)
    forgets = () if book is event.book else (Forget(book),)
    watch = Watch(min(watch.done_index, head_index), min(watch.said_index, head_index))
    if head_index < event.from_round:
        return (
            watch,
            forgets,
            f"what was signed last is read from round {event.from_round} on: losses tell nothing of it",
        )
    found = book.complete(max(watch.done_index, event.from_round))
    if found is not None:
        pack = PackAnew(*found)
        return (
            replace(watch, done_index=pack.index),
            (*forgets, pack),
            f"all experts were measured at round {pack.index}",
        )
    missed = book.unmeasured(max(watch.done_index, watch.said_index), head_index)
    if missed is None:
        return watch, forgets, "no round at which all experts were measured"
    say = SayUnmeasured(*missed)
    reason = f"nobody measured expert {', '.join(map(str, say.experts))} at round {say.index}"
    return replace(watch, said_index=say.index), (*forgets, say), reason


def owners_after(losses_DX: tuple[tuple[float, ...], ...], owners_D: tuple[int, ...]) -> tuple[int, ...]:
    """Whose each document of the sample is from now on. Raises ConfigError where the numbers do not fit together."""
    num_documents, num_experts = len(owners_D), len(losses_DX[0])
    return reassigned(
        losses_DX,
        owners_D,
        least_documents=num_documents // (LEAST_SHARE * num_experts),
        most_moved=max(1, num_documents // MOVED_SHARE),
    )
