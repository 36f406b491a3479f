from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, Root
from protocol.rounds.messages.heartbeat_delta import (
    decode_short,
    encode_moved,
    encode_short,
    is_like,
    made_whole,
    outline,
    report_digest,
    says_tokens_alone,
)
from protocol.rounds.messages.messages import Heartbeat, Member
from tests.protocol.rounds.messages.test_wire import MESSAGES

BEAT = next(message for message in MESSAGES if isinstance(message, Heartbeat))


def _with_tokens(*tokens: int) -> Heartbeat:
    return replace(BEAT, heads=tuple(replace(BEAT.heads[0], tokens_ready=each) for each in tokens))


def test_a_short_heartbeat_says_what_the_whole_one_would_say_in_a_few_bytes() -> None:
    known, now = _with_tokens(5, 6), _with_tokens(700, 1 << 53)
    raw = encode_short(now, report_digest(now), 9)
    assert len(raw) == 12 + 8 * 2
    short = decode_short(raw)
    assert short.report_digest == report_digest(known)
    assert short.number == 9
    assert made_whole(known, raw) == now
    assert says_tokens_alone(known, raw)


def test_after_a_commit_it_says_all_that_the_commit_changed() -> None:
    known = _with_tokens(5, 6)
    heads = tuple(
        replace(
            head, head=CommitId(b"n" * 32), index=1 << 40, total_tokens=1 << 50, tokens_ready=n, can_contribute=bool(n)
        )
        for n, head in enumerate(known.heads)
    )
    now = replace(known, heads=heads, exchange_ms=(1 << 32) - 1, upload_bytes_per_s=1 << 40)
    raw = encode_moved(now, report_digest(known), 9)
    assert len(raw) == 24 + 57 * 2
    assert outline(now) == outline(known)
    assert decode_short(raw).report_digest == report_digest(known)
    assert made_whole(known, raw) == now
    assert not says_tokens_alone(known, raw)


def test_state_roots_are_told_in_whole_ones_alone() -> None:
    other = replace(BEAT, heads=tuple(replace(h, state_root=Root(b"x" * 32)) for h in BEAT.heads))
    assert report_digest(other) == report_digest(BEAT)


@pytest.mark.parametrize(
    "changed",
    [
        replace(BEAT, member=Member(BEAT.member.peer, BEAT.member.incarnation, BEAT.member.session + 1)),
        replace(BEAT, heads=()),
        replace(BEAT, silent=()),
        replace(BEAT, is_inbound_reachable=not BEAT.is_inbound_reachable),
    ],
)
def test_what_no_commit_changes_is_said_whole(changed: Heartbeat) -> None:
    assert outline(changed) != outline(BEAT)


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
    assert report_digest(changed) != report_digest(BEAT)


@pytest.mark.parametrize("raw", [b"", bytes(11), bytes(24 + 57 * 64 + 1)])
def test_bytes_of_no_possible_length_are_refused(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="12 to 3672"):
        decode_short(raw)


def test_other_units_than_those_of_the_whole_one_and_tokens_that_cannot_be_are_refused() -> None:
    for encode in (encode_short, encode_moved):
        with pytest.raises(RemoteProtocolError, match="those of 1 units"):
            made_whole(BEAT, encode(_with_tokens(1, 2), bytes(8), 1))
        with pytest.raises(RemoteProtocolError):
            made_whole(BEAT, encode(BEAT, bytes(8), 1)[:-1])
    with pytest.raises(RemoteProtocolError):
        made_whole(BEAT, bytes(12) + b"\xff" * 8)
    with pytest.raises(RemoteProtocolError):
        made_whole(BEAT, bytes(24) + b"\xff" * 57)


def test_who_is_like_another_is_found_without_their_likeness() -> None:
    head, one = BEAT.heads[0], replace(BEAT, heads=BEAT.heads[:1])
    assert is_like(one, replace(one, heads=(replace(head, tokens_ready=77, state_root=Root(b"y" * 32)),)))
    others = [
        *(replace(one, heads=heads) for heads in ((), (head, head))),
        replace(one, heads=(replace(head, head=CommitId(b"n" * 32)),)),
        replace(one, heads=(replace(head, index=head.index + 1),)),
        replace(one, heads=(replace(head, total_tokens=head.total_tokens + 1),)),
        replace(one, heads=(replace(head, can_contribute=not head.can_contribute),)),
        replace(one, member=Member(one.member.peer, 1, 99)),
        replace(one, is_inbound_reachable=not one.is_inbound_reachable),
        replace(one, upload_bytes_per_s=one.upload_bytes_per_s + 1),
        replace(one, exchange_ms=one.exchange_ms + 1),
        replace(one, silent=(*one.silent, one.member.peer)),
    ]
    for other in others:
        assert not is_like(one, other)
        assert report_digest(one) != report_digest(other)
