from __future__ import annotations

from averaging.rounds.audit.false_accusations import MOST_FAILED, MOST_FALSE, FalseAccusations
from protocol.ids import PeerId

ONE, OTHER = PeerId("one"), PeerId("other")


def _hash(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_proof_that_convicted_nobody_is_not_worth_a_fetch_whoever_speaks_of_it() -> None:
    accusations = FalseAccusations()
    assert accusations.may_be_true(ONE, _hash(1))
    accusations.note(ONE, _hash(1))
    assert not accusations.may_be_true(OTHER, _hash(1))
    assert accusations.may_be_true(ONE, _hash(2))


def test_a_peer_that_accuses_falsely_a_few_times_is_not_listened_to_and_others_are() -> None:
    accusations = FalseAccusations()
    for number in range(MOST_FALSE):
        assert accusations.may_be_true(ONE, _hash(99))
        accusations.note(ONE, _hash(number))
    assert not accusations.may_be_true(ONE, _hash(99))
    assert accusations.may_be_true(OTHER, _hash(99))


def test_so_many_proofs_are_remembered_and_no_more() -> None:
    accusations = FalseAccusations()
    for number in range(MOST_FAILED):
        accusations.note(PeerId(f"peer {number}"), _hash(number))
    assert not accusations.may_be_true(ONE, _hash(0))
    accusations.note(OTHER, _hash(MOST_FAILED))
    assert accusations.may_be_true(ONE, _hash(0))
    assert not accusations.may_be_true(ONE, _hash(MOST_FAILED))
