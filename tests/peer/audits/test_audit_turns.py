"""The training process's part of audits, on a real trainer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from peer.audits import audit_turns
from peer.audits.audit_turns import (
    LONGEST_STEP_S,
    MOST_COPIES,
    MOST_KEPT,
    NO_MEMORY,
    NOT_KEPT,
    TOO_LATE,
    TOO_SLOW,
    AuditTurns,
)
from peer.audits.trainer_state import (
    TrainerState,
    delta_bytes,
    exchange_state,
    state_bytes,
    state_of,
    why_no_state,
)
from peer.training.local_training import Counters, LocalTrainer
from peer.training.worker_channel import RedoOrder
from protocol.errors import MachineError
from tests.peer.audits.redone_world import INNER, SIGNERS, STEPS, World, put_state, sent

AUDITOR, CONTRIBUTOR = 1, 0
NUM_OWN, TOKENS = 5, 100_000
"""Steps of the auditor in a round, and the run's tokens after it."""


@pytest.fixture
def turns(world: World) -> Iterator[AuditTurns]:
    """Of a trainer that stands at the beginning of its round, and goes back to where it was."""
    trainer = world.trainers[AUDITOR]
    before = state_of(trainer)
    put_state(trainer, world.begun[AUDITOR])
    yield AuditTurns(trainer)
    put_state(trainer, before)


def _order(
    world: World, *, turn_steps: int = STEPS, spans: tuple[tuple[int, int], ...] = ((0, 7), (100, 300))
) -> RedoOrder:
    return RedoOrder(
        schedule_tokens=world.begun[AUDITOR].schedule_tokens,
        peer=SIGNERS[CONTRIBUTOR].peer_id,
        first_step=world.first_step,
        num_steps=STEPS,
        turn_steps=turn_steps,
        spans=spans,
    )


def test_turns_from_a_kept_beginning_make_the_asked_values_of_the_redone_delta(world: World, turns: AuditTurns) -> None:
    assert turns.keep_next().problem == ""
    turns.note_load()
    taken = [turns.redo(_order(world, turn_steps=6)) for _ in range(3)]
    assert [each.num_left for each in taken] == [STEPS - 6, STEPS - 12, 0]
    delta_N = world.redone(AUDITOR, CONTRIBUTOR)
    found_N = torch.frombuffer(bytearray(taken[-1].delta), dtype=torch.float32)
    assert torch.equal(found_N, torch.cat([delta_N[0:7], delta_N[100:300]]))
    whole = turns.redo(_order(world, spans=((0, len(delta_N)),)))
    assert torch.equal(torch.frombuffer(bytearray(whole.delta), dtype=torch.float32), delta_N), "the beginning stays"


def test_nothing_is_kept_unless_it_was_ordered_and_where_own_steps_are_carried_over(
    world: World, turns: AuditTurns
) -> None:
    turns.note_load()
    assert turns.redo(_order(world)).problem == NOT_KEPT
    turns.keep_next()
    world.trainers[AUDITOR].step()
    turns.note_shift(_nowhere(world), 0)
    assert turns.redo(_order(world)).problem == NOT_KEPT


def _nowhere(world: World) -> torch.Tensor:
    return torch.zeros(len(world.anchor_N))


def _shift(
    world: World, turns: AuditTurns, num_after: int, *, lacks_tokens: int = 0, tokens: int = TOKENS
) -> torch.Tensor:
    """A round of a trainer that trains on for some steps between its snapshot and the commit; returns the anchor after it, (N,)."""
    trainer = world.trainers[AUDITOR]
    for _ in range(NUM_OWN):
        trainer.step()
    ready, theta_N = trainer.counters.ready[0], trainer.theta()
    turns.note_snapshot()
    for _ in range(num_after):
        trainer.step()
    anchor_N = world.anchor_N - 0.5 * (world.anchor_N - theta_N)
    trainer.shift(anchor_N - theta_N, ready - lacks_tokens, tokens)
    turns.note_shift(anchor_N - theta_N, ready - lacks_tokens)
    return anchor_N


@pytest.mark.parametrize("num_after", [0, 1])
def test_under_overlap_the_state_of_the_snapshot_is_kept_at_the_new_anchor_without_the_steps_since(
    world: World, turns: AuditTurns, num_after: int
) -> None:
    turns.keep_next()
    anchor_N = _shift(world, turns, num_after)
    assert world.trainers[AUDITOR].counters.ready[0] == num_after * INNER.batch_tokens
    kept = turns._kept[TOKENS]
    assert torch.allclose(torch.cat([value.reshape(-1) for value in kept.values]), anchor_N, atol=1e-6)
    assert (kept.counters.ready, kept.schedule_tokens) == ((0,), TOKENS)
    if not num_after:  # as in blocking rounds: the trainer itself stands there
        now = state_of(world.trainers[AUDITOR])
        both = zip((*kept.values, *kept.moments), (*now.values, *now.moments), strict=True)
        assert all(torch.equal(a, b) for a, b in both)


def test_a_snapshot_that_was_not_counted_in_full_or_that_a_load_discarded_is_no_beginning(
    world: World, turns: AuditTurns
) -> None:
    turns.keep_next()
    _shift(world, turns, 1, lacks_tokens=INNER.batch_tokens)
    assert not turns._kept
    turns.keep_next()
    turns.note_snapshot()
    turns.note_load()
    kept = dict(turns._kept)
    assert len(kept) == 1
    _shift(world, turns, 1)
    assert all(turns._kept[tokens] is state for tokens, state in kept.items()), "it was asked for once"


def _copies() -> set[int]:
    """The places in memory of all training states that are there."""
    gc.collect()
    states = [each for each in gc.get_objects() if isinstance(each, TrainerState)]
    return {state.values[0].data_ptr() for state in states}


def test_rounds_that_begin_amid_an_audit_cost_no_more_copies_than_promised_and_the_audit_goes_on(
    world: World, turns: AuditTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, most = _copies(), list[int]()

    def counted(make: Callable[..., object]) -> Callable[..., object]:
        def made(*arguments: object) -> object:
            most.append(len(_copies() - before) + 1)
            return make(*arguments)

        return made

    for name in ("state_of", "RedoneWork"):
        monkeypatch.setattr(audit_turns, name, counted(getattr(audit_turns, name)))
    turns.keep_next()
    turns.note_load()
    assert world.begun[AUDITOR].schedule_tokens < TOKENS
    turns.keep_next()
    _shift(world, turns, 1)
    turns.redo(_order(world, turn_steps=6))
    turns.keep_next()
    for _ in range(2):  # the first one's round failed
        turns.note_snapshot()
    _shift(world, turns, 1, tokens=2 * TOKENS)
    assert turns.redo(_order(world, turn_steps=6)).num_left == STEPS - 12, "it goes on where it was"
    given_up = _order(world, turn_steps=1).model_copy(update={"peer": "control"})
    assert not turns.redo(given_up).problem
    assert len(most) == 7
    assert max(most) == MOST_COPIES


def test_rounds_that_begin_between_the_redone_work_and_its_control_leave_the_audit_its_beginning(
    world: World, turns: AuditTurns
) -> None:
    turns.keep_next()
    turns.note_load()
    order = _order(world)
    assert turns.redo(order).num_left == 0
    for number in range(1, MOST_KEPT + 1):
        turns.keep_next()
        _shift(world, turns, 1, tokens=number * TOKENS)
    control = order.model_copy(update={"peer": "control"})
    assert not turns.redo(control).problem
    turns.keep_next()
    _shift(world, turns, 1, tokens=(MOST_KEPT + 1) * TOKENS)
    assert turns.redo(order).problem == NOT_KEPT, "the audit is over, and gives up its memory"


def test_of_a_round_whose_steps_were_largely_taken_before_its_base_was_adopted_nothing_is_kept(
    world: World, turns: AuditTurns
) -> None:
    turns.keep_next()
    _shift(world, turns, NUM_OWN)
    order = _order(world).model_copy(update={"schedule_tokens": TOKENS})
    assert turns.redo(order).problem == TOO_LATE


def test_only_the_newest_beginnings_are_kept_and_all_are_forgotten_on_order(world: World, turns: AuditTurns) -> None:
    trainer, begun = world.trainers[AUDITOR], world.begun[AUDITOR]
    for number in range(MOST_KEPT + 1):
        put_state(trainer, TrainerState(begun.values, begun.moments, begun.counters, begun.plan, number))
        turns.keep_next()
        turns.note_load()
    order = _order(world)
    kept = [not turns.redo(order.model_copy(update={"schedule_tokens": each})).problem for each in range(MOST_KEPT + 1)]
    assert kept == [False] + [True] * MOST_KEPT
    turns.forget()
    assert turns.redo(order.model_copy(update={"schedule_tokens": MOST_KEPT})).problem == NOT_KEPT


def test_a_trainer_without_moments_of_its_own_keeps_nothing(world: World, turns: AuditTurns) -> None:
    trainer = world.trainers[AUDITOR]
    moments = trainer.replica.optimizer.moments()
    kept = [moment.clone() for moment in moments]
    trainer.replica.optimizer.load_moments([])
    turns.keep_next()
    turns.note_load()
    assert turns.redo(_order(world)).problem == NOT_KEPT
    trainer.replica.optimizer.load_moments(kept)


def test_a_machine_without_memory_for_a_copy_says_so_and_trains_on(
    world: World, turns: AuditTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns.keep_next()
    turns.note_load()

    def none(*_: object) -> TrainerState:
        raise MemoryError

    monkeypatch.setattr("peer.audits.redone_work.exchange_piece", none)
    assert turns.redo(_order(world)).problem == NO_MEMORY
    monkeypatch.setattr(audit_turns, "state_of", none)
    turns.keep_next()
    turns.note_load()
    world.trainers[AUDITOR].step()
    assert sent(world.trainers[AUDITOR].theta()).isfinite().all()


@pytest.mark.parametrize("lacking_bytes", [0, 1])
def test_a_beginning_is_kept_only_where_all_copies_of_an_audit_have_room(
    lacking_bytes: int, world: World, turns: AuditTurns
) -> None:
    trainer = world.trainers[AUDITOR]
    copy_bytes, free_bytes = state_bytes(trainer), 0
    values = (*world.begun[AUDITOR].values, *world.begun[AUDITOR].moments)
    assert copy_bytes == sum(each.nbytes for each in values)
    turns = AuditTurns(trainer, lambda: free_bytes - lacking_bytes)
    for num_kept in range(MOST_KEPT):
        free_bytes = (MOST_COPIES - (0 if lacking_bytes else num_kept)) * copy_bytes + delta_bytes(trainer)
        assert turns.keep_next().problem == (NO_MEMORY if lacking_bytes else "")
        begun = world.begun[AUDITOR]
        put_state(trainer, TrainerState(begun.values, begun.moments, begun.counters, begun.plan, num_kept))
        turns.note_load()
    kept = turns.redo(_order(world).model_copy(update={"schedule_tokens": MOST_KEPT - 1}))
    assert kept.problem == (NOT_KEPT if lacking_bytes else "")


def test_a_machine_whose_steps_would_hold_up_a_pause_audits_nothing(world: World, turns: AuditTurns) -> None:
    turns.stepped(LONGEST_STEP_S + 1.0)
    assert turns.keep_next().problem == TOO_SLOW
    turns.note_load()
    assert turns.redo(_order(world)).problem == NOT_KEPT
    turns.stepped(LONGEST_STEP_S)
    assert turns.keep_next().problem == ""


def test_moments_in_8_bits_would_change_with_each_turn_so_nothing_is_audited(
    world: World, turns: AuditTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = world.trainers[AUDITOR].replica
    monkeypatch.setattr(replica, "plan", replica.plan.model_copy(update={"moments": "int8"}))
    assert turns.keep_next().problem == why_no_state(world.trainers[AUDITOR]) == "moments in 8 bits"


def test_memory_that_runs_out_amid_anothers_state_leaves_the_trainer_its_own(
    world: World, turns: AuditTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = world.trainers[AUDITOR]
    turns.keep_next()
    turns.note_load()
    turns.redo(_order(world, turn_steps=6))
    before, step, taken = state_of(trainer), LocalTrainer.step, list[int]()

    def runs_out_at_the_third(trainer: LocalTrainer) -> Counters:
        taken.append(1)
        if len(taken) == 3:
            raise MemoryError
        return step(trainer)

    monkeypatch.setattr(LocalTrainer, "step", runs_out_at_the_third)
    assert turns.redo(_order(world, turn_steps=6)).problem == NO_MEMORY
    after = state_of(trainer)
    assert all(torch.equal(a, b) for a, b in zip(before.values, after.values, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before.moments, after.moments, strict=True))
    assert after.counters == before.counters


def test_a_trainer_that_cannot_be_put_back_does_not_train_on(
    world: World, turns: AuditTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns.keep_next()
    turns.note_load()
    states: list[TrainerState] = []

    def runs_out_at_the_end(trainer: LocalTrainer, state: TrainerState, piece_P: torch.Tensor) -> TrainerState:
        states.append(state)
        if len(states) == 2:
            raise MemoryError
        return exchange_state(trainer, state, piece_P)

    monkeypatch.setattr("peer.audits.redone_work.exchange_state", runs_out_at_the_end)
    with pytest.raises(MachineError, match="could not be put back"):
        turns.redo(_order(world, turn_steps=1))
