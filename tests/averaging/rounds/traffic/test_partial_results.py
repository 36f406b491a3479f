from __future__ import annotations

from averaging.rounds.traffic.partial_results import HalfResults, PartialResult
from averaging.rounds.traffic.result_ref import ResultRef
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.messages.messages import SliceSpec
from protocol.rounds.messages.record import Ballot

REDUCER, OTHER = PeerId("reducer"), PeerId("other")
FIRST, SECOND = Ballot(0, REDUCER), Ballot(1, OTHER)
PART = SliceSpec(0, 4, REDUCER)
WORD = ResultRef(CommitId(bytes(32)), 0, 4, Root(b"r" * 32))
HALF = PartialResult(memoryview(bytearray(40)), 20, (b"one", b"two"))


def _halves() -> HalfResults:
    halves = HalfResults()
    halves.keep(FIRST, REDUCER, WORD, HALF)
    return halves


def test_what_came_is_given_once_to_who_asks_for_the_rest_of_the_same_bytes() -> None:
    halves = _halves()
    assert halves.take(PART, WORD) is HALF
    assert halves.take(PART, WORD) is None


def test_nothing_is_given_for_other_bytes_or_another_reducer() -> None:
    halves = _halves()
    assert halves.take(PART, ResultRef(WORD.base, 0, 4, Root(b"s" * 32))) is None
    assert halves.take(PART, ResultRef(WORD.base, 0, 5, WORD.result_hash)) is None
    assert halves.take(SliceSpec(0, 4, OTHER), WORD) is None, "whose bytes they are is who is blamed for them"


def test_those_of_one_attempt_at_most_are_held() -> None:
    halves = _halves()
    other = ResultRef(WORD.base, 4, 8, Root(b"t" * 32))
    halves.keep(FIRST, OTHER, other, HALF)
    assert halves.take(PART, WORD) is HALF
    halves = _halves()
    halves.keep(SECOND, OTHER, other, HALF)
    assert halves.take(PART, WORD) is None


def test_a_result_of_which_nothing_came_is_not_kept() -> None:
    halves = HalfResults()
    halves.keep(FIRST, REDUCER, WORD, PartialResult(memoryview(bytearray(40))))
    assert halves.take(PART, WORD) is None


def test_the_rest_lies_behind_what_came_in_the_same_memory() -> None:
    memory = memoryview(bytearray(b"0123456789"))
    room = PartialResult(memory, 4, (b"hash",)).room()
    assert bytes(room.taken) == b"0123"
    room.take(6)[:] = b"abcdef"
    assert bytes(memory) == b"0123abcdef"
    assert bytes(PartialResult(memory).room().taken) == b""
