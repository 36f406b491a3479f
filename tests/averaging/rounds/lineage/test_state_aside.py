from __future__ import annotations

import pytest
import torch
import trio.testing

from averaging.rounds.lineage.earlier_states import state_at
from averaging.rounds.lineage.state_aside import set_aside
from averaging.rounds.lineage.unit_chain import lend
from averaging.state.state import state_root
from protocol.errors import UnreachableError
from tests.averaging.rounds.round_world import GRID, Party, open_world

Clock = trio.testing.MockClock


async def _after_two(party: Party) -> None:
    for commit in party.world.commits(2):
        await commit.write_results(party)
        await party.chain.prove(await party.chain.apply(commit.link, commit.certificate))
    await party.chain.keep()


async def test_a_state_that_was_set_aside_is_given_once_and_comes_back_from_the_disk_if_none_takes_its_place(
    autojump_clock: Clock,
) -> None:
    async with open_world() as world:
        party = world.parties[0]
        await _after_two(party)
        chain, vector_N = party.chain, party.chain.state.anchor_N

        async def fails() -> None:
            async with set_aside(chain) as aside:
                state = aside.take(chain.head.commit)
                assert state is not None
                assert state.anchor_N is vector_N
                assert aside.take(chain.head.commit) is None
                assert await state_at(chain, chain.head.commit) is None, "nobody reads what is not there"
                vector_N.fill_(7.0)
                raise UnreachableError("nobody has it", "a donor")

        with pytest.raises(UnreachableError, match="nobody"):
            await fails()
        assert chain.state.anchor_N is not vector_N
        assert state_root(chain.state, GRID) == chain.root
        assert (chain.is_sound, chain.held.is_torn) == (True, False)


@pytest.mark.parametrize("reason", ["another commit", "lent", "of no use"])
async def test_a_state_is_not_given_for_another_commit_nor_while_somebody_reads_it_nor_if_it_is_wrong(
    autojump_clock: Clock, reason: str
) -> None:
    async with open_world() as world:
        party = world.parties[0]
        await _after_two(party)
        chain, wanted = party.chain, party.chain.head.commit
        if reason == "another commit":
            wanted = chain.links[1].commit
        elif reason == "lent":
            loan = await lend(chain)
            before_N = loan.state.anchor_N.clone()
        else:
            chain.doubt()
        async with set_aside(chain) as aside:
            assert aside.take(wanted) is None
        if reason == "lent":
            assert torch.equal(loan.state.anchor_N, before_N)
