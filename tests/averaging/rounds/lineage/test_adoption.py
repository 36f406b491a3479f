from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import torch
import trio.testing

from averaging.arithmetic.error_feedback import Feedback, no_residual
from averaging.codecs import codec_by_name
from averaging.rounds.lineage.adoption import (
    Mixed,
    ParameterShift,
    adopt_commit,
    adopt_switch,
    adoption_shift,
    kept_parts,
    one_after_another,
)
from averaging.rounds.lineage.head_state import AppliedCommit
from averaging.rounds.lineage.unit_chain import PreparedSwitch
from averaging.rounds.traffic.contribution import EncodedContribution
from protocol.ids import Root
from protocol.merkle import MerkleTree
from protocol.rounds.lineage.lineage import TreeNode
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from protocol.rounds.messages.record import Ballot, Disagreement
from protocol.rounds.messages.wire import decode_record
from tests.at_once import encode_chunks, encode_contribution, encode_fed, encode_with_feedback
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    RUN_ID,
    TOKENS,
    MadeCommit,
    RoundWorld,
    open_world,
    tree_nodes,
)
from tests.simulation.signing import AUTHORITY

Clock = trio.testing.MockClock
COUNTED_IN_FOUR_OF_SIX = TOKENS * 4 // 6


def _vector(seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(seed))


def _contribution(anchor_N: torch.Tensor, theta_N: torch.Tensor) -> EncodedContribution:
    return encode_contribution(anchor_N, theta_N, TOKENS, CODEC, GRID)


def _roots(root: Root) -> list[Root]:
    """The first party's contribution, and what the others offered."""
    return [root, Root(b"o" * 32), Root(b"p" * 32)]


def _close(got_N: torch.Tensor | None, expected_N: torch.Tensor) -> None:
    assert got_N is not None
    torch.testing.assert_close(got_N, expected_N, rtol=1e-5, atol=1e-5)


# --- one more commit ----------------------------------------------------------------------------------------------------------


@dataclass
class Committed:
    """The first party's offer on the genesis and the commit that came of it."""

    mine: EncodedContribution
    commit: MadeCommit
    applied: AppliedCommit

    def adopt(self, contribution: EncodedContribution | None, mixed: Mixed | None = None) -> ParameterShift:
        record = self.commit.record
        return adopt_commit(self.applied, record, record.slices[0].reducer, contribution, GRID, mixed)


@asynccontextmanager
async def _committed(**changes: Sequence[int]) -> AsyncIterator[Committed]:
    async with open_world() as world:
        party = world.parties[0]
        mine = _contribution(world.genesis.anchor_N, _vector(8))
        commit = world.commit_on(world.start, 5, roots=_roots(mine.root), **changes)  # type: ignore[arg-type]
        yield Committed(mine, commit, await party.apply(commit))


async def test_a_counted_contribution_leaves_only_the_work_since_the_snapshot_on_the_new_anchor(
    autojump_clock: Clock,
) -> None:
    async with _committed() as done:
        adoption = done.adopt(done.mine)
        work_N = _vector(9, scale=0.01)
        assert adoption.shift_N is not None
        _close(done.mine.theta_N + work_N + adoption.shift_N, done.applied.state.anchor_N + work_N)
        assert (adoption.credited_tokens, adoption.remark) == (TOKENS, "")


async def test_chunks_that_were_not_counted_keep_all_work_and_only_the_counted_tokens_are_spent(
    autojump_clock: Clock,
) -> None:
    async with _committed(omitted_from_last_slice=[0]) as done:
        adoption = done.adopt(done.mine)
        new_N, old_N, shift_N = done.applied.state.anchor_N, done.applied.previous_anchor_N, adoption.shift_N
        assert shift_N is not None
        _close(shift_N[:40], new_N[:40] - done.mine.theta_N[:40])
        _close(shift_N[40:], new_N[40:] - old_N[40:])
        assert adoption.credited_tokens == COUNTED_IN_FOUR_OF_SIX


async def test_chunks_that_disagree_are_spent_as_if_they_were_counted(autojump_clock: Clock) -> None:
    async with _committed() as done:
        record = done.commit.record
        me = record.slices[0].reducer
        slices = tuple(replace(part, disagreeing=(Disagreement(me, 1, -100),)) for part in record.slices)
        adoption = adopt_commit(done.applied, replace(record, slices=slices), me, done.mine, GRID, None)
        expected = done.adopt(done.mine)
        assert adoption.shift_N is not None
        assert expected.shift_N is not None
        assert torch.equal(adoption.shift_N, expected.shift_N)
        assert adoption.credited_tokens == TOKENS


async def test_work_that_was_not_counted_moves_along_with_the_anchor_and_stays_ready(autojump_clock: Clock) -> None:
    async with _committed(members=[1, 2]) as done:
        adoption = adopt_commit(done.applied, done.commit.record, done.commit.link.roster[0], None, GRID)
        _close(adoption.shift_N, done.applied.state.anchor_N - done.applied.previous_anchor_N)
        assert adoption.credited_tokens == 0


async def test_a_contribution_of_an_earlier_session_of_ours_takes_nothing_out_of_this_ones_work(
    autojump_clock: Clock,
) -> None:
    """Tokens counted twice after a restart: seed 31 of the default stories."""
    async with _committed() as done:
        of_this_session = _contribution(done.applied.previous_anchor_N, _vector(77))
        for contribution in (of_this_session, None):
            adoption = done.adopt(contribution)
            _close(adoption.shift_N, done.applied.state.anchor_N - done.applied.previous_anchor_N)
            assert adoption.credited_tokens == 0


async def test_a_shift_is_by_chunks_and_a_stranger_only_follows_the_anchor(autojump_clock: Clock) -> None:
    async with _committed(omitted_from_last_slice=[0]) as done:
        new_N, old_N, theta_N = done.applied.state.anchor_N, done.applied.previous_anchor_N, done.mine.theta_N
        me = done.commit.record.slices[0].reducer
        shift_N = adoption_shift(done.applied, done.commit.record, me, done.mine, GRID)
        torch.testing.assert_close(shift_N[:40], new_N[:40] - theta_N[:40], rtol=0, atol=0)
        torch.testing.assert_close(shift_N[40:], new_N[40:] - old_N[40:], rtol=0, atol=0)


# --- mixing -------------------------------------------------------------------------------------------------------------------


def _moved(theta_N: torch.Tensor, adoption: ParameterShift) -> torch.Tensor:
    """As the trainer does it."""
    assert adoption.shift_N is not None
    moved_N = theta_N.clone()
    for part in kept_parts(adoption.kept, GRID):
        moved_N[part.begin : part.stop] *= part.share
    return moved_N + adoption.shift_N


@pytest.mark.parametrize("alpha", [0.0, 0.5])
async def test_a_commit_is_mixed_into_theta_where_it_counted_our_contribution(
    autojump_clock: Clock, alpha: float
) -> None:
    async with _committed(omitted_from_last_slice=[0]) as done:
        adoption = done.adopt(done.mine, Mixed(alpha, None))
        theta_N = done.mine.theta_N + _vector(9, scale=0.01)
        new_N, old_N = done.applied.state.anchor_N, done.applied.previous_anchor_N
        moved_N = _moved(theta_N, adoption)
        _close(moved_N[:40], alpha * theta_N[:40] + (1.0 - alpha) * new_N[:40])
        _close(moved_N[40:], theta_N[40:] + new_N[40:] - old_N[40:])
        assert adoption.credited_tokens == COUNTED_IN_FOUR_OF_SIX


async def test_what_was_not_counted_is_never_mixed_away(autojump_clock: Clock) -> None:
    async with _committed(members=[1, 2]) as done:
        adoption = done.adopt(done.mine, Mixed(0.5, None))
        assert adoption.kept == {}
        _close(adoption.shift_N, done.applied.state.anchor_N - done.applied.previous_anchor_N)


async def test_of_what_members_offer_after_mixing_nothing_is_left_in_the_sum_of_all(autojump_clock: Clock) -> None:
    """Three deltas and their mean as the outer step: each goes on with a part of its deviation, together none."""
    async with open_world() as world:
        old_N = world.genesis.anchor_N
        offered = [_contribution(old_N, old_N - _vector(seed)) for seed in (1, 2, 3)]
        commit = world.commit_on(world.start, 5, roots=[one.root for one in offered])
        new_N = old_N - torch.stack([_vector(seed) for seed in (1, 2, 3)]).mean(dim=0)
        applied = await world.parties[0].apply(commit)
        applied = replace(applied, state=replace(applied.state, anchor_N=new_N))
        offered_next = [
            new_N - _moved(one.theta_N, adopt_commit(applied, commit.record, party.peer, one, GRID, Mixed(0.5, None)))
            for party, one in zip(world.parties, offered, strict=True)
        ]
        _close(torch.stack(offered_next).sum(dim=0), torch.zeros_like(new_N))
        assert float(offered_next[0].abs().max()) > 0.1


async def test_with_feedback_what_the_codec_left_out_is_in_the_residual_alone(autojump_clock: Clock) -> None:
    async with _committed() as done:
        coarse = codec_by_name("int4")
        old_N, new_N = done.applied.previous_anchor_N, done.applied.state.anchor_N
        mine = replace(done.mine, chunks=encode_chunks(old_N - done.mine.theta_N, coarse, GRID))
        sent_N = torch.cat(
            [coarse.decode(chunk, stop - begin) for chunk, (begin, stop) in zip(mine.chunks, _spans(), strict=True)]
        )
        moved_N = _moved(mine.theta_N, done.adopt(mine, Mixed(0.5, coarse)))
        _close(new_N - moved_N, 0.5 * (sent_N - (old_N - new_N)))


def _spans() -> list[tuple[int, int]]:
    return [GRID.bounds(chunk) for chunk in range(GRID.num_chunks)]


async def test_two_adoptions_together_are_the_one_after_the_other(autojump_clock: Clock) -> None:
    first = ParameterShift(_vector(1), 30, kept={0: 0.5, 1: 0.25})
    second = ParameterShift(_vector(2), 12, kept={1: 0.5, 3: 0.0})
    theta_N = _vector(3)
    moved_N = _moved(_moved(theta_N, first), second)
    both = one_after_another(first, second, GRID)
    _close(_moved(theta_N, both), moved_N)
    assert both.credited_tokens == 42
    assert both.shift_N is first.shift_N, "it takes no memory"
    _close(second.shift_N, _vector(2))


async def test_neighbouring_chunks_with_one_share_are_one_part(autojump_clock: Clock) -> None:
    spans = _spans()
    parts = kept_parts({0: 0.5, 1: 0.5, 2: 0.25, 4: 0.25}, GRID)
    assert [(part.begin, part.stop, part.share) for part in parts] == [
        (0, spans[1][1], 0.5),
        (*spans[2], 0.25),
        (*spans[4], 0.25),
    ]


# --- another lineage ----------------------------------------------------------------------------------------------------------


@dataclass
class Forked:
    """The first party alone on one side of a fork at the genesis, the two others on the other."""

    world: RoundWorld
    lost: list[MadeCommit]
    won: list[MadeCommit]
    prepared: PreparedSwitch
    offers: dict[Root, EncodedContribution]
    theta_N: torch.Tensor
    """The first party's local parameters on its own side."""

    work_N: torch.Tensor
    """The work that it trained on top of its last commit."""

    def switch(self) -> ParameterShift:
        lost = [commit.link for commit in self.lost]
        me = self.world.parties[0]
        return adopt_switch(self.prepared, lost, me.chain.state.anchor_N, me.peer, self.offers, CODEC, GRID)


@asynccontextmanager
async def _forked(*, is_counted_by_others: bool = False, num_lost: int = 1) -> AsyncIterator[Forked]:
    """The first party offered its work on the genesis; `is_counted_by_others`: they had it, and counted it as well."""
    async with open_world() as world:
        me, other = world.parties[:2]
        theta_N = _vector(8, scale=0.1)
        offers: dict[Root, EncodedContribution] = {}
        lost: list[MadeCommit] = []
        for seed in range(num_lost):
            mine = _contribution(me.chain.state.anchor_N, theta_N)
            offers[mine.root] = mine
            parent = lost[-1].link if lost else world.start
            lost.append(world.commit_on(parent, 20 + seed, members=[0], roots=_roots(mine.root), is_lone=True))
            shift_N = adopt_commit(await me.apply(lost[-1]), lost[-1].record, me.peer, mine, GRID).shift_N
            assert shift_N is not None
            work_N = _vector(30 + seed, scale=0.01)
            theta_N = theta_N + shift_N + work_N
        members = [0, 1, 2] if is_counted_by_others else [1, 2]
        first = world.commit_on(world.start, 40, members=members, voters=[1, 2], roots=_roots(next(iter(offers))))
        won = [first, world.commit_on(first.link, 41, members=[1, 2], voters=[1, 2])]
        for commit in won:
            await other.apply(commit)
        prepared = PreparedSwitch(
            world.genesis.head, tree_nodes(won), world.genesis.anchor_N, other.chain.state, other.chain.root
        )
        yield Forked(world, lost, won, prepared, offers, theta_N, work_N)


async def test_a_switch_puts_all_work_since_the_fork_on_the_anchor_that_won_and_gives_its_tokens_back(
    autojump_clock: Clock,
) -> None:
    async with _forked(num_lost=2) as forked:
        adoption = forked.switch()
        assert adoption.shift_N is not None
        since_fork_N = forked.theta_N - forked.world.genesis.anchor_N
        _close(forked.theta_N + adoption.shift_N, forked.prepared.state.anchor_N + since_fork_N)
        assert adoption.credited_tokens == -2 * TOKENS
        assert adoption.remark == ""


async def test_a_contribution_counted_on_the_winning_lineage_is_not_applied_twice(autojump_clock: Clock) -> None:
    """Both sides counted the one offer on the fork: it is in the anchor that won, so it comes out of what is kept."""
    async with _forked(is_counted_by_others=True) as forked:
        adoption = forked.switch()
        assert adoption.shift_N is not None
        offered_N = next(iter(forked.offers.values())).theta_N - forked.world.genesis.anchor_N
        kept_N = forked.theta_N - forked.world.genesis.anchor_N - offered_N
        _close(forked.theta_N + adoption.shift_N, forked.prepared.state.anchor_N + kept_N)
        assert adoption.credited_tokens == 0, "given back by one side, spent on the other"


async def test_a_rewind_takes_the_local_work_since_the_good_commit_along_and_moves_nobody_who_lost_nothing(
    autojump_clock: Clock,
) -> None:
    async with _forked(num_lost=2) as forked:
        node, me = forked.prepared.path[0], forked.world.parties[0]
        record = node.link.record
        assert record is not None
        rewound = replace(record, slices=(), contributors=(), attested=None, attestations=(), ballot=Ballot(1, me.peer))
        path = (TreeNode(replace(node.link, content=rewound), node.certificate),)
        prepared = replace(forked.prepared, path=path)
        lost, anchor_N = [commit.link for commit in forked.lost], me.chain.state.anchor_N
        adoption = adopt_switch(prepared, lost, anchor_N, me.peer, forked.offers, CODEC, GRID)
        assert (adoption.shift_N, adoption.credited_tokens) == (None, 0)
        assert adoption.remark == "the host took 2 rounds back: starting from its last good commit"
        ahead = adopt_switch(prepared, [], anchor_N, me.peer, forked.offers, CODEC, GRID)
        assert ahead.shift_N is not None


async def test_of_a_contribution_that_won_in_part_only_the_counted_chunks_come_out(autojump_clock: Clock) -> None:
    async with _forked(is_counted_by_others=True) as forked:
        root = next(iter(forked.offers))
        partly = forked.world.commit_on(
            forked.world.start, 40, omitted_from_last_slice=[0], voters=[1, 2], roots=_roots(root)
        )
        forked.prepared = replace(forked.prepared, path=tree_nodes([partly]))
        shift_N = forked.switch().shift_N
        moved_N = forked.prepared.state.anchor_N - forked.world.genesis.anchor_N
        offered_N = forked.offers[root].theta_N - forked.world.genesis.anchor_N
        assert shift_N is not None
        _close(shift_N[:40], moved_N[:40] - offered_N[:40])
        _close(shift_N[40:], moved_N[40:])
        assert forked.switch().credited_tokens == COUNTED_IN_FOUR_OF_SIX - TOKENS


async def test_work_that_was_counted_and_is_no_longer_here_is_rather_lost_than_applied_twice(
    autojump_clock: Clock,
) -> None:
    async with _forked(is_counted_by_others=True) as forked:
        forked.offers.clear()
        adoption = forked.switch()
        assert (adoption.shift_N, adoption.credited_tokens) == (None, 0)
        assert "work of ours that is gone" in adoption.remark


async def test_without_the_anchor_at_the_fork_only_the_work_since_the_last_commit_is_offered_again(
    autojump_clock: Clock,
) -> None:
    async with _forked(num_lost=2) as forked:
        forked.prepared = replace(forked.prepared, fork_anchor_N=None)
        adoption = forked.switch()
        assert adoption.shift_N is not None
        _close(forked.theta_N + adoption.shift_N, forked.prepared.state.anchor_N + forked.work_N)
        assert adoption.credited_tokens == 0
        assert "the fork is gone" in adoption.remark


async def test_without_the_anchor_at_the_fork_what_both_sides_counted_is_not_taken_out_of_later_work(
    autojump_clock: Clock,
) -> None:
    async with _forked(is_counted_by_others=True) as forked:
        forked.prepared = replace(forked.prepared, fork_anchor_N=None)
        adoption = forked.switch()
        assert adoption.shift_N is not None
        _close(forked.theta_N + adoption.shift_N, forked.prepared.state.anchor_N + forked.work_N)
        assert adoption.credited_tokens == 0


async def test_a_jump_ahead_on_our_own_lineage_keeps_what_was_not_counted(autojump_clock: Clock) -> None:
    """Far behind: the fork is our head, nothing is given up."""
    async with _forked(is_counted_by_others=True) as forked:
        forked.lost = []
        adoption = forked.switch()
        offered_N = next(iter(forked.offers.values())).theta_N - forked.world.genesis.anchor_N
        moved_N = forked.prepared.state.anchor_N - forked.world.genesis.anchor_N
        _close(adoption.shift_N, moved_N - offered_N)
        assert adoption.credited_tokens == TOKENS


# --- with error feedback ------------------------------------------------------------------------------------------------------


@dataclass
class Fed:
    """A peer that offered work with a residual in it, left for a lone lineage, and is about to switch to what the others did."""

    forked: Forked
    feedback: Feedback
    sent_N: torch.Tensor
    """The offer on the fork as the others decoded it."""

    def switch(self) -> tuple[ParameterShift, Feedback]:
        lost = [commit.link for commit in self.forked.lost]
        me = self.forked.world.parties[0]
        anchor_N = me.chain.state.anchor_N
        adoption = adopt_switch(
            self.forked.prepared, lost, anchor_N, me.peer, self.forked.offers, INT4, GRID, self.feedback
        )
        assert adoption.feedback is not None
        return adoption, adoption.feedback

    def owed(self, theta_N: torch.Tensor, anchor_N: torch.Tensor, feedback: Feedback) -> torch.Tensor:
        """All that is still to be offered."""
        return anchor_N - theta_N + feedback.residual.values_N


EARLIER = Root(b"e" * 32)
INT4 = codec_by_name("int4")


@asynccontextmanager
async def _fed(*, is_counted_here: bool, is_saved: bool = True, has_gone_on: bool = False) -> AsyncIterator[Fed]:
    """`is_counted_here`: by our own lone commit, too. `has_gone_on`: a later offer of ours, with the same work, was counted alone."""
    async with open_world() as world:
        me, other = world.parties[:2]
        feedback = Feedback(1.0, GRID, no_residual(GRID))
        earlier = encode_fed(_vector(5), torch.zeros(60), feedback.residual, 1.0, INT4, GRID)
        feedback = feedback.offered(EARLIER, earlier).counted(EARLIER, range(GRID.num_chunks))
        theta_N = _vector(8, scale=0.1)
        mine, fed = encode_with_feedback(world.genesis.anchor_N, theta_N, TOKENS, INT4, feedback)
        feedback = feedback.offered(mine.root, fed)
        sent_N = torch.cat([INT4.decode(chunk, 10) for chunk in mine.chunks])
        offers = {mine.root: mine}
        if not is_saved or has_gone_on:
            feedback = replace(feedback, pending=None)
        lost_root = mine.root
        if has_gone_on:
            later, later_fed = encode_with_feedback(world.genesis.anchor_N, theta_N, TOKENS, INT4, feedback)
            lost_root = Root(b"l" * 32)
            feedback = feedback.offered(lost_root, later_fed)
            offers[lost_root] = replace(later, tree=MerkleTree.over([lost_root]))
        is_lost = is_counted_here or has_gone_on
        lost = [world.commit_on(world.start, 20, members=[0], roots=_roots(lost_root), is_lone=True)] if is_lost else []
        for commit in lost:
            applied = await me.apply(commit)
            shift_N = adopt_commit(applied, commit.record, me.peer, offers[lost_root], GRID).shift_N
            assert shift_N is not None
            theta_N = theta_N + shift_N
            feedback = feedback.counted(lost_root, range(GRID.num_chunks))
        won = [world.commit_on(world.start, 40, voters=[1, 2], roots=_roots(mine.root))]
        await other.apply(won[0])
        prepared = PreparedSwitch(
            world.genesis.head, tree_nodes(won), world.genesis.anchor_N, other.chain.state, other.chain.root
        )
        yield Fed(Forked(world, lost, won, prepared, offers, theta_N, theta_N), feedback, sent_N)


@pytest.mark.parametrize("is_counted_here", [False, True])
@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("has_gone_on", [False, True])
async def test_a_switch_takes_what_the_others_counted_out_of_what_is_owed_and_nothing_else(
    autojump_clock: Clock, is_counted_here: bool, is_saved: bool, has_gone_on: bool
) -> None:
    async with _fed(is_counted_here=is_counted_here, is_saved=is_saved, has_gone_on=has_gone_on) as fed:
        forked = fed.forked
        adoption, after = fed.switch()
        assert adoption.shift_N is not None
        before_N = fed.owed(forked.theta_N, forked.world.genesis.anchor_N, fed.feedback)
        after_N = fed.owed(forked.theta_N + adoption.shift_N, forked.prepared.state.anchor_N, after)
        _close(after_N, before_N - fed.sent_N)


async def test_the_winning_side_alone_counted_it_the_pending_residual_applies_and_the_whole_delta_is_out_of_theta(
    autojump_clock: Clock,
) -> None:
    async with _fed(is_counted_here=False) as fed:
        adoption, after = fed.switch()
        assert adoption.shift_N is not None
        assert fed.feedback.pending is not None
        assert torch.equal(after.residual.values_N, fed.feedback.pending.values_N)
        _close(fed.forked.theta_N + adoption.shift_N, fed.forked.prepared.state.anchor_N)


async def test_both_sides_counted_it_the_residual_is_kept_and_not_made_again(autojump_clock: Clock) -> None:
    async with _fed(is_counted_here=True) as fed:
        adoption, after = fed.switch()
        assert adoption.shift_N is not None
        assert torch.equal(after.residual.values_N, fed.feedback.residual.values_N)
        assert after.residual.values_N.any()


async def test_the_winning_side_did_not_count_us_the_residual_is_kept(autojump_clock: Clock) -> None:
    async with _fed(is_counted_here=True) as fed:
        forked = fed.forked
        won = forked.world.commit_on(forked.world.start, 41, members=[1, 2])
        forked.prepared = replace(forked.prepared, path=tree_nodes([won]))
        _, after = fed.switch()
        assert after is fed.feedback


async def test_a_residual_that_went_out_with_what_won_does_not_outlive_the_worker(autojump_clock: Clock) -> None:
    """The part that was not pending goes into theta, which dies with the worker, so it cannot be offered twice."""
    async with _fed(is_counted_here=False, is_saved=False) as fed:
        _, after = fed.switch()
        assert not after.residual.values_N.any()


async def test_where_the_trainer_starts_from_the_anchor_the_residual_still_follows_what_was_counted(
    autojump_clock: Clock,
) -> None:
    """As after a restart: the offers are gone, what was pending is on the disk."""
    async with _fed(is_counted_here=False) as fed:
        fed.forked.offers.clear()
        adoption, after = fed.switch()
        assert adoption.shift_N is None
        assert fed.feedback.pending is not None
        assert torch.equal(after.residual.values_N, fed.feedback.pending.values_N)


@pytest.mark.parametrize("may_overwrite", [False, True])
async def test_a_rewind_that_comes_as_the_next_commit_moves_no_parameter(
    may_overwrite: bool, autojump_clock: Clock
) -> None:
    async with open_world() as world:
        me = world.parties[0]
        (commit,) = await world.grow(world.parties[:2], 1)
        record = decode_record(seal_rewind(AUTHORITY, RUN_ID, commit.link, Rewind(1, commit.link.commit, 1)).record)
        theta_N, anchor_N = _vector(2), me.chain.state.anchor_N
        offered = replace(_contribution(anchor_N, theta_N.clone()), may_overwrite_theta=may_overwrite)
        for mixed in (None, Mixed(0.5, None)):
            shift = adopt_commit(AppliedCommit(me.chain.state, anchor_N), record, me.peer, offered, GRID, mixed)
            assert shift.credited_tokens == 0
            assert torch.equal(_moved(theta_N, shift), theta_N)
