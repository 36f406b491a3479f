"""Which of the texts that are packed, or come back from peers, the host takes."""

from __future__ import annotations

from collections.abc import Sequence

from averaging.data.shards import DatasetManifest, RouterEntry, ShardEntry
from averaging.data.sources.texts import Split
from coordinator.run.run_texts_core import (
    BroughtBack,
    KeepOwners,
    KeepTexts,
    OwnersKept,
    OwnersOffered,
    PackedText,
    TextKept,
    TextOffered,
    TextsKnown,
    step,
)
from protocol.host.reassignment import Reassignment
from protocol.ids import Root

_SPLITS: Sequence[tuple[str, Split]] = (("ab", "train"), ("ba", "heldout"))


def _text(number: int, owners: tuple[int, ...] = ()) -> PackedText:
    """Signed as the `number`th."""
    shards = [ShardEntry(sha256=name * 32, num_tokens=9, split=split) for name, split in _SPLITS]
    dataset = DatasetManifest(source=f"text {number}", num_documents=2, licence="none", shards=shards)
    if owners:
        router = RouterEntry.model_construct(sample_owners=owners)
        dataset = dataset.model_copy(update={"router": router})
    entry = Reassignment(number, 4 * number, "cd" * 32, Root(bytes(32)), "ef" * 32, 9, 100 + number)
    return PackedText(f"sealed {number}".encode(), entry, dataset)


FIRST, SECOND, THIRD = _text(1), _text(2), _text(3)


def test_what_was_signed_last_is_kept_and_known_once_the_ledger_has_it() -> None:
    known, order, _ = step(TextsKnown((FIRST,)), TextOffered(SECOND, packed_after=0))
    assert (known, order) == (TextsKnown((FIRST,)), KeepTexts((FIRST, SECOND)))
    after, order, _ = step(known, TextKept(SECOND, (FIRST, SECOND)))
    assert (after, order) == (TextsKnown((FIRST, SECOND), num_added=1), None)
    assert after.newest_entry == SECOND.entry


def test_of_two_that_come_at_once_the_one_signed_later_stands() -> None:
    for known in (TextsKnown((SECOND,)), TextsKnown((THIRD,))):
        assert step(known, TextOffered(SECOND))[1:] == (None, "as new a one was taken meanwhile")
    assert step(TextsKnown((SECOND,), num_added=1), TextOffered(THIRD, packed_after=0))[1] is None
    assert step(TextsKnown((SECOND,), num_added=1), TextOffered(THIRD))[1] == KeepTexts((SECOND, THIRD))


def test_whose_the_documents_are_is_what_the_newest_text_says_or_what_was_remembered_since() -> None:
    known, order, _ = step(TextsKnown(), OwnersOffered((0, 1), packed_after=0))
    assert order == KeepOwners((0, 1))
    known, _, _ = step(known, OwnersKept((0, 1)))
    assert known.owners_D == (0, 1)
    known, _, _ = step(known, TextKept(FIRST, (FIRST,)))
    assert known.owners_D == (0, 1), "it says nothing of that"
    assert step(known, OwnersOffered((1, 1), packed_after=0))[1] is None, "that text may say it anew"
    says = _text(2, (1, 0))
    assert step(known, TextKept(says, (FIRST, says)))[0].owners_D == (1, 0)


def test_what_a_peer_brings_back_is_lost_until_it_or_a_newer_one_is_taken() -> None:
    known, _, _ = step(TextsKnown((FIRST,)), BroughtBack(SECOND.sealed, SECOND.entry))
    assert known.lost == (SECOND.sealed, SECOND.entry)
    assert known.newest_entry == SECOND.entry
    assert not known.lacks(SECOND.entry.signed_unix_s)
    assert step(known, BroughtBack(FIRST.sealed, FIRST.entry))[0] == known, "an older one says nothing new"
    assert step(known, BroughtBack(THIRD.sealed, THIRD.entry))[0].lost == (THIRD.sealed, THIRD.entry)
    for taken in (SECOND, THIRD):
        assert step(known, TextKept(taken, (FIRST, taken)))[0].lost is None


def test_nothing_is_known_of_a_run_that_was_never_re_assigned() -> None:
    assert (TextsKnown().newest, TextsKnown().lost, TextsKnown().newest_entry) == (None, None, None)
    assert TextsKnown().lacks(1)
    assert not TextsKnown().lacks(0)
