"""The bounds of a commit record and of its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.record import (
    Attestation,
    Ballot,
    CommitRecord,
    Contributor,
    Omission,
    OmissionCode,
    OuterStep,
    SliceRecord,
    require_spine,
)

A, B = PeerId(b"a" * 32), PeerId(b"b" * 32)
ROOT = Root(bytes(32))
WHOLE = SliceRecord(0, 4, A, ROOT, ())
RECORD = CommitRecord(
    unit=UnitName("model"),
    parent=CommitId(bytes(32)),
    index=1,
    ballot=Ballot(0, A),
    slices=(WHOLE,),
    contributors=(Contributor(A, 1, ROOT, 10, 10), Contributor(B, 1, ROOT, 10, 10)),
    codec="int8",
    weight_cap_tokens=10,
    total_tokens=20,
    outer=OuterStep("nesterov", 0.7, 0.9),
    next_target_tokens=20,
    roster=(A, B),
    incarnations=(1, 1),
)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"roster": (A, A)}, "a peer twice in the roster"),
        ({"incarnations": (1,)}, "1 incarnations"),
        ({"contributors": RECORD.contributors[:1] * 2}, "a peer twice among the contributors"),
        ({"contributors": ()}, "0 contributors"),
        ({"slices": (replace(WHOLE, first_chunk=1),)}, "slice starts at chunk 1"),
        ({"parent": CommitId(b"short")}, "parent of 5 bytes"),
    ],
)
def test_a_record_that_cannot_be_read_in_one_way_is_refused(change: dict[str, object], found: str) -> None:
    with pytest.raises(RemoteProtocolError, match=found):
        replace(RECORD, **change)  # type: ignore[arg-type]


def test_a_lane_counts_once_in_each_slice_and_may_move_between_slices() -> None:
    lane = (LanePart(0, 1, 3),)
    both = tuple(replace(entry, lanes=lane) for entry in RECORD.contributors)
    with pytest.raises(RemoteProtocolError):
        replace(RECORD, contributors=both)
    twice = Omission(B, "", OmissionCode.LANE_TWICE)
    assert replace(RECORD, contributors=both, slices=(replace(WHOLE, omitted=(twice,)),)).contributor(B) == both[1]


def test_an_omission_has_words_for_its_code_and_keeps_those_of_older_records() -> None:
    assert Omission(A, "", OmissionCode.LATE).words == "late"
    assert Omission(A, "its line broke").words == "its line broke"
    assert all(Omission(A, "", code).words for code in OmissionCode)
    with pytest.raises(RemoteProtocolError, match="omission code"):
        Omission(A, "", max(OmissionCode) + 1)


def test_ballots_are_ordered_by_attempt_and_then_by_peer() -> None:
    assert Ballot(0, B) < Ballot(1, A) < Ballot(1, B)
    with pytest.raises(RemoteProtocolError, match="attempt"):
        Ballot(1 << 32, A)


def test_a_cited_spine_commit_is_a_hash_or_none() -> None:
    require_spine(CommitId(b""))
    with pytest.raises(RemoteProtocolError, match="spine of 4 bytes"):
        require_spine(CommitId(b"four"))


@pytest.mark.parametrize(
    ("attests", "is_agreed"), [((1, 1), True), ((1, 2), False), ((1, 1, 2), True), ((1, 2, 3), False)]
)
def test_a_state_counts_only_where_more_than_half_of_the_contributors_computed_it(
    attests: tuple[int, ...], *, is_agreed: bool
) -> None:
    """Of two that differ, or of three, one alone could have all others make their states again."""
    pairs = tuple(Attestation(RECORD.parent, Root(bytes([number]) * 32)) for number in range(max(attests)))
    entries = tuple(Contributor(PeerId(f"p{n}"), 1, ROOT, 10, 10, attests=place) for n, place in enumerate(attests))
    record = replace(RECORD, rules=1, contributors=entries, attested=pairs[0], attestations=pairs)
    assert record.agreed == (pairs[0] if is_agreed else None)
    older = replace(record, rules=0, attestations=(), contributors=tuple(replace(each, attests=0) for each in entries))
    assert older.agreed == pairs[0], "an older record does not tell who attests what"
