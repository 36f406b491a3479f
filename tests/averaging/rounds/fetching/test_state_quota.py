"""How much of a state a stranger gets of one donor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from averaging.rounds.fetching.state_quota import STATES, StateQuota
from averaging.rounds.lineage.round_context import HostWord, RoundContext
from protocol.identity.standing import PeerStanding
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.messages.requests import FetchCommits, FetchHashes, FetchRequest, FetchState
from protocol.tensors.tensor_schema import ChunkGrid
from tests.virtual import VirtualClock

GRID, UNIT = ChunkGrid(1000, 100), UnitName("fragment-0")
STRANGER, MEMBER, KEEPER = PeerId("stranger"), PeerId("member"), PeerId("keeper")
STANDINGS = {STRANGER: PeerStanding.STRANGER, MEMBER: PeerStanding.MEMBER}
WHOLE = FetchState(UNIT, 0, GRID.num_chunks, CommitId(b"c" * 32))


def _quota() -> StateQuota:
    tools = SimpleNamespace(host_word=HostWord(lambda: STANDINGS), clock=VirtualClock())
    return StateQuota(GRID, cast("RoundContext", tools))


async def test_a_stranger_gets_a_state_twice_and_not_a_third_time(autojump_clock: object) -> None:
    quota = _quota()
    assert [quota.takes(STRANGER, WHOLE) for _ in range(STATES + 1)] == [True] * STATES + [False]


@pytest.mark.parametrize("peer", [MEMBER, KEEPER])
async def test_members_and_keepers_get_as_many_as_they_ask_for(peer: PeerId, autojump_clock: object) -> None:
    quota = _quota()
    assert all(quota.takes(peer, WHOLE) for _ in range(10))


@pytest.mark.parametrize(
    "request_", [FetchState(UNIT, 0, 0, b""), FetchCommits(UNIT, (CommitId(b"c" * 32),)), FetchHashes(UNIT, b"c" * 32)]
)
async def test_questions_are_free(request_: FetchRequest, autojump_clock: object) -> None:
    quota = _quota()
    while quota.takes(STRANGER, WHOLE):
        pass
    assert quota.takes(STRANGER, request_)


async def test_chunks_beyond_the_last_one_are_not_counted(autojump_clock: object) -> None:
    quota = _quota()
    assert quota.takes(STRANGER, FetchState(UNIT, 0, 1 << 30, CommitId(b"c" * 32)))
    assert quota.takes(STRANGER, WHOLE)
