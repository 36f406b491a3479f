"""The coordinator's messages about the run: there and back, and bounds."""

from __future__ import annotations

import pytest

from protocol.errors import (
    PotluckError,
    RefusedError,
    RemoteProtocolError,
    RunOverError,
    StorageError,
    SupersededError,
    TemporaryError,
    VersionError,
)
from protocol.host.calls import (
    AdmitReply,
    CheckpointEntry,
    RunNews,
    decode_admit_reply,
    decode_checkpoints,
    decode_error,
    decode_news,
    encode_admit_reply,
    encode_checkpoints,
    encode_error,
    encode_news,
)
from protocol.ids import CommitId, Root
from protocol.pb import coordinator_pb2 as pb

COMMIT = CommitId(b"c" * 32)


def test_replies_survive_the_wire() -> None:
    news = RunNews("training", "why", COMMIT, 3, 12345, b"start", False)
    assert decode_news(encode_news(news)) == news
    admitted = AdmitReply(b"credential", b"manifest", b"{}", b"", "12D3", ("/ip4/1.2.3.4/tcp/5",))
    assert decode_admit_reply(encode_admit_reply(admitted)) == admitted
    entries = (CheckpointEntry(5, COMMIT, Root(b"r" * 32), 99, 1_700_000_000),)
    assert decode_checkpoints(encode_checkpoints(entries)) == entries


@pytest.mark.parametrize(
    "kind", [RefusedError, VersionError, RunOverError, TemporaryError, RemoteProtocolError, SupersededError]
)
def test_errors_cross_with_their_kind_and_words(kind: type[PotluckError]) -> None:
    crossed = decode_error(encode_error(kind("found", "expected", "remedy")))
    assert (type(crossed), crossed.one_line()) == (kind, "found; expected expected; remedy")


def test_inner_errors_of_the_host_do_not_cross() -> None:
    crossed = decode_error(encode_error(StorageError("/home/host/secret could not be read")))
    assert type(crossed) is TemporaryError
    assert "secret" not in crossed.one_line()


def test_control_characters_of_a_stranger_do_not_reach_the_terminal() -> None:
    crossed = decode_error(pb.ErrorBody(kind="RefusedError", found="\x1b[2Jgone\n").SerializeToString())
    assert crossed.found == " [2Jgone "
