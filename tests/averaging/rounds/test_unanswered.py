from __future__ import annotations

from averaging.rounds.unanswered import SILENT_AFTER, Unanswered
from protocol.errors import CallTimeout, PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId

PEER, OTHER = PeerId("one"), PeerId("two")
NO_ANSWER = CallTimeout("no answer", "an answer")


def test_two_heartbeats_in_a_row_without_an_answer_are_counted_from_the_first_and_then_anew() -> None:
    unanswered = Unanswered()
    assert unanswered.note(PEER, NO_ANSWER, 10.0) == (1, 10.0)
    assert unanswered.note(OTHER, NO_ANSWER, 12.0) == (1, 12.0)
    assert unanswered.note(PEER, NO_ANSWER, 16.0) == (SILENT_AFTER, 10.0)
    assert unanswered.note(PEER, NO_ANSWER, 20.0) == (1, 20.0)


def test_any_answer_ends_the_count_and_so_does_a_refusal() -> None:
    """A process that refuses is there, and one that is gone refuses the connection: others are told of that."""
    for reply in (b"", PeerUnreachable("refused", "a peer"), RemoteProtocolError("a repeated message", "a new one")):
        unanswered = Unanswered()
        unanswered.note(PEER, NO_ANSWER, 10.0)
        assert unanswered.note(PEER, reply, 16.0) == (0, 16.0)
        assert unanswered.note(PEER, NO_ANSWER, 20.0) == (1, 20.0)
