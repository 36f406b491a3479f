"""`potluck checkpoint fetch`, with the host's word on whether this peer may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from averaging.storage.memory_storage import MemoryDisk
from peer.membership.coordinator_client import CoordinatorClient
from peer.session.fetch_model import _lineage, _Run, roots_of_host
from protocol.errors import PotluckError, RefusedError, UnreachableError
from tests.peer.session.test_catch_up import NEWCOMER, after_rounds, new_chain, one_slow_donor
from tests.simulation.swarm import World


class _Host:
    def __init__(self, error: PotluckError) -> None:
        self._error = error

    async def list_checkpoints(self) -> None:
        raise self._error


async def test_a_host_that_refuses_a_peer_ends_its_fetch_and_one_that_is_away_does_not() -> None:
    banned = RefusedError("the host banned this peer from the run", "a peer in good standing", "ask the host")
    with pytest.raises(RefusedError, match="banned"):
        await roots_of_host(cast(CoordinatorClient, _Host(banned)))
    assert await roots_of_host(cast(CoordinatorClient, _Host(UnreachableError("no answer", "a host", "later")))) == {}


def test_the_rounds_of_a_fetched_model_come_from_a_slow_donor_where_the_quick_ones_have_none() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        async with one_slow_donor(world) as donors:
            run = SimpleNamespace(network=world.swarm.start(NEWCOMER), donors=donors)
            links = await _lineage(cast("_Run", run), chain)
        assert links[-1].index >= 9

    after_rounds(10, check)
