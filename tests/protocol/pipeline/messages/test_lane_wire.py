"""A lane's messages over the wire: whatever can be made comes back as it was, whatever else comes is refused."""

from __future__ import annotations

import random
import typing
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.pb import lane_pb2
from protocol.pipeline.messages import lane_messages as m
from protocol.pipeline.messages.lane_wire import (
    MAX_LANE_MESSAGE_BYTES,
    decode_lane_message,
    decode_parcel,
    encode_lane_message,
    encode_parcel,
)
from protocol.pipeline.stage_machine import Point
from protocol.received import MAX_TEXT
from protocol.rounds.messages.bounds import MAX_TOKENS
from protocol.tensors.stage_schema import MAX_STAGES
from tests.protocol.pipeline.messages.test_lane_messages import AT, MEMBERS, MESSAGES, PARCELS

NUMBER = st.integers(0, (1 << 32) - 1)
POINT = st.builds(Point, st.integers(0, m.MAX_ROUND), st.integers(0, m.MAX_STEP))
PEER = st.from_regex("[0-9A-Za-z]{1,64}", fullmatch=True).map(PeerId)
PEERS = st.lists(PEER, min_size=1, max_size=MAX_STAGES, unique=True).map(tuple)
SQUARE = st.floats(0.0, allow_infinity=True)
STAGE = st.integers(0, MAX_STAGES - 1)
REASON = st.text("abc ,:éß'", max_size=MAX_TEXT)
PASSED = st.builds(m.LanePassed, NUMBER, NUMBER, POINT, NUMBER, st.booleans(), st.integers(1, m.MAX_PASSED_BYTES))


def _back(lane: int, epoch: int, at: Point, share: float, members: tuple[PeerId, ...]) -> m.LaneBack:
    return m.LaneBack(lane, epoch, at, int(share * at.step), members)


ANY_MESSAGE = st.one_of(
    st.builds(m.LaneBegin, NUMBER, NUMBER, POINT, PEERS),
    st.builds(m.LaneSquare, NUMBER, NUMBER, POINT, SQUARE),
    st.builds(m.LaneStep, NUMBER, NUMBER, POINT, SQUARE),
    st.builds(m.LaneCopied, NUMBER, NUMBER, POINT),
    st.builds(m.LaneKeep, NUMBER, NUMBER, POINT),
    st.builds(_back, NUMBER, NUMBER, POINT, st.floats(0.0, 1.0), PEERS),
    st.builds(m.LaneLoaded, NUMBER, NUMBER),
    st.builds(m.LaneLoadFailed, NUMBER, NUMBER, REASON),
    st.builds(m.LaneResume, NUMBER, NUMBER),
    st.builds(m.LaneEnd, NUMBER, NUMBER, POINT, st.integers(1, MAX_TOKENS), PEERS, REASON),
    st.builds(m.LaneEnd, NUMBER, NUMBER, POINT, st.just(0), st.just(()), REASON),
    st.builds(m.LanePing, NUMBER, NUMBER, NUMBER),
    st.builds(m.LaneLeave, NUMBER, NUMBER, REASON),
    st.builds(m.LaneHere, NUMBER, NUMBER),
    st.builds(m.LaneClaim, NUMBER, POINT, STAGE, st.integers(1, MAX_TOKENS), PEER),
    st.builds(m.LaneSpare, STAGE, st.integers(0, m.MAX_ROUND)),
)
ANY_PARCEL = st.one_of(
    PASSED,
    st.builds(m.LaneCopy, NUMBER, NUMBER, POINT, STAGE, st.integers(1, m.MAX_COPY_BYTES)),
    st.builds(m.LaneFetch, NUMBER, NUMBER, POINT, STAGE),
    st.builds(m.LaneAnswer, REASON, NUMBER),
    st.builds(m.LaneGift, NUMBER, POINT, STAGE, st.integers(1, MAX_TOKENS), st.integers(1, m.MAX_COPY_BYTES)),
)


def test_every_kind_of_message_and_parcel_is_among_those_tested_here() -> None:
    assert {type(message) for message in MESSAGES} == set(typing.get_args(m.LaneMessage))
    assert {type(parcel) for parcel in PARCELS} == set(typing.get_args(m.LaneParcel))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(ANY_MESSAGE)
def test_every_message_that_can_be_made_survives_the_wire(message: m.LaneMessage) -> None:
    raw = encode_lane_message(message)
    assert len(raw) <= MAX_LANE_MESSAGE_BYTES
    assert decode_lane_message(raw) == message


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(ANY_PARCEL)
def test_every_parcel_that_can_be_made_survives_the_wire(parcel: m.LaneParcel) -> None:
    assert decode_parcel(encode_parcel(parcel)) == parcel


def test_random_and_damaged_bytes_never_raise_anything_but_a_protocol_error() -> None:
    chooser = random.Random(5)
    wires = [(decode_lane_message, encode_lane_message(message)) for message in MESSAGES]
    wires += [(decode_parcel, encode_parcel(parcel)) for parcel in PARCELS if parcel != m.LaneAnswer("")]  # type: ignore[list-item]
    for _ in range(3000):
        decode, raw = chooser.choice(wires)
        data = bytearray(raw)
        for _ in range(chooser.randint(1, 4)):
            data[chooser.randrange(len(data))] = chooser.randrange(256)
        cut = bytes(data[: chooser.randint(0, len(data))]) if chooser.random() < 0.5 else bytes(data)
        try:
            decode(cut)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("decode", [decode_lane_message, decode_parcel])
def test_an_oversized_or_unknown_message_is_refused(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode(bytes(MAX_LANE_MESSAGE_BYTES + 1))
    with pytest.raises(RemoteProtocolError, match="unknown kind"):
        decode(b"")


def test_what_no_peer_of_ours_says_is_refused_before_anything_is_done_with_it() -> None:
    point = lane_pb2.LanePoint(round=AT.round, step=AT.step)
    wrong = (
        lane_pb2.LaneMessage(lane_square=lane_pb2.LaneSquare(at=point, square=-1.0)),
        lane_pb2.LaneMessage(lane_square=lane_pb2.LaneSquare(square=1.0)),
        lane_pb2.LaneMessage(lane_begin=lane_pb2.LaneBegin(at=point, members=[*MEMBERS, MEMBERS[0]])),
        lane_pb2.LaneMessage(lane_begin=lane_pb2.LaneBegin(at=point, members=["../up"])),
        lane_pb2.LaneMessage(lane_back=lane_pb2.LaneBack(at=point, counted=AT.step + 1, members=MEMBERS)),
        lane_pb2.LaneMessage(lane_end=lane_pb2.LaneEnd(at=point, tokens=1)),
        lane_pb2.LaneMessage(lane_leave=lane_pb2.LaneLeave(reason="a\x1b[31mred")),
        lane_pb2.LaneMessage(lane_leave=lane_pb2.LaneLeave(reason="x" * (MAX_TEXT + 1))),
    )
    for message in wrong:
        with pytest.raises(RemoteProtocolError):
            decode_lane_message(message.SerializeToString())
    parcels = (
        lane_pb2.LaneParcel(lane_passed=lane_pb2.LanePassed(at=point, num_bytes=m.MAX_PASSED_BYTES + 1)),
        lane_pb2.LaneParcel(lane_passed=lane_pb2.LanePassed(at=point)),
        lane_pb2.LaneParcel(lane_copy=lane_pb2.LaneCopy(at=point, num_bytes=1 << 50)),
        lane_pb2.LaneParcel(lane_fetch=lane_pb2.LaneFetch(at=point, stage=MAX_STAGES)),
    )
    for parcel in parcels:
        with pytest.raises(RemoteProtocolError):
            decode_parcel(parcel.SerializeToString())
