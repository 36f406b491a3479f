"""The newest state that the files of a unit give: a generation, and the commits after it whose results are on disk."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import trio.testing

from averaging.rounds.lineage.disk_state import DiskState, newest_on_disk
from averaging.state.state import UnitState, state_root
from protocol.errors import StorageError
from protocol.ids import Root
from protocol.rounds.messages.wire import encode_certificate
from tests.averaging.rounds.round_world import GRID, SPACING, MadeCommit, Party, RoundWorld, open_world

Clock = trio.testing.MockClock


async def _read(world: RoundWorld, party: Party) -> DiskState:
    """As another process reads it, which leaves every file as it is."""
    before = dict(party.disk.files)
    found = await newest_on_disk(party.chain.tools, lambda: world.genesis_of(world.genesis.unit))
    assert dict(party.disk.files) == before
    return found


def _is_same(found: UnitState, expected: UnitState) -> bool:
    same = torch.equal(found.anchor_N, expected.anchor_N) and torch.equal(found.momentum_N, expected.momentum_N)
    return same and found.header == expected.header


async def test_the_commits_after_the_newest_generation_are_applied(autojump_clock: Clock) -> None:
    async with open_world(is_large=True) as world:
        party = world.parties[0]
        for number, commit in enumerate(world.commits(2 * SPACING + 3), start=1):
            await party.apply(commit)
            found = await _read(world, party)
            assert (found.state.index, found.newest_index) == (number, number)
            assert _is_same(found.state, party.chain.state)
            assert found.root == party.chain.root == state_root(found.state, GRID)
        assert int(party.generation_names()[-1].split("/")[1].split("-")[0]) < found.state.index


async def test_with_missing_or_damaged_results_the_state_before_them_and_the_newest_round_are_told(
    autojump_clock: Clock,
) -> None:
    async with open_world(is_large=True) as world:
        party, made = world.parties[0], world.commits(SPACING + 3)
        for commit in made:
            await party.apply(commit)
        for name in await party.log.list_results(made[SPACING + 1].record.parent):
            party.spoil(name)
        found = await _read(world, party)
        assert (found.state.index, found.newest_index) == (SPACING + 1, SPACING + 3)
        await party.log.drop_results(made[SPACING].record.parent, ())
        found = await _read(world, party)
        assert (found.state.index, found.newest_index) == (SPACING, SPACING + 3)


async def test_before_the_first_generation_the_commits_lead_from_the_genesis(autojump_clock: Clock) -> None:
    async with open_world(is_large=True) as world:
        party = world.parties[0]
        with pytest.raises(StorageError, match="no good state of fragment-0"):
            await _read(world, party)
        for commit in world.commits(SPACING - 1):
            await commit.write_results(party)
            await party.chain.apply(commit.link, commit.certificate)
        assert party.generation_names() == []
        found = await _read(world, party)
        assert found.state.index == SPACING - 1
        assert _is_same(found.state, party.chain.state)


async def test_a_generation_of_a_lineage_that_was_left_is_passed_over(autojump_clock: Clock) -> None:
    async with open_world() as world:
        party, made = world.parties[0], world.commits(2)
        for commit in made:
            await party.apply(commit)
        other = world.commit_on(made[0].link, 77)
        await _overtaken(party, made[0], [other])
        found = await _read(world, party)
        assert (found.state.head, found.newest_index) == (made[0].link.commit, 2)


async def _overtaken(party: Party, fork: MadeCommit, others: Sequence[MadeCommit]) -> None:
    """The log follows other commits from a fork on; their results are not here."""
    await party.log.log_switch(fork.link.commit, [encode_certificate(each.certificate) for each in others])


async def test_a_later_root_that_the_state_does_not_have_refuses_it(autojump_clock: Clock) -> None:
    async with open_world(is_large=True) as world:
        party = world.parties[0]
        await world.grow([party], SPACING + 1)
        assert (await _read(world, party)).state.index == SPACING + 1
        assert not (await _read(world, party)).is_attested
        await party.apply(world.commit_on(party.chain.head, 5, attested_root=Root(bytes(32))))
        with pytest.raises(StorageError, match=f"at commit {SPACING + 1} has another root than the run attests"):
            await _read(world, party)
