"""Where a model is cut into stages: as even as can be in time, and no stage larger than the peers that are to hold it.

All layers of a model are alike, so a stage is a number of layers, with the embedding or the head beside them at the ends.
That makes the best cut exact: for a bound on the slowest stage, each peer takes as many layers as the bound and its memory allow, and
the only choice is who takes the ends. The bound is found by bisection over all times that a stage can take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError, MachineError
from protocol.pipeline.placement.peer_memory import PEER_MEMORY_BASE_BYTES, PEER_MEMORY_BYTES_PER_PARAMETER
from protocol.tensors.model_config import ModelConfig, model_parts, num_matrix_values, num_values
from protocol.tensors.stage_schema import MAX_STAGES, StageMap, stage_schema

VALUE_BYTES: Final = 4
_FAR: Final = 1 << 40
_GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class StageCosts:
    """What a token takes of a stage's time, forward and backward together, in any one unit: measured seconds, or `computed_costs`.

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
        """Of one stage."""
        ends = (self.embed if stages.is_first(stage) else 0.0) + (self.head if stages.is_last(stage) else 0.0)
        return stages.layers[stage] * self.layer + ends


def computed_costs(config: ModelConfig) -> StageCosts:
    """Multiplications a token, for peers that have measured nothing: each weight once forward and twice backward, and what attention
    does over half the context, causal as it is (PaLM, 2204.02311, appendix B). Looking a token up takes none.
    """
    layer = num_matrix_values(model_parts(config).layers[0]) + config.context_tokens * config.attention_dim
    return StageCosts(0.0, 3.0 * layer, 3.0 * config.dim * config.vocab_size)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a stage takes of a peer's memory, in bytes.

    Attributes:
        base: of any stage.
        embed: of the embedding beside it.
        layer: of one layer.
        head: of the last norm and the head, with the logits of a micro-batch.
    """

    base: int
    embed: int
    layer: int
    head: int

    def of(self, stages: StageMap, stage: int) -> int:
        """Of one stage."""
        ends = (self.embed if stages.is_first(stage) else 0) + (self.head if stages.is_last(stage) else 0)
        return self.base + stages.layers[stage] * self.layer + ends


def planned_memory(
    config: ModelConfig,
    *,
    micro_batch_tokens: int,
    in_flight: int,
    recomputes: bool = False,
    base_bytes: int = PEER_MEMORY_BASE_BYTES,
) -> StageMemory:
    """From the manifest's numbers: parameters as protocol/pipeline/placement/peer_memory.py counts them, and what is kept of
    micro-batches that have gone forward and not yet backward.

    Args:
        micro_batch_tokens: of one micro-batch.
        in_flight: micro-batches that a stage keeps at once; the number of stages for 1F1B, all of a step for GPipe.
        recomputes: whether a stage keeps inputs alone and computes all else again before it goes backward.
    """
    parts, per_parameter = model_parts(config), PEER_MEMORY_BYTES_PER_PARAMETER
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
    """Those that a peer with so much memory can hold.

    Raises:
        MachineError: none.
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
    """The stages whose slowest one is fastest, of all cuts for which the peers have room; as few as can be where no number is given.

    Args:
        caps_bytes: memory that each expected peer gives; a stage's replicas are peers of their own.
        replicas: of each stage, at least.

    Raises:
        ConfigError: the peers have no room for the model, however it is cut.
    """
    if replicas < 1 or not caps_bytes:
        raise ConfigError(f"{len(caps_bytes)} peers and {replicas} replicas of a stage", "at least one of each")
    most = min(MAX_STAGES, len(caps_bytes) // replicas, config.num_layers + 2)
    for wanted in [num_stages] if num_stages else range(1, most + 1):
        # The peers with the most memory, in groups of one stage's replicas: a group has room for what its smallest has room for.
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
    """Layers of each stage, None where there is no room."""
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
        """Layers of stages none of which takes longer, None where that cannot be."""
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
        """Layers that fit beside what the stage carries, less than 0 where that alone is too much."""
        cost = (self.costs.embed if is_first else 0.0) + (self.costs.head if is_last else 0.0)
        bytes_ = self.memory.base + (self.memory.embed if is_first else 0) + (self.memory.head if is_last else 0)
        if cost > bound or bytes_ > self.rooms[room]:
            return -1
        by_memory = (self.rooms[room] - bytes_) // self.memory.layer if self.memory.layer else _FAR
        # Bounds are sums of just these terms: counted upwards, a rounding of their difference moves no layer.
        by_time = 0
        while by_time < self.num_layers and cost + (by_time + 1) * self.costs.layer <= bound:
            by_time += 1
        return min(by_time, by_memory)

    def _filled(self, most: tuple[int, ...]) -> tuple[int, ...]:
        """So many layers in all, each next one where it makes the fastest stage."""
        ends = [0.0] * len(most)
        ends[0], ends[-1] = self.costs.embed, self.costs.head
        layers = [0, *[1] * (len(most) - 2), 0]
        for _ in range(self.num_layers - sum(layers)):
            open_ = [stage for stage, count in enumerate(layers) if count < most[stage]]
            layers[min(open_, key=lambda stage: (ends[stage] + layers[stage] * self.costs.layer, stage))] += 1
        return tuple(layers)
