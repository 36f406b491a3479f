from __future__ import annotations

import pytest

from peer.pipeline.stage.stage_channel import StageReply, parse_reply
from peer.training.worker_channel import Failed, OutOfMemory
from protocol.errors import LocalProtocolError


@pytest.mark.parametrize(
    "said",
    [
        StageReply(number=7, loss_nats=1.5, num_bytes=3),
        Failed(reason="the card is lost", is_gone=True),
        OutOfMemory(micro_batch=1),
    ],
)
def test_an_answer_and_last_words_come_back_as_they_were_said(said: StageReply | Failed | OutOfMemory) -> None:
    assert parse_reply(said.model_dump_json().encode()) == said


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b'{"number": "x"}', b'{"number": 1, "num_bytes": -1}', b'{"number": 1, "more": 2}']
)
def test_an_answer_that_cannot_be_read_is_one_line_and_no_crash(data: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be read"):
        parse_reply(data)
