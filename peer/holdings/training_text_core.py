"""Core: which text a peer reads at a round of the trunk, and what it keeps of others.

A text is the data set that the run was opened with or one that the host has signed since (protocol/host/reassignment.py). Of those
that are here, the one that was signed last of those that have begun by a round is read at it. The one before it stays for some
rounds more: where the trunk goes over to a lineage that is not that far, what its round read is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from averaging.data.shards import DatasetManifest
from protocol.host.reassignment import Reassignment, in_force

KEPT_ROUNDS: Final = 16
"""So many rounds of the trunk after the first of a text the one before is deleted: no lineage is left by more, but for long cuts."""


@dataclass(frozen=True, slots=True)
class HeldText:
    """A data set, and what named it: an entry, opened and as it was signed; nothing where the run was opened with it."""

    dataset: DatasetManifest
    entry: Reassignment | None = None
    sealed: bytes = b""

    @property
    def from_round(self) -> int:
        """Of the trunk, from whose commit on it is read."""
        return self.entry.from_round if self.entry is not None else 0

    @property
    def signed_unix_s(self) -> int:
        """0 of the one that the run was opened with: no two are the same."""
        return self.entry.signed_unix_s if self.entry is not None else 0

    @property
    def names(self) -> frozenset[str]:
        """Of its files."""
        return self.names_for(None)

    def names_for(self, experts: tuple[int, ...] | None) -> frozenset[str]:
        """Of those that the holder of these experts reads; of all for None."""
        files = self.dataset.files if experts is None else self.dataset.files_of(experts)
        beside = [self.entry.manifest_sha256] if self.entry is not None else []
        return frozenset([*beside, *(file.sha256 for file in files)])


@dataclass(frozen=True, slots=True)
class TextState:
    """What a peer knows of its texts.

    Attributes:
        now: what is read.
        here: whose files are here, in the order in which they were signed; before training nothing is known of that.
        coming: whose files are being fetched.
        experts: that are held here, whose files are needed; None before that is known, and where a peer holds no experts.
    """

    now: HeldText
    here: tuple[HeldText, ...] = ()
    coming: HeldText | None = None
    experts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Holds:
    """Of the texts these experts' parts are needed here, and what all read."""

    experts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """What was signed is known by its manifest, and its files are fetched next."""

    text: HeldText


@dataclass(frozen=True, slots=True)
class Refused:
    """What was coming does not match what was signed; `brought` are names of files that came before that was known, its manifest."""

    brought: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Arrived:
    """All files of a text are here."""

    text: HeldText


@dataclass(frozen=True, slots=True)
class Begun:
    """Training is about to begin."""


@dataclass(frozen=True, slots=True)
class TrunkMoved:
    """The trunk's newest commit is of this round."""

    index: int


@dataclass(frozen=True, slots=True)
class WasTakenUp:
    """The training process reads this text since it was told to at this round."""

    text: HeldText
    index: int


Event = Holds | Named | Refused | Arrived | Begun | TrunkMoved | WasTakenUp


@dataclass(frozen=True, slots=True)
class Orders:
    """What to do now.

    Attributes:
        take_up: the training process is to read this; then it `WasTakenUp`.
        delete: names of files that nothing needs any more.
    """

    take_up: HeldText | None = None
    delete: frozenset[str] = frozenset()


NOTHING: Final = Orders()


def step(state: TextState, event: Event) -> tuple[TextState, Orders, str]:
    """What is known after an event, what to do, and why; no reason where nothing changes."""
    if isinstance(event, Holds):
        return replace(state, experts=event.experts), NOTHING, ""
    if isinstance(event, Named):
        return _named(state, event.text)
    if isinstance(event, Refused):
        after = replace(state, coming=None)
        unwanted = _only_in(state.coming, after) | (event.brought - _needed(after))
        return after, Orders(delete=unwanted), "it is not what was signed"
    if isinstance(event, Arrived):
        others = [text for text in state.here if text.signed_unix_s != event.text.signed_unix_s]
        here = tuple(sorted([*others, event.text], key=lambda text: text.signed_unix_s))
        is_awaited = state.coming is not None and state.coming.signed_unix_s == event.text.signed_unix_s
        coming = None if is_awaited else state.coming
        return replace(state, here=here, coming=coming), NOTHING, "all of its files are here"
    if isinstance(event, Begun):
        newest = max([state.now, *state.here], key=lambda text: text.signed_unix_s)
        is_other = newest.signed_unix_s != state.now.signed_unix_s
        return replace(state, now=newest), NOTHING, "training begins with what was signed last" if is_other else ""
    if isinstance(event, TrunkMoved):
        return _moved(state, event.index)
    return _pruned(replace(state, now=event.text), event.index)


def _named(state: TextState, text: HeldText) -> tuple[TextState, Orders, str]:
    after = replace(state, coming=text)
    return after, Orders(delete=_only_in(state.coming, after)), "its manifest is here"


def _moved(state: TextState, index: int) -> tuple[TextState, Orders, str]:
    if not state.here:
        return state, NOTHING, ""
    _, text = in_force([(text.from_round, text) for text in state.here], index, state.here[0])
    if text.signed_unix_s == state.now.signed_unix_s:
        return _pruned(state, index)
    why = "has come" if text.signed_unix_s > state.now.signed_unix_s else "is still to come"
    newer = max(text.from_round, state.now.from_round)
    return state, Orders(take_up=text), f"round {newer}, from which on documents lie anew, {why}"


def _pruned(state: TextState, index: int) -> tuple[TextState, Orders, str]:
    """Without what is never read again: of those before what is read, all but the last one, and that after some rounds; of later
    ones those that begin no earlier than one that was signed after them.
    """
    now, here = state.now, state.here
    earlier = [t for t in here if t.signed_unix_s < now.signed_unix_s and t.from_round < now.from_round]
    later = [t for t in here if t.signed_unix_s > now.signed_unix_s]
    before = earlier[-1:] if index < now.from_round + KEPT_ROUNDS else []
    waiting = [t for place, t in enumerate(later) if all(t.from_round < u.from_round for u in later[place + 1 :])]
    own = [t for t in here if t.signed_unix_s == now.signed_unix_s]
    after = replace(state, here=(*before, *own, *waiting))
    left = {t.signed_unix_s for t in after.here}
    gone = [t for t in here if t.signed_unix_s not in left]
    if not gone:
        return state, NOTHING, ""
    return after, Orders(delete=_names(gone) - _needed(after)), "what is not read again is deleted"


def _only_in(text: HeldText | None, state: TextState) -> frozenset[str]:
    return text.names - _needed(state) if text is not None else frozenset()


def _needed(state: TextState) -> frozenset[str]:
    """Names of the files of all texts that are read, here or coming, as far as this peer's experts read them."""
    coming = [state.coming] if state.coming is not None else []
    return frozenset(name for text in (state.now, *state.here, *coming) for name in text.names_for(state.experts))


def _names(texts: Iterable[HeldText]) -> frozenset[str]:
    return frozenset(name for text in texts for name in text.names)


def kept_entries(texts: Sequence[HeldText]) -> tuple[bytes, ...]:
    """The signed entries of these, in the order in which they were signed: what a restart needs to find them again."""
    in_order = sorted(texts, key=lambda text: text.signed_unix_s)
    return tuple(text.sealed for text in in_order if text.entry is not None)
