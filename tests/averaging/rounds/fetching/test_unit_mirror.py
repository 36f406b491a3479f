"""A unit's lineage is brought here without a part in its rounds: what is kept leads to the same bytes as those of its holders."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.fetching.unit_mirror import DonorAnswer, follow
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from protocol.errors import RemoteProtocolError, TransportError, UnreachableError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import NO_SPINE
from protocol.rounds.messages.requests import FetchRequest, FetchState
from tests.averaging.rounds.round_world import GRID, UNIT, MadeCommit, Party, RoundWorld, open_world
from tests.protocol.rounds.made_commits import made_spine

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def grow(
    world: RoundWorld, parties: Sequence[Party], number: int, first_seed: int = 0, spine: CommitId = NO_SPINE
) -> list[MadeCommit]:
    """So many commits of these parties, each of which attests the state before it and cites this commit of the spine."""
    made: list[MadeCommit] = []
    for seed in range(first_seed, first_seed + number):
        chain, members = parties[0].chain, [world.parties.index(party) for party in parties]
        is_lone = 2 * len(members) <= len(chain.head.roster)
        root = chain.root if chain.head.index else None
        commit = world.commit_on(chain.head, seed, members=members, is_lone=is_lone, attested_root=root, spine=spine)
        for party in parties:
            await party.apply(commit)
        made.append(commit)
    return made


async def begin(*parties: Party) -> None:
    for party in parties:
        await party.chain.restore()
        party.serve_fetches()


def stand(chain: UnitChain) -> tuple[ChainLink, Root, Sequence[bytes]]:
    return chain.head, chain.root, chain.line.certificates


@pytest.mark.parametrize("rounds", [(1,), (2,), (12,), (3, 1, 2), (9, 1, 5)])
async def test_who_trails_has_the_bytes_of_the_holders_and_gives_them_on(rounds: Sequence[int]) -> None:
    async with open_world() as world:
        holder, keeper, newcomer = world.parties[0], world.parties[1], world.stranger
        await begin(holder, keeper, newcomer)
        for place, number in enumerate(rounds):
            await grow(world, [holder], number, 100 * place)
            assert await follow(keeper.network, keeper.chain, [holder.peer], may_leave=True)
            await keeper.restart()  # it holds nothing in memory between two visits
            keeper.serve_fetches()
        assert stand(keeper.chain) == stand(holder.chain)
        assert not await follow(keeper.network, keeper.chain, [holder.peer], may_leave=True)
        holder.crash()
        assert await follow(newcomer.network, newcomer.chain, [keeper.peer], may_leave=False)
        await newcomer.restart()
        assert stand(newcomer.chain) == stand(holder.chain)
        assert newcomer.chain.state.anchor_N.equal(holder.chain.state.anchor_N)
        assert newcomer.chain.state.momentum_N.equal(holder.chain.state.momentum_N)


async def test_the_lineage_of_the_holders_is_followed_and_a_newcomer_leaves_none_of_its_own() -> None:
    async with open_world() as world:
        holder, keeper, other = world.parties
        await begin(holder, keeper, other)
        await grow(world, [keeper, holder, other], 2)
        await grow(world, [keeper], 1, 50)
        await grow(world, [holder, other], 3, 80)
        assert not await follow(keeper.network, keeper.chain, [holder.peer], may_leave=False)
        assert keeper.chain.head.index == 3
        assert await follow(keeper.network, keeper.chain, [holder.peer], may_leave=True)
        assert stand(keeper.chain) == stand(holder.chain)
        await keeper.restart()
        assert stand(keeper.chain) == stand(holder.chain)


async def test_at_a_fork_the_side_made_with_the_followed_spine_is_kept_whatever_work_the_other_has() -> None:
    spine = made_spine()
    async with open_world(target_tokens=300) as world:
        light, heavy, keeper = world.parties
        await begin(light, heavy, keeper)
        await grow(world, [light, heavy, keeper], 2)
        await grow(world, [light], 1, 50, spine.left.commit)
        await grow(world, [heavy], 8, 80, spine.right.commit)
        donors, left, right = [heavy.peer, light.peer], spine.at(spine.left), spine.at(spine.right)
        assert await follow(keeper.network, keeper.chain, [heavy.peer], may_leave=True, spine=left)
        assert stand(keeper.chain) == stand(heavy.chain), "a unit that only one side has moved stands"
        await grow(world, [light], 2, 60, spine.left.commit)
        assert not await follow(keeper.network, keeper.chain, donors, may_leave=True, spine=right)
        assert not await follow(keeper.network, keeper.chain, donors, may_leave=True), "by work alone"
        assert await follow(keeper.network, keeper.chain, donors, may_leave=True, spine=left)
        assert stand(keeper.chain) == stand(light.chain)
        assert not await follow(keeper.network, keeper.chain, donors, may_leave=True, spine=left)
        assert await follow(keeper.network, keeper.chain, donors, may_leave=True, spine=right)
        assert stand(keeper.chain) == stand(heavy.chain)


async def test_what_is_left_to_nobody_is_given_up_for_the_lineage_of_the_holders_whatever_work_it_has() -> None:
    async with open_world(target_tokens=300) as world:
        light, heavy, keeper = world.parties
        await begin(light, heavy, keeper)
        await grow(world, [light, heavy, keeper], 2)
        await grow(world, [light], 2, 50)
        await grow(world, [heavy], 8, 80)
        assert await follow(keeper.network, keeper.chain, [heavy.peer], may_leave=True)
        heavy.crash()
        assert not await follow(keeper.network, keeper.chain, [light.peer], may_leave=True)
        assert not await follow(keeper.network, keeper.chain, [light.peer], may_leave=False, is_lost=True)
        assert stand(keeper.chain) == stand(heavy.chain)
        assert await follow(keeper.network, keeper.chain, [light.peer], may_leave=True, is_lost=True)
        assert stand(keeper.chain) == stand(light.chain)
        await keeper.restart()
        assert stand(keeper.chain) == stand(light.chain)


async def test_rounds_that_come_so_fast_that_a_donor_drops_each_state_before_it_is_asked_for_leave_no_gap() -> None:
    async with open_world() as world:
        holder, keeper = world.parties[:2]
        await begin(holder, keeper)
        await grow(world, [holder], 4)
        reported = holder.chain.head
        service = TransferService(
            UNIT, holder.log, holder.generations, GRID, lambda known: holder.chain.line.after(known)
        )
        asked: list[FetchRequest] = []

        async def serve(peer: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            asked.append(request)
            if isinstance(request, FetchState) and holder.chain.head == reported:
                await grow(world, [holder], 4, 100)
            await service.serve(peer, request, stream)

        holder.network.serve_streams(FETCH_CHANNEL, serve)
        assert await follow(keeper.network, keeper.chain, [holder.peer], may_leave=True)
        assert any(isinstance(request, FetchState) for request in asked), "the state is the shorter way"
        assert keeper.chain.head == reported
        while await follow(keeper.network, keeper.chain, [holder.peer], may_leave=True):
            pass
        assert stand(keeper.chain) == stand(holder.chain)


async def test_a_donor_that_is_away_or_lies_is_passed_over_and_changes_nothing() -> None:
    async with open_world() as world:
        holder, keeper, liar = world.parties
        await begin(holder, keeper, liar)
        (commit, *_) = await grow(world, [holder], 4)
        liar.serve_frames([b"\x01certificate"])
        dead = world.stranger.peer
        with pytest.raises((RemoteProtocolError, TransportError)):
            await follow(keeper.network, keeper.chain, [dead, liar.peer], may_leave=True)
        assert keeper.chain.head.index == 0
        assert await follow(keeper.network, keeper.chain, [liar.peer, holder.peer], may_leave=True)
        assert stand(keeper.chain) == stand(holder.chain)
        assert commit.link in keeper.chain.links


async def test_certificates_without_bytes_move_nothing() -> None:
    async with open_world() as world:
        holder, keeper = world.parties[:2]
        await begin(holder, keeper)
        await grow(world, [holder], 3)
        for name in [name for name in holder.disk.files if name.startswith(("results/", "generations/"))]:
            del holder.disk.files[name]
        with trio.fail_after(600.0), pytest.raises(UnreachableError):
            await follow(keeper.network, keeper.chain, [holder.peer], may_leave=True)
        assert keeper.chain.head.index == 0


async def test_a_donor_with_certificates_and_no_bytes_keeps_nobody_from_being_asked_after_it_and_each_is_told_of() -> (
    None
):
    async with open_world(4) as world:
        liar, holder, keeper, other = world.parties
        await begin(liar, holder, keeper, other)
        await grow(world, [holder], 3)
        await grow(world, [liar], 9, 50)
        await grow(world, [other], 1, 80)
        for name in [name for name in liar.disk.files if name.startswith(("results/", "generations/"))]:
            del liar.disk.files[name]
        asked: list[DonorAnswer] = []
        donors = [liar.peer, holder.peer, other.peer]
        with trio.fail_after(600.0):
            assert await follow(keeper.network, keeper.chain, donors, may_leave=True, asked=asked.append)
        assert stand(keeper.chain) == stand(holder.chain)
        assert [(each.donor, bool(each.refused), each.is_lie) for each in asked] == [
            (liar.peer, True, False),
            (holder.peer, False, False),
        ]
        asked.clear()
        with pytest.raises(UnreachableError), trio.fail_after(600.0):
            await follow(keeper.network, keeper.chain, [other.peer, liar.peer], may_leave=True, asked=asked.append)
        assert [tuple(link.index for link in each.links) for each in asked] == [(1,), tuple(range(1, 10))]
        assert stand(keeper.chain) == stand(holder.chain)
