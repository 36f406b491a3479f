"""A newcomer takes an expert that nobody holds from the host, also where the host has dropped the beginning of its lineage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from averaging.rounds.lineage.unit_chain import UnitChain
from peer.holdings.host_backup import take_kept
from protocol.rounds.lineage import lineage
from tests.averaging.rounds.round_world import MadeCommit, Party, RoundWorld, open_world

pytestmark = pytest.mark.usefixtures("autojump_clock")


@asynccontextmanager
async def _host_copy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RoundWorld, list[MadeCommit]]]:
    """Party 0 has the host's copy: it begins at the milestone of round 6 and ends at round 12."""
    monkeypatch.setattr(lineage, "MAX_DEPTH", 4)
    async with open_world() as world:
        host = world.parties[0]
        await host.chain.restore()
        made = await world.grow([host], 6)
        host.milestones.take([world.milestone_at(made[5])], "the ledger")
        made += await world.grow([host], 6)
        assert host.chain.line.root.index == 6
        host.serve_fetches()
        yield world, made


def _stand(chain: UnitChain) -> tuple[object, ...]:
    return chain.line.root, chain.head, chain.root


async def _takes(world: RoundWorld, newcomer: Party) -> bool:
    return await take_kept(newcomer.network, newcomer.chain, world.parties[0].peer)


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("num_own", [0, 3])
async def test_who_has_no_commit_that_the_host_still_keeps_goes_on_from_the_hosts_milestone(
    num_own: int, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _host_copy(monkeypatch) as (world, made):
        host, newcomer = world.parties[0], world.parties[1]
        await newcomer.chain.restore()
        for commit in made[:num_own]:
            await newcomer.apply(commit)
        if is_told:
            newcomer.milestones.take([world.milestone_at(made[5])], "the host")
        with capture_logs() as logs:
            assert await _takes(world, newcomer)
        assert "begins_at_milestone" in [line["event"] for line in logs]
        assert _stand(newcomer.chain) == _stand(host.chain)
        await newcomer.restart()
        assert _stand(newcomer.chain) == _stand(host.chain)
        newcomer.milestones.take([world.milestone_at(made[5])], "the host")
        assert not await _takes(world, newcomer), "there is no more of it"


async def test_who_has_a_commit_that_the_host_keeps_goes_on_from_it_whatever_milestone_lies_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _host_copy(monkeypatch) as (world, made):
        newcomer = world.parties[1]
        await newcomer.chain.restore()
        for commit in made[:7]:
            await newcomer.apply(commit)
        newcomer.milestones.take([world.milestone_at(made[8])], "the host")
        with capture_logs() as logs:
            assert await _takes(world, newcomer)
        assert "begins_at_milestone" not in [line["event"] for line in logs]
        assert (newcomer.chain.line.root, newcomer.chain.head.index) == (world.start, 12)


async def test_a_copy_without_bytes_begins_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _host_copy(monkeypatch) as (world, made):
        host, newcomer = world.parties[0], world.parties[1]
        await newcomer.chain.restore()
        newcomer.milestones.take([world.milestone_at(made[5])], "the host")
        for name in host.generation_names():
            del host.disk.files[name]
        assert not await _takes(world, newcomer)
        assert (newcomer.chain.head, newcomer.chain.is_sound) == (world.start, True)
