from __future__ import annotations

from dataclasses import replace

import pytest

from averaging.rounds import beats
from averaging.rounds.beats import BeatMemory
from protocol.ids import PeerId
from protocol.rounds.messages import Heartbeat, Member
from protocol.rounds.short_beat import encode_short, likeness
from tests.protocol.test_wire import MESSAGES

BEAT = next(message for message in MESSAGES if isinstance(message, Heartbeat))
ONE, TWO, THREE = (PeerId(name) for name in ("one", "two", "three"))


def _of_session(session: int) -> Heartbeat:
    return replace(BEAT, member=Member(BEAT.member.peer, 1, session))


def _ready(tokens: int) -> Heartbeat:
    return replace(BEAT, heads=(replace(BEAT.heads[0], tokens_ready=tokens),))


def test_who_took_the_whole_one_is_told_in_short_while_nothing_else_changes() -> None:
    memory = BeatMemory()
    assert memory.split((ONE, TWO), BEAT)[0] == ()
    memory.taken(ONE, BEAT)
    in_short, raw = memory.split((ONE, TWO), _ready(99))
    assert in_short == (ONE,)
    assert raw == encode_short(_ready(99), likeness(BEAT), 1)
    assert memory.split((ONE,), replace(BEAT, exchange_ms=BEAT.exchange_ms + 1))[0] == ()
    memory.not_taken(ONE)
    assert memory.split((ONE,), BEAT)[0] == ()


def test_a_short_one_is_understood_once_by_who_knows_the_whole_one() -> None:
    memory, raw = BeatMemory(), encode_short(_ready(99), likeness(BEAT), 3)
    assert memory.heard_short(ONE, raw) == (None, False)
    memory.heard(ONE, BEAT)
    assert memory.heard_short(TWO, raw) == (None, False), "each peer says its own"
    assert memory.heard_short(ONE, raw) == (_ready(99), True)
    assert memory.heard_short(ONE, raw) == (None, True), "twice"
    assert memory.heard_short(ONE, encode_short(_ready(50), likeness(BEAT), 2)) == (None, True), "late"


def test_another_process_counts_from_the_start_and_what_comes_late_from_the_one_before_says_nothing() -> None:
    memory = BeatMemory()
    memory.heard(ONE, _of_session(1))
    assert memory.heard_short(ONE, encode_short(_of_session(1), likeness(_of_session(1)), 7))[1]
    memory.heard(ONE, _of_session(2))
    assert memory.heard_short(ONE, encode_short(_of_session(2), likeness(_of_session(2)), 1)) == (_of_session(2), True)
    memory.heard(ONE, _of_session(1))
    assert memory.heard_short(ONE, encode_short(_of_session(2), likeness(_of_session(2)), 2)) == (_of_session(2), True)


def test_a_whole_one_of_the_same_process_does_not_let_old_short_ones_in_again() -> None:
    memory, raw = BeatMemory(), encode_short(BEAT, likeness(BEAT), 7)
    memory.heard(ONE, BEAT)
    assert memory.heard_short(ONE, raw) == (BEAT, True)
    memory.heard(ONE, BEAT)
    assert memory.heard_short(ONE, raw) == (None, True)


def test_of_too_many_peers_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "MAX_KNOWN", 2)
    memory = BeatMemory()
    for peer in (ONE, TWO, ONE, THREE):
        memory.taken(peer, BEAT)
        memory.heard(peer, BEAT)
    assert memory.split((ONE, TWO, THREE), BEAT)[0] == (ONE, THREE)
    raw = encode_short(BEAT, likeness(BEAT), 1)
    assert [memory.heard_short(peer, raw)[1] for peer in (ONE, TWO, THREE)] == [True, False, True]
