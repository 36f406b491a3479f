"""A unit's chain at a rewind of the host: the same vectors under a new head, on disk as any commit.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import torch
import trio.testing

from averaging.rounds.lineage.unit_chain import lend
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from tests.averaging.rounds.round_world import RUN_ID, VERIFIER, apply_whole, open_world
from tests.simulation.signing import AUTHORITY

Clock = trio.testing.MockClock


async def test_a_rewind_on_the_head_moves_no_vector_and_the_next_commits_follow_it_after_a_restart_as_well(
    autojump_clock: Clock,
) -> None:
    async with open_world() as world:
        me, other = world.parties[:2]
        commits = await world.grow([me, other], 2)
        good = commits[-1].link
        certificate = seal_rewind(AUTHORITY, RUN_ID, good, Rewind(1, good.commit, 1))
        link = verify_certificate(certificate, good, verifier=VERIFIER, run_id=RUN_ID)
        before, root, loan = me.chain.state, me.chain.root, await lend(me.chain)
        for party in (me, other):
            await apply_whole(party.chain, link, certificate)
        assert me.chain.head == link
        assert me.chain.state.anchor_N is before.anchor_N
        assert (me.chain.state.head, me.chain.state.index) == (link.commit, good.index + 1)
        assert me.chain.root == other.chain.root != root
        lent_N = loan.state.anchor_N.clone()
        await me.restart()
        assert (me.chain.head, me.chain.root) == (link, other.chain.root)
        (after,) = await world.grow([me, other], 1)
        assert after.link.parent == link.commit
        assert me.chain.root == other.chain.root
        assert torch.equal(loan.state.anchor_N, lent_N), "whoever borrowed the vectors still reads them"
        loan.give_back()
