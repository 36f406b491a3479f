"""Cuts a model into stages: as even in time as possible, and no stage larger than the memory of its peers.

All layers of a model are alike, so a stage is a number of layers, plus the embedding or the head at the ends. That makes the best
cut exact. For a bound on the slowest stage, each peer takes as many layers as the bound and its memory allow. The only choice is
which peers take the ends. Bisection over all possible stage times finds the bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError, MachineError
from protocol.memory_costs import STAGE_BASE_BYTES, STAGE_BYTES
from protocol.tensors.model_config import ModelConfig, model_parts, num_matrix_values, num_values
from protocol.tensors.stage_schema import MAX_STAGES, StageMap, stage_schema

VALUE_BYTES: Final = 4
_FAR: Final = 1 << 40
_GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class StageCosts:
    """A stage's time per token, forward and backward together, in any one unit: measured seconds, or `computed_costs`.

    Attributes:
        embed: of looking a token up.
        layer: of one layer.
        head: of the last norm, the head and the loss.
    """

    embed: float
    layer: float
    head: float

    def __post_init__(self) -> None:
        if self.layer <= 0 or self.embed < 0 or self.head < 0:
            raise ConfigError(
                f"{self}", "a layer that takes time, and an embedding and a head that take no less than 0"
            )

    def of(self, stages: StageMap, stage: int) -> float:
        """Time of one stage."""
        ends = (self.embed if stages.is_first(stage) else 0.0) + (self.head if stages.is_last(stage) else 0.0)
        return stages.layers[stage] * self.layer + ends


def computed_costs(config: ModelConfig) -> StageCosts:
    """Multiplications per token, for peers without measurements: each weight once forward and twice backward, plus causal
    attention over half the context (PaLM, 2204.02311, appendix B). Looking a token up takes none.
    """
    layer = num_matrix_values(model_parts(config).layers[0]) + config.attended_tokens * config.attention_dim
    return StageCosts(0.0, 3.0 * layer, 3.0 * config.dim * config.vocab_size)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """A stage's memory at a peer, in bytes.

    Attributes:
        base: of any stage.
        embed: of the embedding.
        layer: of one layer.
        head: of the last norm and the head, with the logits of a micro-batch.
    """

    base: int
    embed: int
    layer: int
    head: int

    def of(self, stages: StageMap, stage: int) -> int:
        """Memory of one stage."""
        ends = (self.embed if stages.is_first(stage) else 0) + (self.head if stages.is_last(stage) else 0)
        return self.base + stages.layers[stage] * self.layer + ends


def planned_memory(
    config: ModelConfig,
    *,
    micro_batch_tokens: int,
    in_flight: int,
    recomputes: bool = False,
    base_bytes: int = STAGE_BASE_BYTES,
) -> StageMemory:
    """Memory by the manifest's numbers: parameters as protocol/memory_costs.py counts them, and activations of
    micro-batches between their passes.

    Args:
        micro_batch_tokens: of one micro-batch.
        in_flight: micro-batches that a stage keeps at once; the number of stages for 1F1B, all of a step for GPipe.
        recomputes: whether a stage keeps inputs only and computes everything else again before it goes backward.
    """
    parts, per_parameter = model_parts(config), STAGE_BYTES
    held = 1 if recomputes else in_flight
    inputs = in_flight * micro_batch_tokens * config.dim * VALUE_BYTES
    logits = 3 * micro_batch_tokens * config.vocab_size * VALUE_BYTES
    return StageMemory(
        base=base_bytes + 2 * inputs,
        embed=per_parameter * num_values(parts.first),
        layer=per_parameter * num_values(parts.layers[0])
        + held * micro_batch_tokens * config.layer_kept_values * VALUE_BYTES,
        head=per_parameter * num_values(parts.last) + logits,
    )


def stages_that_fit(stages: StageMap, memory: StageMemory, cap_bytes: int) -> tuple[int, ...]:
    """Stages that fit in a peer's memory.

    Raises:
        MachineError: none fits.
    """
    needed = [memory.of(stages, stage) for stage in range(stages.num_stages)]
    fitting = tuple(stage for stage, bytes_ in enumerate(needed) if bytes_ <= cap_bytes)
    if not fitting:
        smallest = needed.index(min(needed))
        raise MachineError(
            f"{cap_bytes / _GB:.2f} GB of memory for training, and the run's smallest stage, {stage_schema(stages, smallest).unit}, "
            f"takes {needed[smallest] / _GB:.2f} GB",
            "room for one stage",
            "allow more memory, or join a run with more stages",
        )
    return fitting


def cut(
    config: ModelConfig,
    costs: StageCosts,
    memory: StageMemory,
    caps_bytes: Sequence[int],
    *,
    num_stages: int | None = None,
    replicas: int = 2,
) -> StageMap:
    """The cut with the fastest slowest stage among all cuts that fit on the peers. Without `num_stages`, it has as few stages as
    possible.

    Args:
        caps_bytes: memory that each expected peer gives; each replica of a stage is another peer.
        replicas: of each stage, at least.

    Raises:
        ConfigError: no cut of the model fits on these peers.
    """
    if replicas < 1 or not caps_bytes:
        raise ConfigError(f"{len(caps_bytes)} peers and {replicas} replicas of a stage", "at least one of each")
    most = min(MAX_STAGES, len(caps_bytes) // replicas, config.num_layers + 2)
    for wanted in [num_stages] if num_stages else range(1, most + 1):
        # Peers sorted by memory, in groups of one stage's replicas. A group's memory is that of its smallest peer.
        rooms = sorted(caps_bytes, reverse=True)[replicas - 1 :: replicas][:wanted]
        layers = _even_layers(config.num_layers, costs, memory, rooms) if len(rooms) == wanted else None
        if layers is not None:
            return StageMap(config, layers)
    limit = f"{num_stages} stages" if num_stages else f"at most {most} stages"
    raise ConfigError(
        f"{len(caps_bytes)} peers with {sum(caps_bytes) / _GB:.2f} GB of memory together, and {limit} of {replicas} replicas",
        f"room for {config.num_layers} layers of {memory.layer / _GB:.2f} GB, an embedding of {memory.embed / _GB:.2f} GB "
        f"and a head of {memory.head / _GB:.2f} GB, beside {memory.base / _GB:.2f} GB at every peer",
        "expect more or larger peers, fewer replicas, or set a smaller model",
    )


def _even_layers(
    num_layers: int, costs: StageCosts, memory: StageMemory, rooms: Sequence[int]
) -> tuple[int, ...] | None:
    """Layers of each stage, None if they do not fit."""
    ends = {0.0, costs.embed, costs.head, costs.embed + costs.head}
    bounds = sorted({end + count * costs.layer for end in ends for count in range(num_layers + 1)})
    cuts = _Cuts(num_layers, costs, memory, tuple(rooms))
    place = bisect_left(bounds, True, key=lambda bound: cuts.within(bound) is not None)
    return None if place == len(bounds) else cuts.within(bounds[place])


@dataclass(frozen=True, slots=True)
class _Cuts:
    num_layers: int
    costs: StageCosts
    memory: StageMemory
    rooms: tuple[int, ...]

    def within(self, bound: float) -> tuple[int, ...] | None:
        """Layers of stages none of which takes longer, None if that is impossible."""
        if len(self.rooms) == 1:
            return (self.num_layers,) if self._most(0, bound, is_first=True, is_last=True) >= self.num_layers else None
        inner = [self._most(room, bound) for room in range(len(self.rooms))]
        places = range(len(self.rooms))
        for first in places:
            for last in places:
                most = [inner[place] for place in places if place not in (first, last)]
                ends = (self._most(first, bound, is_first=True), self._most(last, bound, is_last=True))
                fits = first != last and min(ends) >= 0 and min(most, default=1) >= 1
                if fits and len(most) <= self.num_layers <= sum(most) + sum(ends):
                    return self._filled((ends[0], *most, ends[1]))
        return None

    def _most(self, room: int, bound: float, *, is_first: bool = False, is_last: bool = False) -> int:
        """Layers that fit in addition to the stage's embedding or head; negative if these alone do not fit."""
        cost = (self.costs.embed if is_first else 0.0) + (self.costs.head if is_last else 0.0)
        bytes_ = self.memory.base + (self.memory.embed if is_first else 0) + (self.memory.head if is_last else 0)
        if cost > bound or bytes_ > self.rooms[room]:
            return -1
        by_memory = (self.rooms[room] - bytes_) // self.memory.layer if self.memory.layer else _FAR
        # Bounds are sums of exactly these terms. Count upwards, so that rounding of a difference moves no layer.
        by_time = 0
        while by_time < self.num_layers and cost + (by_time + 1) * self.costs.layer <= bound:
            by_time += 1
        return min(by_time, by_memory)

    def _filled(self, most: tuple[int, ...]) -> tuple[int, ...]:
        """Distribute all layers, each next one to the stage that stays fastest."""
        ends = [0.0] * len(most)
        ends[0], ends[-1] = self.costs.embed, self.costs.head
        layers = [0, *[1] * (len(most) - 2), 0]
        for _ in range(self.num_layers - sum(layers)):
            open_ = [stage for stage, count in enumerate(layers) if count < most[stage]]
            layers[min(open_, key=lambda stage: (ends[stage] + layers[stage] * self.costs.layer, stage))] += 1
        return tuple(layers)
