from __future__ import annotations

import fcntl
import math
import os
import resource
import socket
import tempfile

import pytest
import torch

from peer.training.worker_channel import (
    MAX_MESSAGE_BYTES,
    Area,
    Command,
    OutOfMemory,
    Progress,
    Reply,
    SharedVectors,
    frame,
    is_readable,
    mapping_bytes,
    parse_event,
    read_message,
    with_bytes,
)
from protocol.errors import LocalProtocolError

PROGRESS = Progress(step=3, tokens_ready=10, tokens_trained=20, loss_nats=1.5, micro_batch=4)


@pytest.mark.parametrize(
    "event",
    [
        PROGRESS,
        Reply(number=7, tokens=5, num_steps=1),
        Reply(number=8, loss_nats=2.5),
        OutOfMemory(micro_batch=0, is_final=True),
    ],
)
def test_events_cross_the_channel_one_by_one(event: Progress | Reply | OutOfMemory) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frame(event) + frame(PROGRESS))
        theirs.shutdown(socket.SHUT_WR)
        first, second = read_message(ours), read_message(ours)
        assert first is not None
        assert second is not None
        assert (parse_event(first), parse_event(second)) == (event, PROGRESS)
        assert read_message(ours) is None


def test_a_loss_that_is_not_finite_crosses_as_none() -> None:
    for loss in (math.nan, math.inf):
        data = frame(Reply(number=1, loss_nats=loss))[4:]
        assert parse_event(data) == Reply(number=1, loss_nats=None)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"kind":"command","number":1,"op":"stop"}', b'{"kind":"reply"}', b"\xff"]
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be read"):
        parse_event(data)


def test_few_bytes_are_written_with_their_message_and_many_are_not_copied() -> None:
    many = bytes(1 << 20)
    assert with_bytes(b"order", b"few") == (b"orderfew",)
    assert with_bytes(b"order", b"") == (b"order",)
    assert with_bytes(b"order", many)[1] is many


def test_a_channel_that_ends_in_a_message_is_at_its_end_and_a_giant_length_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frame(Command(number=1, op="stop"))[:-3])
        theirs.shutdown(socket.SHUT_WR)
        assert read_message(ours) is None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(LocalProtocolError, match="at most"):
            read_message(ours)


def test_a_daemon_that_died_with_our_progress_unread_is_the_end_and_no_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(frame(Reply(number=1)))
        theirs.close()  # unread bytes turn this into a reset
        assert read_message(ours) is None


def test_both_sides_see_the_areas_and_no_area_runs_into_another() -> None:
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), mapping_bytes(5))
        ours, theirs = SharedVectors(file.fileno(), 5), SharedVectors(file.fileno(), 5)
        for area in Area:
            ours.write(area, torch.full((5,), float(area) + 0.5))
        for area in Area:
            assert torch.equal(theirs.read(area), torch.full((5,), float(area) + 0.5))
        copy = theirs.read(Area.OUT)
        ours.write(Area.OUT, torch.zeros(5))
        assert torch.equal(copy, torch.full((5,), 1.5))


def test_an_area_takes_memory_from_being_written_until_it_is_emptied_whoever_looked_at_it() -> None:
    with tempfile.TemporaryFile() as file:
        num_elements = 1 << 16
        os.ftruncate(file.fileno(), mapping_bytes(num_elements))
        ours, theirs = SharedVectors(file.fileno(), num_elements), SharedVectors(file.fileno(), num_elements)
        for area in Area:
            ours.write(area, torch.full((num_elements,), 2.5))
        theirs.put_down()
        ours.put_down()
        assert theirs.view(Area.IN).sum() == 2.5 * num_elements
        full_bytes = 512 * os.fstat(file.fileno()).st_blocks
        ours.empty(Area.OUT)
        assert torch.equal(theirs.view(Area.IN), torch.full((num_elements,), 2.5))
        assert full_bytes - 512 * os.fstat(file.fileno()).st_blocks in (
            0,
            4 * num_elements,
        )  # 0 where it cannot be done
        theirs.view(Area.OUT)[7] = 3.0
        assert ours.read(Area.OUT)[7] == 3.0


def test_a_message_is_seen_on_a_descriptor_of_any_number() -> None:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = 1500 if most > 1600 else most - 50
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, number)) as high:
        assert high.fileno() >= number
        assert not is_readable(high, 0.0)
        ours.sendall(frame(PROGRESS))
        assert is_readable(high, None)
        assert read_message(high) is not None
        ours.close()
        assert is_readable(high, None), "the end of the channel is seen, too"
