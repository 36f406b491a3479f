"""Coming into an open run: the puzzle is solved in a thread, and a crowd at the door is waited for."""

from __future__ import annotations

from typing import cast

import pytest
import trio

from peer.membership import open_entry
from peer.membership.coordinator_client import CoordinatorClient
from peer.membership.open_entry import KNOCK_AGAIN_S, enter, solve
from protocol.errors import RefusedError, TemporaryError
from protocol.host.calls import AdmitReply
from protocol.identity.identity import Identity
from protocol.identity.puzzle import MOST_BITS, is_answer, make_challenge
from protocol.ids import RunId

ME, RUN, NOW = Identity(b"m" * 32), RunId(b"r" * 32), 1_700_000_000.0
REPLY = AdmitReply(b"credential", b"", b"", b"", "host", ())


class _Door:
    """Gives a puzzle of so many bits, and refuses the first few that knock."""

    def __init__(self, bits: int = 2, num_refused: int = 0) -> None:
        self._challenge = make_challenge(b"s" * 32, RUN, ME.public_key, bits=bits, nonce=b"n" * 16, now_unix_s=NOW)
        self.num_refused = num_refused
        self.knocked_s: list[float] = []

    async def challenge(self, public_key: bytes) -> bytes:
        assert public_key == ME.public_key
        return self._challenge.raw

    async def enter(self, request: bytes, challenge: bytes, answer: int) -> AdmitReply:
        assert (request, challenge) == (b"request", self._challenge.raw)
        assert is_answer(self._challenge, RUN, ME.public_key, answer)
        self.knocked_s.append(trio.current_time())
        if len(self.knocked_s) <= self.num_refused:
            raise TemporaryError("a crowd at the door")
        return REPLY


async def _enter(door: _Door) -> AdmitReply:
    return await enter(cast("CoordinatorClient", door), ME, RUN, b"request")


async def test_a_newcomer_solves_its_puzzle_and_is_let_in() -> None:
    door = _Door()
    assert await _enter(door) is REPLY


async def test_the_puzzle_says_that_it_is_solved_and_how_long_such_a_one_takes_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_entry, "AT_ONCE", 1)
    said: list[str] = []
    await enter(cast("CoordinatorClient", _Door(bits=6)), ME, RUN, b"request", said.append)
    assert said[0] == "solving the host's puzzle, which an open run gives to newcomers"
    assert said[-1] == "asking the host for a place"
    assert all(": 1 tries so far, about " in line for line in said[1:2])
    assert len(said) > 3


async def test_a_crowd_at_the_door_is_waited_for_and_then_told(autojump_clock: object) -> None:
    door = _Door(bits=0, num_refused=len(KNOCK_AGAIN_S))
    assert await _enter(door) is REPLY
    assert [later - earlier for earlier, later in zip(door.knocked_s, door.knocked_s[1:], strict=False)] == list(
        KNOCK_AGAIN_S
    )
    with pytest.raises(TemporaryError, match="a crowd"):
        await _enter(_Door(bits=0, num_refused=9))


async def test_a_puzzle_of_hours_is_refused_and_a_long_one_can_be_given_up() -> None:
    with pytest.raises(RefusedError, match="puzzle_bits"):
        await _enter(_Door(bits=MOST_BITS + 1))
    hard = make_challenge(b"s" * 32, RUN, ME.public_key, bits=MOST_BITS, nonce=b"n" * 16, now_unix_s=NOW)
    with trio.move_on_after(0.1) as scope:
        await solve(hard, RUN, ME.public_key)
    assert scope.cancelled_caught
