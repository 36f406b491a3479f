"""What an owner and the replicas of synced steps can say, and what cannot be said at all."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.messages import synced_messages as m
from protocol.pipeline.messages.lane_messages import MAX_COPY_BYTES, MAX_PASSED_BYTES, LaneStep
from protocol.pipeline.messages.lane_wire import Parcel, Said
from protocol.pipeline.stage_machine import Point
from protocol.pipeline.synced_routing import Work
from protocol.tensors.stage_schema import MAX_STAGES

AT = Point(4, 3)
PEERS = (PeerId("alice"), PeerId("bob"))
MESSAGES: tuple[m.SyncedMessage, ...] = (
    m.SyncedBegin(1, AT, 2, PEERS),
    m.SyncedReady(1, AT, bytes(32)),
    m.SyncedBeside(1, PEERS),
    m.SyncedGrant(1, AT, 5),
    m.SyncedDrop(1, AT, 5),
    m.SyncedAgain(1, AT, "micro-batch 5 is removed"),
    m.SyncedTellSum(1, AT, (0, 2, 5)),
    m.SyncedSummed(1, AT, (0, 2, 5)),
    m.SyncedNotSummed(1, AT, "[7] are too many"),
    m.SyncedCommit(1, AT, (m.SyncedPart(PEERS[0], (0, 5)), m.SyncedPart(PEERS[1], (2,)))),
    m.SyncedStep(1, AT, 0.5, 3),
    m.SyncedBring(1, AT, 4096),
)
PARCELS: tuple[m.SyncedParcel, ...] = (
    m.SyncedAsk(1, AT, 1, 5, True, 4188, 4188),
    m.SyncedAsk(1, AT, 0, 5, False, 0, 0),
    m.SyncedReply(1, AT, 1, 5, True, 4188, "", False, 0.0),
    m.SyncedReply(1, AT, 1, 5, True, 0, "it has too much to do"),
    m.SyncedSum(1, AT, (0, 2, 5), 1 << 20),
)


def test_work_is_named_alike_in_what_is_asked_and_in_what_comes_of_it() -> None:
    assert PARCELS[0].work == PARCELS[2].work == Work(5, 1, True)  # type: ignore[union-attr]


def test_numbers_of_a_message_are_in_their_order() -> None:
    assert m.as_numbers(frozenset({5, 0, 2})) == (0, 2, 5)
    with pytest.raises(LocalProtocolError, match="at most"):
        m.as_numbers(frozenset(range(m.MAX_MICRO_BATCHES + 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: m.SyncedBegin(-1, AT, 2, PEERS),
        lambda: m.SyncedBegin(1, Point(-1, 0), 2, PEERS),
        lambda: m.SyncedBegin(1, AT, MAX_STAGES, PEERS),
        lambda: m.SyncedBegin(1, AT, 2, (PEERS[0], PEERS[0])),
        lambda: m.SyncedBeside(1, tuple(PeerId(f"peer{n}") for n in range(m.MAX_REPLICAS + 1))),
        lambda: m.SyncedReady(1, AT, bytes(31)),
        lambda: m.SyncedGrant(1, AT, m.MAX_MICRO_BATCHES),
        lambda: m.SyncedDrop(1, AT, -1),
        lambda: m.SyncedTellSum(1, AT, (2, 0)),
        lambda: m.SyncedSummed(1, AT, (2, 2)),
        lambda: m.SyncedSummed(1, AT, (m.MAX_MICRO_BATCHES,)),
        lambda: m.SyncedStep(1, AT, -1.0, 3),
        lambda: m.SyncedStep(1, AT, 1.0, m.MAX_MICRO_BATCHES + 1),
        lambda: m.SyncedBring(1, AT, -1),
        lambda: m.SyncedAsk(1, AT, 1, 5, True, MAX_PASSED_BYTES + 1, 0),
        lambda: m.SyncedAsk(1, AT, 1, 5, True, 0, -1),
        lambda: m.SyncedReply(1, AT, 1, 5, True, MAX_PASSED_BYTES + 1),
        lambda: m.SyncedReply(1, AT, 1, 5, True, 1, "not done"),
        lambda: m.SyncedReply(1, AT, 1, 5, True, 1, "", True),
        lambda: m.SyncedReply(1, AT, 1, 5, True, 0, "", False, math.nan),
        lambda: m.SyncedSum(1, AT, (0,), 0),
        lambda: m.SyncedSum(1, AT, (0,), MAX_COPY_BYTES + 1),
    ],
)
def test_what_is_out_of_its_bounds_cannot_be_said(make: Callable[[], Said | Parcel]) -> None:
    with pytest.raises(RemoteProtocolError):
        make()


def test_a_micro_batch_that_two_sums_of_a_stage_have_cannot_be_committed() -> None:
    with pytest.raises(RemoteProtocolError, match="rising"):
        m.SyncedCommit(1, AT, (m.SyncedPart(PEERS[0], (0, 5)), m.SyncedPart(PEERS[1], (5,))))
    with pytest.raises(RemoteProtocolError, match="each once"):
        m.SyncedCommit(1, AT, (m.SyncedPart(PEERS[0], (0,)), m.SyncedPart(PEERS[0], (5,))))


def test_a_square_that_is_not_finite_is_told_as_in_lanes() -> None:
    assert math.isnan(m.SyncedStep(1, AT, math.nan, 1).whole_square)
    assert math.isnan(LaneStep(1, 0, AT, math.nan).whole_square)
