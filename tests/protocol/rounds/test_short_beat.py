from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.rounds.messages import Heartbeat, Member
from protocol.rounds.short_beat import decode_short, encode_short, likeness, made_whole
from tests.protocol.test_wire import MESSAGES

BEAT = next(message for message in MESSAGES if isinstance(message, Heartbeat))


def _with_tokens(*tokens: int) -> Heartbeat:
    return replace(BEAT, heads=tuple(replace(BEAT.heads[0], tokens_ready=each) for each in tokens))


def test_a_short_heartbeat_says_what_the_whole_one_would_say_in_a_few_bytes() -> None:
    known, now = _with_tokens(5, 6), _with_tokens(700, 1 << 53)
    raw = encode_short(now, likeness(now), 9)
    assert len(raw) == 12 + 8 * 2
    short = decode_short(raw)
    assert short.likeness == likeness(known)
    assert short.number == 9
    assert made_whole(known, short) == now


@pytest.mark.parametrize(
    "changed",
    [
        replace(BEAT, member=Member(BEAT.member.peer, BEAT.member.incarnation, BEAT.member.session + 1)),
        replace(BEAT, heads=(replace(BEAT.heads[0], can_contribute=not BEAT.heads[0].can_contribute),)),
        replace(BEAT, heads=(replace(BEAT.heads[0], index=BEAT.heads[0].index + 1),)),
        replace(BEAT, heads=()),
        replace(BEAT, silent=()),
        replace(BEAT, exchange_ms=BEAT.exchange_ms + 1),
    ],
)
def test_what_differs_in_anything_but_the_tokens_is_not_alike(changed: Heartbeat) -> None:
    assert likeness(changed) != likeness(BEAT)


@pytest.mark.parametrize("raw", [b"", bytes(11), bytes(13), bytes(12 + 8 * 65)])
def test_bytes_of_another_length_are_refused(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="12, and 8 for each unit"):
        decode_short(raw)


def test_other_units_than_those_of_the_whole_one_and_tokens_that_cannot_be_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="2 units"):
        made_whole(BEAT, decode_short(encode_short(_with_tokens(1, 2), bytes(8), 1)))
    with pytest.raises(RemoteProtocolError):
        made_whole(BEAT, decode_short(bytes(12) + b"\xff" * 8))
