"""Groups that average the experts they hold, against plain computations of the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpoints import CheckpointContent, UnitContent, stored_unit, write_checkpoint
from peer.training.local_training import LocalTrainer
from protocol.ids import CommitId, UnitName
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_units import ModelUnits
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema
from tests.benchmarks import expert_checks
from tests.oracles.expert_rounds import NESTEROV, Outer, first_states, play
from tests.oracles.expert_swarm import beside_rounds_of_others
from tests.peer.training_world import MODEL, training_plan

MIXTURE = MixtureConfig(num_experts=2, ffn_dim=8)
UNITS = held_units(MODEL, MIXTURE, range(2))


def _holder(folder: Path, peer: str, *experts: int) -> LocalTrainer:
    return LocalTrainer(training_plan(folder, mixture=MIXTURE, experts=experts, peer=peer))


def _dyadic(num: int, seed: int) -> torch.Tensor:
    """Thousandths of two: sums and products of a few of them are exact in float32."""
    whole = torch.randint(-512, 512, (num,), generator=torch.Generator().manual_seed(seed))
    return whole.to(torch.float32) / 1024


def _oracle(anchor: torch.Tensor, offers: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """The anchor after a first round by the formulas in float64: the mean over those who offered, then Nesterov."""
    weights = sum(weight for weight, _ in offers)
    update = sum(weight * (anchor.double() - theta.double()) for weight, theta in offers) / weights
    return anchor.double() - NESTEROV.learning_rate * (update + NESTEROV.momentum * update)


def test_each_unit_is_averaged_by_its_holders_as_the_formulas_say() -> None:
    """On values that float32 does not round, but for the outer step's two factors, which are no binary fractions."""
    outer = type(NESTEROV)("nesterov", 0.5, 0.5)
    states = {schema.unit: Outer(_dyadic(schema.num_elements, 1)) for schema in UNITS.schemas}
    holders = {"trunk": (1, 3, 4), "expert-0": (1, 3), "expert-1": (2,)}
    before = {unit: state.anchor_N.clone() for unit, state in states.items()}
    for unit, state in states.items():
        offers = [(weight, _dyadic(state.anchor_N.numel(), 10 + weight)) for weight in holders[unit]]
        state.commit(offers, outer)
        weights = sum(weight for weight, _ in offers)
        update = sum(w * (before[unit].double() - theta.double()) for w, theta in offers) / weights
        expected = before[unit].double() - 0.5 * (update + 0.5 * update)
        assert float((state.anchor_N.double() - expected).abs().max()) <= 1e-12


async def test_rounds_of_an_expert_leave_what_others_hold_bit_identical_though_they_average_the_trunk_and_sum_for_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    found = await beside_rounds_of_others(tmp_path)
    assert found.reducers == {found.bystander}, "nobody else can be reached"
    assert min(found.moved) > 0, "trunk and expert did move"
    assert found.after == found.before
    assert not found.of_averaged, "it keeps nothing of what it only sums"


def test_real_updates_are_the_oracles_to_the_rounding_of_float32(tmp_path: Path) -> None:
    trainers = [_holder(tmp_path, "a", 0), _holder(tmp_path, "b", 0, 1), _holder(tmp_path, "c", 1)]
    states = first_states(UNITS.schemas, UNITS.whole)
    before = {unit: state.anchor_N for unit, state in states.items()}
    for trainer in trainers:
        for place, schema in enumerate(trainer.units.schemas):
            trainer.load_unit(place, states[schema.unit].anchor_N, 0)
        for _ in range(3):
            trainer.step()
    for unit, state in states.items():
        held = [(t, p) for t in trainers for p, schema in enumerate(t.units.schemas) if schema.unit == unit]
        offers = [(trainer.counters.ready[place], trainer.theta(place)) for trainer, place in held]
        state.commit(offers)
        assert torch.allclose(state.anchor_N.double(), _oracle(before[unit], offers), atol=1e-7, rtol=0)


def test_one_expert_that_everybody_holds_is_plain_averaging_of_the_whole_model_bit_for_bit(tmp_path: Path) -> None:
    mixture = MixtureConfig(num_experts=1, ffn_dim=8)
    units = held_units(MODEL, mixture, [0])
    plans = [training_plan(tmp_path, mixture=mixture, experts=(0,), peer=peer) for peer in ("a", "b")]
    states = first_states(units.schemas, units.whole)
    play([LocalTrainer(plan) for plan in plans], states, rounds=3, steps=2)

    whole = TensorSchema(UnitName("all"), units.whole.tensors)
    plain = [LocalTrainer(plan) for plan in plans]
    for trainer in plain:
        trainer.units = ModelUnits((whole,))
        trainer.counters = type(trainer.counters)(ready=(0,))
    state = Outer(genesis_anchor(whole, 1, units.whole))
    for trainer in plain:
        trainer.load_unit(0, state.anchor_N, 0)
    for _ in range(3):
        for trainer in plain:
            for _ in range(2):
                trainer.step()
        state.commit([(2 * trainer.plan.inner.batch_tokens, trainer.theta(0)) for trainer in plain])
        for trainer in plain:
            trainer.load_unit(0, state.anchor_N, 0)
    assert torch.equal(state.anchor_N, torch.cat([states[schema.unit].anchor_N for schema in units.schemas]))
    assert torch.equal(state.momentum_N, torch.cat([states[schema.unit].momentum_N for schema in units.schemas]))


def test_two_groups_that_are_fed_the_same_end_alike(tmp_path: Path) -> None:
    states = first_states(UNITS.schemas, UNITS.whole)
    _, first, second = (schema.unit for schema in UNITS.schemas)
    states[second] = Outer(states[first].anchor_N.clone())
    play([_holder(tmp_path, "same", 0), _holder(tmp_path, "same", 1)], states, rounds=3, steps=2)
    assert float((states[first].anchor_N - states[second].anchor_N).abs().max()) <= 1e-10
    assert float((states[first].momentum_N - states[second].momentum_N).abs().max()) <= 1e-10
    assert not torch.equal(states[first].anchor_N, genesis_anchor(UNITS.schemas[1], 1, UNITS.whole))


@pytest.mark.parametrize("place", [1, 2])
def test_an_experts_momentum_goes_on_where_it_was_after_a_restart_of_its_whole_group_from_a_checkpoint(
    tmp_path: Path, place: int
) -> None:
    states = first_states(UNITS.schemas, UNITS.whole)

    def rounds(unit: UnitName, state: Outer, seeds: range) -> None:
        for seed in seeds:
            noise = [
                torch.randn(state.anchor_N.numel(), generator=torch.Generator().manual_seed(seed + n)) for n in (0, 9)
            ]
            state.commit([(64 * (n + 1), state.anchor_N + 0.01 * values_N) for n, values_N in enumerate(noise)])

    for unit, state in states.items():
        rounds(unit, state, range(2))
    contents = []
    for number, schema in enumerate(UNITS.schemas):
        outer, grid = states[schema.unit], ChunkGrid(schema.num_elements, 256)
        held = UnitState(schema.unit, CommitId(bytes([number + 1]) * 32), 2, 384, outer.anchor_N, outer.momentum_N)
        contents.append(UnitContent(schema, grid, held, state_root(held, grid)))
    spine = contents[0]
    content = CheckpointContent(
        "run",
        "ab" * 32,
        UNITS.whole,
        spine.grid,
        MODEL.model_dump(),
        contents[0].state,
        spine.root,
        units=tuple(contents),
        mixture=MIXTURE,
    )
    row = write_checkpoint(tmp_path / "checkpoints", content, now_unix_s=1)
    schema, grid = UNITS.schemas[place], contents[place].grid
    back = stored_unit(tmp_path / "checkpoints" / row.path, schema, grid).state
    again = Outer(back.anchor_N)
    again.momentum_N = back.momentum_N
    assert again.momentum_N.abs().sum() > 0
    for outer in (states[schema.unit], again):
        rounds(schema.unit, outer, range(5, 7))
    assert torch.equal(again.anchor_N, states[schema.unit].anchor_N)
    assert torch.equal(again.momentum_N, states[schema.unit].momentum_N)


@pytest.mark.parametrize("codec_name", ["fp32", "int8"])
def test_a_round_of_a_holders_units_moves_the_trunk_and_its_own_share_of_the_whole_models_bytes_to_one_percent(
    codec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the counters of the network, four peers and two holders of each expert."""
    monkeypatch.setattr(expert_checks, "_be_quiet", lambda: None)  # which would be so for all tests after it
    sent, share = expert_checks.wire_shares(codec_name, 2)
    assert 0.0 < share < 1.0
    assert sent == pytest.approx(share, rel=0.01)
