"""Advice to a host on the cut of its model: how even it is by measured layer times, and which cut is best. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.pipeline.placement.cutting import StageCosts, StageMemory, cut
from protocol.tensors.stage_schema import StageMap

_FAR_BYTES: Final = 1 << 60
_ROUND: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Peers:
    """The expected peers.

    Attributes:
        caps_bytes: memory that each gives; empty if unknown, which keeps the number of stages.
        replicas: of each stage, at least.
    """

    caps_bytes: tuple[int, ...] = ()
    replicas: int = 2


def best_cut(stages: StageMap, costs: StageCosts, memory: StageMemory, peers: Peers) -> StageMap:
    """The cut with the fastest slowest stage. It has the given number of stages or, with known peers, as few as fit.

    Raises:
        ConfigError: the model does not fit on these peers.
    """
    if not peers.caps_bytes:
        rooms = [_FAR_BYTES] * stages.num_stages
        return cut(stages.decoder, costs, memory, rooms, num_stages=stages.num_stages, replicas=1)
    return cut(stages.decoder, costs, memory, peers.caps_bytes, replicas=peers.replicas)


def slowest_s(stages: StageMap, costs: StageCosts) -> float:
    """Time per token of the slowest stage."""
    return max(costs.of(stages, stage) for stage in range(stages.num_stages))


def evenness(stages: StageMap, costs: StageCosts) -> float:
    """Share of time in which stages work if the slowest one always does, 0 to 1."""
    each = [costs.of(stages, stage) for stage in range(stages.num_stages)]
    return sum(each) / len(each) / max(each)


def advice_lines(stages: StageMap, costs: StageCosts, best: StageMap) -> list[str]:
    """Text for the host: the measurements, the cut in the file, the best cut, and what to write."""
    measured = f"embedding {_us(costs.embed)}, a layer {_us(costs.layer)}, norm and head {_us(costs.head)}"
    lines = [f"measured, microseconds a token forward and backward: {measured}", f"now:  {_cut_line(stages, costs)}"]
    is_as_good = best.num_stages == stages.num_stages and slowest_s(stages, costs) <= slowest_s(best, costs) + _ROUND
    if is_as_good:
        return [*lines, "no cut into as many stages is more even"]
    return [
        *lines,
        f"best: {_cut_line(best, costs)}",
        f"in [pipeline] write {_layers(best)} in the place of stages or layers, before the run is opened",
    ]


def _cut_line(stages: StageMap, costs: StageCosts) -> str:
    each = ", ".join(_us(costs.of(stages, stage)) for stage in range(stages.num_stages))
    return f"{_layers(stages)}: {each}; stages work {evenness(stages, costs):.0%} of the time at most"


def _layers(stages: StageMap) -> str:
    return f'layers = "{", ".join(map(str, stages.layers))}"'


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}"
