from __future__ import annotations

import pytest

from peer.pipeline.stage.stage_channel import StageReply, parse_reply
from protocol.errors import LocalProtocolError


def test_an_answer_comes_back_as_it_was_said() -> None:
    reply = StageReply(number=7, loss_nats=1.5, num_bytes=3)
    assert parse_reply(reply.model_dump_json().encode()) == reply


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b'{"number": "x"}', b'{"number": 1, "num_bytes": -1}', b'{"number": 1, "more": 2}']
)
def test_an_answer_that_cannot_be_read_is_one_line_and_no_crash(data: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be read"):
        parse_reply(data)
