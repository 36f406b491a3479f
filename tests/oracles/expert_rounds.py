"""Rounds of units in one process, without a network: production's arithmetic, unit by unit, among those who hold each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from averaging.arithmetic.delta import pseudo_gradient
from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum, sum_dtype
from averaging.codecs import codec_by_name
from peer.training.local_training import LocalTrainer
from protocol.ids import UnitName
from protocol.rounds.messages.record import OuterStep
from protocol.tensors.tensor_schema import TensorSchema
from tests.at_once import apply_outer_step

CODEC = codec_by_name("fp32")
NESTEROV = OuterStep("nesterov", 0.7, 0.9)


@dataclass
class Outer:
    """The outer state of one unit, (N,) float32 both."""

    anchor_N: torch.Tensor
    momentum_N: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.momentum_N = torch.zeros_like(self.anchor_N)

    def commit(self, offers: Sequence[tuple[int, torch.Tensor]], outer: OuterStep = NESTEROV) -> None:
        """One round: what members offer, (weight, theta) in the order of their ids, goes through the codec twice."""
        total = WeightedSum(self.anchor_N.numel(), sum_dtype(CODEC.name))
        for weight, theta_N in offers:
            total.add(weight, _sent(pseudo_gradient(self.anchor_N, theta_N)))
        moved = apply_outer_step(self.anchor_N, self.momentum_N, _sent(total.mean().float()), outer)
        self.anchor_N, self.momentum_N = moved


def _sent(values_N: torch.Tensor) -> torch.Tensor:
    return CODEC.decode(CODEC.encode(values_N), values_N.numel())


def first_states(schemas: Sequence[TensorSchema], whole: TensorSchema, seed: int = 1) -> dict[UnitName, Outer]:
    """The initial values of a run's units."""
    return {schema.unit: Outer(genesis_anchor(schema, seed, whole)) for schema in schemas}


def play(trainers: Sequence[LocalTrainer], states: Mapping[UnitName, Outer], rounds: int, steps: int) -> None:
    """So many rounds of so many local steps of each peer; training waits for each commit."""
    for trainer in trainers:
        for place, schema in enumerate(trainer.units.schemas):
            trainer.load_unit(place, states[schema.unit].anchor_N, 0)
    for _ in range(rounds):
        for trainer in trainers:
            for _ in range(steps):
                trainer.step()
        for unit, state in states.items():
            held = [(t, p) for t in trainers for p, schema in enumerate(t.units.schemas) if schema.unit == unit]
            offers = [(trainer.counters.ready[place], trainer.theta(place)) for trainer, place in held]
            if any(weight for weight, _ in offers):
                state.commit(offers)
        for trainer in trainers:
            for place, schema in enumerate(trainer.units.schemas):
                trainer.load_unit(place, states[schema.unit].anchor_N, 0)
