"""Encodes and decodes a lane's messages (lane_messages.py over protocol/proto/lane.proto), by the rules of
protocol/rounds/messages/wire.py.
"""

from __future__ import annotations

import typing
from typing import Final, cast

from protocol.pb import lane_pb2
from protocol.pipeline.messages.lane_messages import LaneMessage, LaneParcel
from protocol.rounds.messages.wire import decode_oneof, encode_oneof, oneof_classes

MAX_LANE_MESSAGE_BYTES: Final = 16_384
"""Enough for a lane of 64 members with names of 64 letters, and a reason."""

_MESSAGES: Final = oneof_classes(typing.get_args(LaneMessage))
_PARCELS: Final = oneof_classes(typing.get_args(LaneParcel))


def encode_lane_message(message: LaneMessage) -> bytes:
    """Encode the request of a call on a lane's channel."""
    return encode_oneof(lane_pb2.LaneMessage(), message)


def decode_lane_message(data: bytes) -> LaneMessage:
    """Decode a call on a lane's channel.

    Raises:
        RemoteProtocolError: not such a message, too long, of an unknown kind, or a value out of its bounds.
    """
    return cast("LaneMessage", decode_oneof(lane_pb2.LaneMessage, _MESSAGES, data, MAX_LANE_MESSAGE_BYTES))


def encode_parcel(parcel: LaneParcel) -> bytes:
    """Encode the frame before large data, or the frame that answers it."""
    return encode_oneof(lane_pb2.LaneParcel(), parcel)


def decode_parcel(data: bytes) -> LaneParcel:
    """Decode such a frame. Raises as `decode_lane_message`."""
    return cast("LaneParcel", decode_oneof(lane_pb2.LaneParcel, _PARCELS, data, MAX_LANE_MESSAGE_BYTES))
