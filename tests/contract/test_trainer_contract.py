"""The contract of every form of Trainer: theta and its token count stay together through load, snapshot, shift and credit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import trio

from averaging.network.seams.interfaces import KeptPart, LendsShiftRoom, NoPart, Snapshot, Trainer, TrainerProgress
from tests.anchors import reads
from tests.contract.trainer_worlds import (
    Check,
    TrainerWorld,
    WorkerWorld,
    forked_workers,
    open_islands_world,
    open_worker_world,
    run_simulated,
)

Runner = Callable[[Check], None]


@pytest.fixture(scope="module")
def _forked() -> Iterator[None]:
    with forked_workers():
        yield


@pytest.fixture(scope="module")
def worker_world(_forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_worker_world(tmp_path_factory.mktemp("training")) as run:
        yield run


@pytest.fixture(scope="module")
def islands_world(_forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_islands_world(tmp_path_factory.mktemp("islands")) as run:
        yield run


@pytest.fixture(scope="module")
def ranks_world(_forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_worker_world(tmp_path_factory.mktemp("ranks"), num_ranks=2) as run:
        yield run


@pytest.fixture(params=["simulated", "worker", "islands", "ranks"])
def run(request: pytest.FixtureRequest) -> Runner:
    if request.param == "simulated":
        return run_simulated
    runner: Runner = request.getfixturevalue(f"{request.param}_world")
    return runner


async def _until_ready(trainer: Trainer, at_least: int) -> TrainerProgress:
    while (progress := trainer.progress()).tokens_ready < at_least:
        await trio.sleep(0.01)
    return progress


async def _assert_theta(
    world: TrainerWorld,
    snapshot: Snapshot,
    expected_N: torch.Tensor,
    at_step: int,
    theta_N: torch.Tensor | None = None,
) -> None:
    """The snapshot, or its theta as it was copied, is `expected_N` of `at_step` and what was trained since, to the last bit but for
    the world's rounding.
    """
    moved_N, found_N = (
        await world.moved(at_step, world.position(snapshot)),
        snapshot.theta_N if theta_N is None else theta_N,
    )
    assert torch.allclose(found_N, expected_N + moved_N, rtol=0.0, atol=world.rounding)


def test_load_sets_theta_to_the_anchor_and_forgets_the_ready_tokens(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        trained = (await _until_ready(trainer, 5 * world.step_tokens)).tokens_trained
        async with world.still():
            anchor_N = world.anchor_N + 0.5
            await trainer.load(anchor_N, schedule_tokens=1000)
            assert trainer.progress().tokens_ready == 0
            assert trainer.progress().tokens_trained >= trained
            expected_N = anchor_N.clone()
            anchor_N.zero_()  # the caller's again
            snapshot = await trainer.snapshot()
            await _assert_theta(world, snapshot, expected_N, world.position(snapshot) - snapshot.num_steps)

    run(check)


def test_a_snapshot_counts_exactly_the_steps_since_the_load(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        await _until_ready(world.trainer, 3 * world.step_tokens)
        first = await world.trainer.snapshot()
        longest_tokens = first.num_steps * world.step_tokens
        assert 3 * world.step_tokens <= first.tokens <= world.num_islands * longest_tokens
        assert first.tokens >= longest_tokens
        assert not torch.equal(first.theta_N, world.anchor_N)
        await _until_ready(world.trainer, first.tokens + world.step_tokens)
        second = await world.trainer.snapshot()
        steps = world.position(second) - world.position(first)
        assert second.tokens - first.tokens == steps * world.step_tokens > 0
        assert second.next_step >= first.next_step, "equal where an island that was behind took the steps"

    run(check)


def test_a_shift_leaves_of_theta_the_share_that_is_named(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        await _until_ready(world.trainer, world.step_tokens)
        async with world.still():
            first = await world.trainer.snapshot()
            expected_N, shift_N = first.theta_N.clone(), torch.ones_like(world.anchor_N)
            kept = (KeptPart(2, 9, 0.5), KeptPart(20, 21, 0.0))
            await world.trainer.shift(shift_N, credited_tokens=0, schedule_tokens=0, kept=kept)
            expected_N[2:9] *= 0.5
            expected_N[20] = 0.0
            await _assert_theta(world, await world.trainer.snapshot(), expected_N + shift_N, world.position(first))

    run(check)


def test_a_snapshot_stays_as_it_is_while_training_goes_on_and_is_the_callers_to_overwrite(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        await _until_ready(world.trainer, world.step_tokens)
        first = await world.trainer.snapshot()
        kept_N = first.theta_N.clone()
        assert first.may_overwrite
        assert (first.theta_N.dtype, first.theta_N.device.type) == (torch.float32, "cpu")
        await _until_ready(world.trainer, first.tokens + world.step_tokens)
        async with world.still():
            await world.trainer.set_anchor(world.anchor_N)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.trainer.evaluate, reads(world.anchor_N))
                await trio.sleep(0.1)
                assert torch.equal(first.theta_N, kept_N)
                nursery.cancel_scope.cancel()
            second = await world.trainer.snapshot()
            assert not torch.equal(second.theta_N, kept_N)
            expected_N = second.theta_N.clone()
            second.theta_N.zero_()
            third = await world.trainer.snapshot()
            await _assert_theta(world, third, expected_N, world.position(second))

    run(check)


def test_training_goes_on_through_a_snapshot(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        before = await _until_ready(world.trainer, world.step_tokens)
        snapshot = await world.trainer.snapshot()
        assert snapshot.tokens >= before.tokens_ready > 0
        after = await _until_ready(world.trainer, snapshot.tokens + 2 * world.step_tokens)
        assert after.tokens_trained > before.tokens_trained

    run(check)


@pytest.mark.parametrize("kept_steps", [0, 2])
def test_a_shift_adds_exactly_and_takes_the_credited_tokens_off(run: Runner, kept_steps: int) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        await _until_ready(trainer, 4 * world.step_tokens)
        async with world.still():
            before = await trainer.snapshot()
            ready = trainer.progress().tokens_ready
            trained = trainer.progress().tokens_trained
            credited = before.tokens - kept_steps * world.step_tokens
            before_N, shift_N = before.theta_N.clone(), torch.linspace(-0.3, 0.7, len(before.theta_N))
            handed_N = shift_N.clone()
            await trainer.shift(handed_N, credited_tokens=credited, schedule_tokens=credited)
            handed_N.zero_()  # the caller's again
            assert trainer.progress().tokens_ready == ready - credited == kept_steps * world.step_tokens
            assert trainer.progress().tokens_trained == trained
            after = await trainer.snapshot()
            await _assert_theta(world, after, before_N + shift_N, world.position(before))
            trained_since = (world.position(after) - world.position(before)) * world.step_tokens
            assert after.tokens == before.tokens - credited + trained_since

    run(check)


def test_a_shift_in_the_memory_of_the_snapshot_is_added_as_any_other(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        await _until_ready(trainer, world.step_tokens)
        async with world.still():
            before = await trainer.snapshot()
            expected_N, shift_N = before.theta_N.clone(), torch.linspace(-0.3, 0.7, len(before.theta_N))
            before.theta_N.copy_(shift_N)
            await trainer.shift(before.theta_N, credited_tokens=before.tokens, schedule_tokens=before.tokens)
            await _assert_theta(world, await trainer.snapshot(), expected_N + shift_N, world.position(before))

    run(check)


def test_a_shift_that_is_made_in_a_lent_place_is_added_as_any_other_and_the_place_is_lent_again(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        if not isinstance(trainer, LendsShiftRoom):
            return
        await _until_ready(trainer, world.step_tokens)
        async with world.still():
            before = await trainer.snapshot()
            expected_N = before.theta_N.clone()
            assert trainer.shift_room() is None, "the snapshot lies there"
            await trainer.shift(torch.zeros_like(expected_N), credited_tokens=0, schedule_tokens=0)
            for _ in range(2):
                room_N = trainer.shift_room()
                if room_N is None:
                    assert not isinstance(world, WorkerWorld)
                    return
                with pytest.raises(NoPart):
                    await trainer.snapshot()
                room_N.copy_(torch.linspace(-0.3, 0.7, len(expected_N)))
                expected_N += room_N
                await trainer.shift(room_N, credited_tokens=0, schedule_tokens=0)
            await _assert_theta(world, await trainer.snapshot(), expected_N, world.position(before))

    run(check)


def test_what_is_trained_between_snapshot_and_shift_stays_ready(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        await _until_ready(trainer, 2 * world.step_tokens)
        before = await trainer.snapshot()
        await _until_ready(trainer, before.tokens + 3 * world.step_tokens)
        await trainer.shift(
            world.anchor_N - before.theta_N, credited_tokens=before.tokens, schedule_tokens=before.tokens
        )
        after = await trainer.snapshot()
        assert (
            after.tokens
            == (world.position(after) - world.position(before)) * world.step_tokens
            >= 3 * world.step_tokens
        )

    run(check)


def test_set_anchor_changes_neither_theta_nor_tokens(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        await _until_ready(trainer, 2 * world.step_tokens)
        async with world.still():
            before = await trainer.snapshot()
            before_N, progress = before.theta_N.clone(), trainer.progress()
            await trainer.set_anchor(world.anchor_N + 1.0)
            assert trainer.progress().tokens_ready == progress.tokens_ready
            after = await trainer.snapshot()
            await _assert_theta(world, after, before_N, world.position(before))
            assert after.tokens - before.tokens == (world.position(after) - world.position(before)) * world.step_tokens

    run(check)


def test_the_same_anchor_has_the_same_held_out_loss_whatever_is_trained_meanwhile(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer, one_N, other_N = world.trainer, world.anchor_N, world.anchor_N * 3.0
        losses = []
        for anchor_N in (one_N, other_N, one_N, other_N):
            losses.append(await trainer.evaluate(reads(anchor_N)))
            await _until_ready(trainer, trainer.progress().tokens_ready + world.step_tokens)
        assert losses[:2] == losses[2:]
        assert losses[0] != losses[1]

    run(check)


def test_an_evaluation_leaves_theta_the_tokens_and_the_callers_anchor_alone(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer, anchor_N = world.trainer, world.anchor_N * 3.0
        await _until_ready(trainer, 2 * world.step_tokens)
        async with world.still():
            before = await trainer.snapshot()
            before_N, ready = before.theta_N.clone(), trainer.progress().tokens_ready
            await trainer.shift(torch.zeros_like(anchor_N), credited_tokens=0, schedule_tokens=0)
            await trainer.evaluate(reads(anchor_N))
            assert trainer.progress().tokens_ready == ready
            assert torch.equal(anchor_N, world.anchor_N * 3.0)
            await _assert_theta(world, await trainer.snapshot(), before_N, world.position(before))

    run(check)


def test_the_counters_fall_by_credit_and_load_only(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        seen = [await _until_ready(trainer, 2 * world.step_tokens)]

        async def look_on(*, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            while True:
                seen.append(trainer.progress())
                await trio.sleep(0.005)

        async with trio.open_nursery() as nursery:
            await nursery.start(look_on)
            snapshot = await trainer.snapshot()
            await trainer.set_anchor(snapshot.theta_N.clone())
            await trainer.shift(torch.zeros_like(world.anchor_N), credited_tokens=0, schedule_tokens=0)
            await trainer.evaluate(reads(world.anchor_N))
            await _until_ready(trainer, snapshot.tokens + 3 * world.step_tokens)
            nursery.cancel_scope.cancel()
        ready = [progress.tokens_ready for progress in seen]
        trained = [progress.tokens_trained for progress in seen]
        assert ready == sorted(ready)
        assert trained == sorted(trained)
        assert ready[-1] - ready[0] == trained[-1] - trained[0] > 0
        assert {(progress.state, progress.restarts) for progress in seen} == {("training", seen[0].restarts)}

        async with world.still():
            before = trainer.progress()
            await trainer.shift(torch.zeros_like(world.anchor_N), credited_tokens=snapshot.tokens, schedule_tokens=0)
            credited = trainer.progress()
            await trainer.load(world.anchor_N, schedule_tokens=0)
            loaded = trainer.progress()
        assert before.tokens_ready - credited.tokens_ready == snapshot.tokens
        assert loaded.tokens_ready == 0
        assert before.tokens_trained == credited.tokens_trained == loaded.tokens_trained

    run(check)


def test_a_shift_after_the_worker_died_loads_the_latest_anchor_instead(run: Runner) -> None:
    async def check(world: TrainerWorld) -> None:
        trainer = world.trainer
        await trainer.set_anchor(world.anchor_N)
        await _until_ready(trainer, 2 * world.step_tokens)
        async with world.still():
            made_for = await trainer.snapshot()
            await world.lose_work()
            assert trainer.progress().tokens_ready == 0
            adopted_N = world.anchor_N + 0.25
            await trainer.set_anchor(adopted_N)
            shift_N = adopted_N - made_for.theta_N
            await trainer.shift(shift_N, credited_tokens=made_for.tokens, schedule_tokens=made_for.tokens)
            assert trainer.progress().tokens_ready == 0
            after = await trainer.snapshot()
            after_N = after.theta_N.clone()
            # From here on theta is known again, and a shift is a shift.
            await trainer.shift(torch.ones_like(adopted_N), credited_tokens=0, schedule_tokens=0)
            shifted = await trainer.snapshot()
            await _assert_theta(world, after, adopted_N, world.position(after) - after.num_steps, after_N)
            await _assert_theta(world, shifted, after_N + 1.0, world.position(after))

    run(check)
