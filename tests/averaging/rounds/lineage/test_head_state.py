"""A commit moves the vectors of the state in place, unless somebody reads them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
import torch
import trio
import trio.testing

from averaging.network.seams.interfaces import KeptPart, Snapshot, TrainerProgress
from averaging.rounds.lineage import next_state, updates
from averaging.rounds.lineage.adoption import AdoptionShift
from averaging.rounds.lineage.earlier_states import recomputed, state_at
from averaging.rounds.lineage.head_state import AppliedCommit
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import lend
from averaging.state.state import state_root
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError
from tests.averaging.rounds.round_world import GRID, MadeCommit, Party, RoundWorld, open_world, tree_nodes
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
T = TypeVar("T")


@asynccontextmanager
async def _two() -> AsyncIterator[tuple[RoundWorld, Party, Party]]:
    """A party that steps aside and one that steps in place, after a first commit: the genesis is never changed."""
    async with open_world() as world:
        aside, party = world.parties[:2]
        party.chain.held.steps_in_place = True
        first = world.commits(1)[0]
        for each in (aside, party):
            await _apply(each, first)
        yield world, aside, party


async def _apply(party: Party, commit: MadeCommit) -> AppliedCommit:
    await commit.write_results(party)
    begin = partial(AdoptionShift, commit.record, party.peer, None, GRID)
    applied = await party.chain.apply(commit.link, commit.certificate, begin)
    await party.chain.prove(applied)
    await party.chain.keep()
    return applied


async def test_a_step_in_place_takes_no_second_state_and_ends_at_the_same_bytes(autojump_clock: Clock) -> None:
    async with _two() as (world, aside, party):
        vectors = party.chain.state.vectors
        for commit in world.commits(4)[1:]:
            before_N = party.chain.state.anchor_N.clone()
            applied, other = await _apply(party, commit), await _apply(aside, commit)
            assert all(now is old for now, old in zip(party.chain.state.vectors, vectors, strict=True))
            assert party.chain.root == aside.chain.root == state_root(other.state, GRID)
            assert applied.shift_N is not None
            assert torch.equal(applied.shift_N, applied.state.anchor_N - before_N)


async def test_the_first_state_is_never_changed(autojump_clock: Clock) -> None:
    async with _two() as (world, _, party):
        assert not world.genesis.anchor_N.any()
        assert party.chain.state.anchor_N is not world.genesis.anchor_N


async def test_a_state_that_is_lent_stays_and_is_stepped_in_place_again_once_it_is_back(autojump_clock: Clock) -> None:
    async with _two() as (world, _, party):
        made = world.commits(4)
        loan = await lend(party.chain)
        before_N = loan.state.anchor_N.clone()
        applied = await _apply(party, made[1])
        assert torch.equal(loan.state.anchor_N, before_N)
        assert applied.previous_anchor_N is loan.state.anchor_N
        assert party.chain.state.anchor_N is not loan.state.anchor_N
        loan.give_back()
        loan.give_back()
        vectors = party.chain.state.vectors
        await _apply(party, made[2])
        assert party.chain.state.vectors[0] is vectors[0]


async def test_loans_that_end_in_many_threads_at_once_and_more_than_once_all_end(autojump_clock: Clock) -> None:
    """The last use of a vector may be in a thread of the offload."""
    async with _two() as (world, _, party):
        made = world.commits(4)
        loans = [await lend(party.chain) for _ in range(300)]
        together = threading.Barrier(8)

        def end(number: int) -> None:
            together.wait()
            for loan in loans[number::4]:  # each loan in two of the threads
                loan.give_back()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(end, (number % 4 for number in range(8))))
        vectors = party.chain.state.vectors
        await _apply(party, made[1])
        assert party.chain.state.vectors[0] is vectors[0]


async def test_the_state_at_the_head_that_a_switch_starts_from_stays(autojump_clock: Clock) -> None:
    async with _two() as (world, _, party):
        state = await state_at(party.chain, party.chain.head.commit)
        assert state is not None
        before = [vector_N.clone() for vector_N in state.vectors]
        for commit in world.commits(4)[1:]:
            await _apply(party, commit)
        assert all(torch.equal(now, old) for now, old in zip(state.vectors, before, strict=True))


class _Held:
    """An Offload that runs nothing before it is let go."""

    def __init__(self) -> None:
        self.goes_on = trio.Event()

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        await self.goes_on.wait()
        return function()


async def test_a_step_in_place_waits_for_a_copy_of_the_anchor_and_takes_no_second_state(autojump_clock: Clock) -> None:
    async with _two() as (world, _, party), trio.open_nursery() as nursery:
        vector_N, held, room_N = party.chain.state.anchor_N, _Held(), torch.empty(GRID.num_elements)
        before_N = vector_N.clone()
        nursery.start_soon(party.chain.held.copy_anchor, room_N, held)
        nursery.start_soon(_apply, party, world.commits(2)[1])
        await trio.sleep(60.0)
        assert torch.equal(vector_N, before_N)
        held.goes_on.set()
        await trio.sleep(1.0)
        assert torch.equal(room_N, before_N)
        assert party.chain.state.anchor_N is vector_N
        assert not torch.equal(vector_N, before_N)


async def test_the_state_of_a_switch_that_is_given_up_is_stepped_in_place_again(autojump_clock: Clock) -> None:
    async with _two() as (world, _, party):
        vector_N, state = party.chain.state.anchor_N, await state_at(party.chain, party.chain.head.commit)
        assert state is not None
        anchor_N, made = state.anchor_N, world.commits(4)
        del state
        await _apply(party, made[1])
        assert party.chain.state.anchor_N is not vector_N, "one of its vectors is still used"
        vector_N = party.chain.state.anchor_N
        state = await state_at(party.chain, party.chain.head.commit)
        del state, anchor_N
        await _apply(party, made[2])
        assert party.chain.state.anchor_N is vector_N


async def test_the_state_at_the_head_is_lent_after_a_step_and_not_within_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step whose chunks move in a thread takes a while."""
    async with _two() as (world, _, party), trio.open_nursery() as nursery:
        offload, lent = _Held(), list[torch.Tensor]()
        monkeypatch.setattr(party.chain.updates, "_tools", replace(party.chain.tools, offload=offload))
        commit, head = world.commits(2)[1], party.chain.head.commit

        async def take() -> None:
            state = await state_at(party.chain, head)
            assert state is not None
            lent.append(state.anchor_N.clone())

        before_N = party.chain.state.anchor_N.clone()
        nursery.start_soon(_apply, party, commit)
        await trio.sleep(1.0)
        nursery.start_soon(take)
        await trio.sleep(60.0)
        assert not lent
        offload.goes_on.set()
        await trio.sleep(1.0)
        assert party.chain.head.commit == commit.link.commit
        assert all(torch.equal(anchor_N, before_N) for anchor_N in lent), "made again from the disk"
        assert len(lent) == 1


async def test_damaged_bytes_are_found_before_the_first_value_moves(autojump_clock: Clock) -> None:
    async with _two() as (world, _, party):
        commit = world.commits(2)[1]
        await commit.write_results(party)
        root, part = party.chain.root, commit.record.slices[-1]
        party.spoil(f"results/{commit.record.parent.hex()}/{part.result_hash.hex()}")
        begin = partial(AdoptionShift, commit.record, party.peer, None, GRID)
        with pytest.raises(StorageError, match="damaged on our disk"):
            await party.chain.apply(commit.link, commit.certificate, begin)
        assert state_root(party.chain.state, GRID) == root
        assert party.chain.is_sound
        await _apply(party, commit)
        assert party.chain.head == commit.link


async def test_a_step_that_fails_half_way_is_not_gone_on_from_but_made_again(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _two() as (world, aside, party):
        second = world.commit_on(party.chain.head, 1, attested_root=party.chain.root)
        for each in (aside, party):
            await _apply(each, second)
        commit, calls = world.commit_on(second.link, 2, attested_root=party.chain.root), list[int]()

        def fails(*arguments: object) -> None:
            calls.append(len(calls))
            if len(calls) == 2:
                raise RemoteProtocolError("a bit that flipped", "none")
            next_state.step_in_place(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as failing:
            failing.setattr(updates, "step_in_place", fails)
            with pytest.raises(RemoteProtocolError, match="flipped"):
                await _apply(party, commit)
        assert not party.chain.is_sound
        with pytest.raises(LocalProtocolError, match="between two commits"):
            await _apply(party, commit)
        assert await state_at(party.chain, party.chain.head.commit) is None, "its values are of no use"
        with pytest.raises(LocalProtocolError, match="between two commits"):
            await party.chain.held.copy_anchor(torch.empty(GRID.num_elements), InlineOffload())
        rebuilt = await recomputed(party.chain)
        assert rebuilt is not None
        assert await party.chain.replace_state(rebuilt) is None, "by how much its anchor was wrong, nobody knows"
        await _apply(party, commit)
        await _apply(aside, commit)
        assert party.chain.root == aside.chain.root


# --- a trainer that gets its updates late ends at the anchor that the commits lead to -------------------------------------------


class LateTrainer:
    """Takes no update before `goes_on` is set, and trains nothing."""

    def __init__(self, theta_N: torch.Tensor) -> None:
        self.anchor_N, self.theta_N = theta_N, theta_N.clone()
        self.goes_on = trio.Event()
        self.restarts = self._life_of_theta = 0

    def die(self) -> None:
        """Its process dies, and the next one begins at once with the anchor as it is now."""
        self.restarts += 1
        self.theta_N = self.anchor_N.clone()

    def progress(self) -> TrainerProgress:
        has_theta = self.restarts == self._life_of_theta
        return TrainerProgress(0, 0, None, 0.0, self.restarts, "training", "", has_theta=has_theta)

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        self.anchor_N = anchor_N

    async def snapshot(self) -> Snapshot:
        raise NotImplementedError

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        await self.goes_on.wait()
        self.theta_N, self._life_of_theta = anchor_N.clone(), self.restarts

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        await self.goes_on.wait()
        if self._life_of_theta != self.restarts:
            await self.load(self.anchor_N, schedule_tokens=schedule_tokens)
        else:
            self.theta_N = self.theta_N + shift_N


class LendingTrainer(LateTrainer):
    """Lends one place for a shift, until the next update was taken, as peer/training/unit_rooms.py does."""

    def __init__(self, theta_N: torch.Tensor) -> None:
        super().__init__(theta_N)
        self.room_N, self.is_lent = torch.empty_like(theta_N), False
        self.lent = list[bool]()
        """Of each shift, whether it lay in that place."""

        self.takes_one = False
        """Whether it takes no more than one update when it may go on."""

    def shift_room(self) -> torch.Tensor | None:
        is_free, self.is_lent = not self.is_lent, True
        return self.room_N if is_free else None

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        await super().shift(shift_N, credited_tokens=credited_tokens, schedule_tokens=schedule_tokens, kept=kept)
        if self.takes_one:
            self.goes_on, self.takes_one = trio.Event(), False
        self.lent.append(shift_N.data_ptr() == self.room_N.data_ptr())
        self.room_N.fill_(torch.nan)
        self.is_lent = False


class Late:
    """A party with such a trainer."""

    def __init__(self, world: RoundWorld, nursery: trio.Nursery, kind: type[LateTrainer] = LateTrainer) -> None:
        self.world, self.party = world, world.parties[0]
        self.chain = self.party.chain
        self.chain.held.steps_in_place = True
        self.trainer = kind(self.chain.state.anchor_N)
        self.updates = TrainerUpdater(
            self.party.peer,
            self.chain,
            self.trainer,
            InlineOffload(),
            lambda own: own,  # type: ignore[arg-type]
        )
        nursery.start_soon(self.updates.run)

    async def apply(self, commit: MadeCommit) -> None:
        await commit.write_results(self.party)
        begin = partial(self.updates.begin_shift, commit.record, None)
        applied = await self.chain.apply(commit.link, commit.certificate, begin)
        await self.updates.commit(commit.link, commit.record, applied, None)
        await self.chain.prove(applied)
        await trio.sleep(0.1)

    async def assert_there(self) -> None:
        self.trainer.goes_on.set()
        await self.updates.wait_adopted()
        torch.testing.assert_close(self.trainer.theta_N, self.chain.state.anchor_N, rtol=1e-6, atol=1e-6)


@asynccontextmanager
async def _late(kind: type[LateTrainer] = LateTrainer) -> AsyncIterator[Late]:
    async with open_world() as world, trio.open_nursery() as nursery:
        late = Late(world, nursery, kind)
        await late.apply(world.commits(1)[0])
        await late.assert_there()
        late.trainer.goes_on = trio.Event()
        yield late
        nursery.cancel_scope.cancel()


async def test_commits_that_come_while_an_update_waits_are_each_added_once(autojump_clock: Clock) -> None:
    async with _late() as late:
        for commit in late.world.commits(5)[1:]:
            await late.apply(commit)
        await late.assert_there()


async def test_commits_make_their_shift_in_the_place_that_the_trainer_lends_and_beside_it_while_that_is_taken(
    autojump_clock: Clock,
) -> None:
    async with _late(LendingTrainer) as late:
        assert isinstance(late.trainer, LendingTrainer)
        made = late.world.commits(6)
        late.trainer.lent.clear()
        await late.apply(made[1])
        await late.assert_there()
        assert late.trainer.lent == [True]
        late.trainer.goes_on = trio.Event()
        for commit in made[2:]:
            await late.apply(commit)
        await late.assert_there()
        assert late.trainer.lent[1:] == [True, False], "later ones are one shift, and the first lies there"


async def test_a_commit_that_comes_while_an_update_beside_the_lent_place_waits_is_not_lost_with_that_place(
    autojump_clock: Clock,
) -> None:
    """The place is free then, but it is freed again once the waiting update was taken."""
    async with _late(LendingTrainer) as late:
        assert isinstance(late.trainer, LendingTrainer)
        made = late.world.commits(4)
        late.trainer.lent.clear()
        for commit in made[1:3]:
            await late.apply(commit)
        late.trainer.takes_one = True
        late.trainer.goes_on.set()
        await trio.sleep(0.1)
        assert late.trainer.lent == [True], "the other one waits"
        await late.apply(made[3])
        await late.assert_there()
        assert late.trainer.lent == [True, False, False]


async def test_commits_that_come_while_an_update_waits_move_the_state_in_place(autojump_clock: Clock) -> None:
    async with _late() as late:
        made = late.world.commits(6)
        vectors = late.chain.state.vectors
        for commit in made[1:]:
            await late.apply(commit)
            assert all(now is old for now, old in zip(late.chain.state.vectors, vectors, strict=True))
        await late.assert_there()


@pytest.mark.parametrize("dies_after", range(1, 6))
@pytest.mark.parametrize("goes_on_after", range(1, 6))
async def test_a_training_process_that_dies_while_updates_wait_ends_at_the_anchor(
    autojump_clock: Clock, dies_after: int, goes_on_after: int
) -> None:
    """It may begin anew with an anchor that has moved on, and must not be shifted there once more."""
    async with _late() as late:
        for number, commit in enumerate(late.world.commits(6)[1:], start=1):
            await late.apply(commit)
            if number == dies_after:
                late.trainer.die()
            if number == goes_on_after:
                late.trainer.goes_on.set()
                await trio.sleep(0.1)
                late.trainer.goes_on = trio.Event()
        await late.assert_there()


async def test_commits_are_each_added_once_that_come_while_somebody_reads_the_state(autojump_clock: Clock) -> None:
    async with _late() as late:
        made = late.world.commits(5)
        await late.apply(made[1])
        loan = await lend(late.chain)
        await late.apply(made[2])
        loan.give_back()
        for commit in made[3:]:
            await late.apply(commit)
        await late.assert_there()


async def test_a_commit_is_added_once_that_comes_after_a_switch_that_waits(autojump_clock: Clock) -> None:
    async with _late() as late:
        chain, fork = late.chain, late.chain.head
        mine, other = (late.world.commit_on(fork, seed, attested_root=chain.root) for seed in (2, 3))
        fork_state = await state_at(chain, fork.commit)
        assert fork_state is not None
        await other.write_results(late.party)
        path = tuple(tree_nodes([other]))
        state = await chain.replay(fork_state, path, is_own=False)
        prepared = await chain.prepared(fork.commit, path, fork_state, state)
        await late.apply(mine)
        left_N = chain.state.anchor_N
        await chain.switch(prepared)
        await late.updates.switch(prepared, [mine.link], left_N)
        await late.apply(late.world.commit_on(chain.head, 4, attested_root=chain.root))
        await late.assert_there()


async def test_a_trainer_that_has_every_update_costs_no_second_state(autojump_clock: Clock) -> None:
    async with _late() as late:
        late.trainer.goes_on.set()
        vector_N = late.chain.state.anchor_N
        for commit in late.world.commits(4)[1:]:
            await late.apply(commit)
            assert late.chain.state.anchor_N is vector_N
        await late.assert_there()
