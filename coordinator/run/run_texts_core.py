"""Core: which re-assigned texts the host knows, which of two that come at once is taken, what an old ledger has lost. Pure.

A text is signed, packed and brought to the ledger by others; here is decided whether it may be, and what is known afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from averaging.data.shards import DatasetManifest
from protocol.host.reassignment import Reassignment


@dataclass(frozen=True, slots=True)
class PackedText:
    """A signed entry, what it says, and the data set that it names."""

    sealed: bytes
    entry: Reassignment
    dataset: DatasetManifest


@dataclass(frozen=True, slots=True)
class TextsKnown:
    """What the host knows of the run's texts.

    Attributes:
        taken: the re-assignments that are kept, oldest first.
        owners_D: whose the D documents of the sample are; nothing before that was remembered.
        brought_back: the newest entry that a peer brought back, signed, and what it says.
        num_added: how many texts were added since this process began.
    """

    taken: tuple[PackedText, ...] = ()
    owners_D: tuple[int, ...] = ()
    brought_back: tuple[bytes, Reassignment] | None = None
    num_added: int = 0

    @property
    def newest(self) -> PackedText | None:
        """The re-assignment that was signed last."""
        return self.taken[-1] if self.taken else None

    @property
    def lost(self) -> tuple[bytes, Reassignment] | None:
        """An entry that an old copy of the ledger has not got; None once its text is here, or a newer one."""
        newest, back = self.newest, self.brought_back
        if back is None or (newest is not None and newest.entry.signed_unix_s >= back[1].signed_unix_s):
            return None
        return back

    @property
    def newest_entry(self) -> Reassignment | None:
        """Of what was signed last, whether its text is here or not."""
        if (lost := self.lost) is not None:
            return lost[1]
        return self.newest.entry if self.newest is not None else None

    def lacks(self, signed_unix_s: int) -> bool:
        """Whether an entry that was signed then is newer than those that are known here."""
        newest = self.newest_entry
        return signed_unix_s > (newest.signed_unix_s if newest is not None else 0)


@dataclass(frozen=True, slots=True)
class BroughtBack:
    """A peer has shown an entry that this host signed."""

    sealed: bytes
    entry: Reassignment


@dataclass(frozen=True, slots=True)
class TextOffered:
    """The files of a text are here. `packed_after` was `num_added` before they were brought, None where none of them can be gone."""

    text: PackedText
    packed_after: int | None = None


@dataclass(frozen=True, slots=True)
class OwnersOffered:
    """Whose the documents are where no text is packed for it; `packed_after` as of a text."""

    owners_D: tuple[int, ...]
    packed_after: int


@dataclass(frozen=True, slots=True)
class TextKept:
    """The ledger has a text durably, and these are what it keeps."""

    text: PackedText
    taken: tuple[PackedText, ...]


@dataclass(frozen=True, slots=True)
class OwnersKept:
    """The ledger has them durably."""

    owners_D: tuple[int, ...]


Event = BroughtBack | TextOffered | OwnersOffered | TextKept | OwnersKept


@dataclass(frozen=True, slots=True)
class KeepTexts:
    """Bring these to the ledger, then it is `TextKept`."""

    texts: tuple[PackedText, ...]


@dataclass(frozen=True, slots=True)
class KeepOwners:
    """Bring these to the ledger, then they are `OwnersKept`."""

    owners_D: tuple[int, ...]


def step(known: TextsKnown, event: Event) -> tuple[TextsKnown, KeepTexts | KeepOwners | None, str]:
    """What is known after an event, what to keep, and why, or why not."""
    if isinstance(event, BroughtBack):
        if not known.lacks(event.entry.signed_unix_s):
            return known, None, "as new a one is known"
        return replace(known, brought_back=(event.sealed, event.entry)), None, "a peer has what the ledger has lost"
    if isinstance(event, TextOffered):
        return known, *_offered(known, event)
    if isinstance(event, OwnersOffered):
        if event.packed_after != known.num_added:
            return known, None, "a text that was added since says anew whose the documents are"
        return known, KeepOwners(event.owners_D), "whose the documents are has changed without a text"
    if isinstance(event, TextKept):
        owners_D = tuple(event.text.dataset.sample_owners) or known.owners_D
        after = replace(known, taken=event.taken, owners_D=owners_D, num_added=known.num_added + 1)
        return after, None, "the ledger has it"
    return replace(known, owners_D=event.owners_D), None, "the ledger has them"


def _offered(known: TextsKnown, event: TextOffered) -> tuple[KeepTexts | None, str]:
    newest = known.newest
    if newest is not None and newest.entry.signed_unix_s >= event.text.entry.signed_unix_s:
        return None, "as new a one was taken meanwhile"
    if event.packed_after not in (None, known.num_added):
        return None, "one was added since its files were brought, and what that one does not name is deleted"
    return KeepTexts((*known.taken, event.text)), "it was signed last"
