"""Milestones of donors are taken if they are the host's, and a donor without any is no failure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from averaging.rounds.fetching.milestone_asking import NUM_ASKED_FOR_MILESTONES, ask_milestones
from averaging.rounds.lineage.past.held_milestones import newest_milestone
from protocol.identity.names import peer_name
from tests.averaging.rounds.round_world import UNIT, MadeCommit, RoundWorld, open_world

pytestmark = pytest.mark.usefixtures("autojump_clock")


@asynccontextmanager
async def _donors() -> AsyncIterator[tuple[RoundWorld, MadeCommit]]:
    """The first party asks, the second answers and has no milestone, the third has one of this commit."""
    async with open_world() as world:
        asker, empty, donor = world.parties[:3]
        for party in (asker, empty, donor):
            await party.chain.restore()
        _, made = await world.grow([donor], 2)
        donor.milestones.take([world.milestone_at(made)], "the host")
        for party in (empty, donor):
            party.serve_fetches()
        yield world, made


async def test_the_milestone_of_the_first_donors_that_have_one_is_held_whoever_is_gone_or_has_none() -> None:
    async with _donors() as (world, made):
        asker, empty, donor = world.parties[:3]
        await ask_milestones(asker.network, asker.chain, [world.stranger.peer, empty.peer, donor.peer])
        held = newest_milestone(asker.chain.tools.milestones, UNIT)
        assert held is not None
        assert held.link == made.link


async def test_a_forged_milestone_of_a_donor_is_named_and_the_next_donor_is_asked() -> None:
    async with _donors() as (world, made):
        asker, liar, donor = world.parties[:3]
        liar.serve_frames([world.milestone_at(made, liar.signer)])
        with capture_logs() as logs:
            await ask_milestones(asker.network, asker.chain, [liar.peer, donor.peer])
        (line,) = (line for line in logs if line["event"] == "milestone_refused")
        assert line["source"] == peer_name(liar.peer)
        assert "host signed" in line["reason"]
        held = newest_milestone(asker.chain.tools.milestones, UNIT)
        assert held is not None
        assert held.link == made.link


async def test_only_so_many_donors_are_asked() -> None:
    async with _donors() as (world, _):
        asker, empty, donor = world.parties[:3]
        await ask_milestones(asker.network, asker.chain, [*[empty.peer] * NUM_ASKED_FOR_MILESTONES, donor.peer])
        assert newest_milestone(asker.chain.tools.milestones, UNIT) is None
