from __future__ import annotations

from dataclasses import replace

import pytest

from averaging.rounds import heartbeat_cache as beats
from averaging.rounds.heartbeat_cache import HeartbeatCache, own_beat
from protocol.ids import CommitId, PeerId
from protocol.rounds.messages.heartbeat_delta import encode_moved, encode_short, report_digest
from protocol.rounds.messages.messages import Heartbeat, Member
from tests.protocol.rounds.messages.test_wire import MESSAGES

BEAT = next(message for message in MESSAGES if isinstance(message, Heartbeat))
ONE, TWO, THREE = (PeerId(name) for name in ("one", "two", "three"))


def _of_session(session: int) -> Heartbeat:
    return replace(BEAT, member=Member(BEAT.member.peer, 1, session))


def _ready(tokens: int) -> Heartbeat:
    return replace(BEAT, heads=(replace(BEAT.heads[0], tokens_ready=tokens),))


def _moved(index: int) -> Heartbeat:
    head = replace(BEAT.heads[0], index=index, head=CommitId(bytes([index]) * 32), total_tokens=index)
    return replace(BEAT, heads=(head,), exchange_ms=index)


def test_who_took_the_whole_one_is_told_in_short_while_only_tokens_change_or_a_commit_came() -> None:
    memory = HeartbeatCache()
    assert memory.split((ONE, TWO), own_beat(BEAT)) == {}
    memory.taken(ONE, own_beat(BEAT))
    memory.taken(THREE, own_beat(_moved(8)))
    assert memory.split((ONE, TWO), own_beat(_ready(99))) == {encode_short(_ready(99), report_digest(BEAT), 2): (ONE,)}
    assert memory.split((ONE, TWO, THREE), own_beat(_moved(9))) == {
        encode_moved(_moved(9), report_digest(BEAT), 3): (ONE,),
        encode_moved(_moved(9), report_digest(_moved(8)), 3): (THREE,),
    }
    assert memory.split((ONE,), own_beat(replace(BEAT, is_inbound_reachable=not BEAT.is_inbound_reachable))) == {}
    memory.not_taken(ONE)
    assert memory.split((ONE,), own_beat(BEAT)) == {}


def test_one_that_tells_of_a_commit_is_what_later_short_ones_go_by() -> None:
    memory = HeartbeatCache()
    memory.heard(ONE, BEAT)
    heard, is_understood = memory.heard_short(ONE, encode_moved(_moved(9), report_digest(BEAT), 1))
    assert heard is not None
    assert is_understood
    assert (heard.heads[0].head, heard.heads[0].index, heard.exchange_ms) == (_moved(9).heads[0].head, 9, 9)
    assert memory.heard_short(ONE, encode_short(BEAT, report_digest(BEAT), 2)) == (None, False)
    assert memory.heard_short(ONE, encode_short(_moved(9), report_digest(_moved(9)), 2))[1]


def test_a_short_one_is_understood_once_by_who_knows_the_whole_one() -> None:
    memory, raw = HeartbeatCache(), encode_short(_ready(99), report_digest(BEAT), 3)
    assert memory.heard_short(ONE, raw) == (None, False)
    memory.heard(ONE, BEAT)
    assert memory.heard_short(TWO, raw) == (None, False), "each peer says its own"
    assert memory.heard_short(ONE, raw) == (_ready(99), True)
    assert memory.heard_short(ONE, raw) == (None, True), "twice"
    assert memory.heard_short(ONE, encode_short(_ready(50), report_digest(BEAT), 2)) == (None, True), "late"


def test_another_process_counts_from_the_start_and_what_comes_late_from_the_one_before_says_nothing() -> None:
    memory = HeartbeatCache()
    memory.heard(ONE, _of_session(1))
    assert memory.heard_short(ONE, encode_short(_of_session(1), report_digest(_of_session(1)), 7))[1]
    memory.heard(ONE, _of_session(2))
    assert memory.heard_short(ONE, encode_short(_of_session(2), report_digest(_of_session(2)), 1)) == (
        _of_session(2),
        True,
    )
    memory.heard(ONE, _of_session(1))
    assert memory.heard_short(ONE, encode_short(_of_session(2), report_digest(_of_session(2)), 2)) == (
        _of_session(2),
        True,
    )


def test_a_whole_one_of_the_same_process_does_not_let_old_short_ones_in_again() -> None:
    memory, raw = HeartbeatCache(), encode_short(BEAT, report_digest(BEAT), 7)
    memory.heard(ONE, BEAT)
    assert memory.heard_short(ONE, raw) == (BEAT, True)
    memory.heard(ONE, BEAT)
    assert memory.heard_short(ONE, raw) == (None, True)


def test_of_too_many_peers_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "MAX_KNOWN", 2)
    memory = HeartbeatCache()
    for peer in (ONE, TWO, ONE, THREE):
        memory.taken(peer, own_beat(BEAT))
        memory.heard(peer, BEAT)
    assert list(memory.split((ONE, TWO, THREE), own_beat(BEAT)).values()) == [(ONE, THREE)]
    raw = encode_short(BEAT, report_digest(BEAT), 1)
    assert [memory.heard_short(peer, raw)[1] for peer in (ONE, TWO, THREE)] == [True, False, True]
