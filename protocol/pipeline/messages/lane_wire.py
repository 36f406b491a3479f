"""A lane's messages to bytes and back (lane_messages.py over protocol/proto/lane.proto), by the rules of
protocol/rounds/messages/wire.py.
"""

from __future__ import annotations

import typing
from typing import Final, cast

from protocol.pb import lane_pb2
from protocol.pipeline.messages.lane_messages import LaneMessage, LaneParcel
from protocol.rounds.messages.wire import decode_oneof, encode_oneof, oneof_classes

MAX_LANE_MESSAGE_BYTES: Final = 16_384
"""A lane of 64 members with names of 64 letters, and a reason, fits in."""

_MESSAGES: Final = oneof_classes(typing.get_args(LaneMessage))
_PARCELS: Final = oneof_classes(typing.get_args(LaneParcel))


def encode_lane_message(message: LaneMessage) -> bytes:
    """The request of a call on a lane's channel."""
    return encode_oneof(lane_pb2.LaneMessage(), message)


def decode_lane_message(data: bytes) -> LaneMessage:
    """What a call on a lane's channel says.

    Raises:
        RemoteProtocolError: not such a message, too long, of an unknown kind, or a value out of its bounds.
    """
    return cast("LaneMessage", decode_oneof(lane_pb2.LaneMessage, _MESSAGES, data, MAX_LANE_MESSAGE_BYTES))


def encode_parcel(parcel: LaneParcel) -> bytes:
    """The frame before what is large, and the frame that answers it."""
    return encode_oneof(lane_pb2.LaneParcel(), parcel)


def decode_parcel(data: bytes) -> LaneParcel:
    """What such a frame says. Raises as `decode_lane_message`."""
    return cast("LaneParcel", decode_oneof(lane_pb2.LaneParcel, _PARCELS, data, MAX_LANE_MESSAGE_BYTES))
