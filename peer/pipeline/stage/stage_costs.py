"""Measures the time that each part of a model takes on this machine, so that a host can cut it into even stages (`potluck cut`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import torch

from peer.machine.device import choose_device
from peer.models.stage_model import StageDecoder
from protocol.errors import ConfigError
from protocol.pipeline.placement.cut_advice import Peers, advice_lines, best_cut
from protocol.pipeline.placement.cutting import StageCosts
from protocol.run.manifest import RunConfig, load_run_config
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.stage_schema import StageMap

TRIES: Final = 7
"""Number of passes of which the median is taken, after one warm-up pass."""

_LEAST_S: Final = 1e-9
_BYTES_PER_GB: Final = 1e9

Timed = Callable[[Callable[[], None], torch.device], float]
"""Returns the seconds that a pass takes on a device."""


def stages_lines(run_file: Path, device: str, peer_gb: tuple[float, ...], replicas: int, timed: Timed) -> list[str]:
    """The lines that `potluck cut` prints.

    Raises:
        ConfigError: the file is not of a pipeline run, or these peers lack the memory. MachineError: no such device.
    """
    run = load_run_config(run_file)
    pipeline, stages = run.pipeline, run.stages
    if pipeline is None or stages is None:
        raise ConfigError(
            f'{run_file}: run.shards = "{run.run.shards}"', '"pipeline"', "see: potluck init --shards pipeline"
        )
    if any(not gb > 0 for gb in peer_gb):
        raise ConfigError(f"--peer-gb {', '.join(f'{gb:g}' for gb in peer_gb)}", "gigabytes, more than 0")
    costs = measured_costs(run.model, _micro_batch(run), choose_device(device), timed)
    peers = Peers(tuple(int(gb * _BYTES_PER_GB) for gb in peer_gb), replicas)
    return advice_lines(stages, costs, best_cut(stages, costs, pipeline.memory(run.model, run.inner), peers))


def measured_costs(model: ModelConfig, shape: tuple[int, int], device: torch.device, timed: Timed) -> StageCosts:
    """Seconds per token, forward and backward, of the embedding, of one layer, and of norm, head and loss together.

    Args:
        shape: (B, T) of a micro-batch.
    """
    parts = StageMap(model.model_copy(update={"num_layers": 1, "is_tied": False}), (0, 1, 0))
    embed, layer, head = (_part_s(parts, part, shape, device, timed) / (shape[0] * shape[1]) for part in range(3))
    return StageCosts(embed, max(layer, _LEAST_S), head)


def wall_s(work: Callable[[], None], device: torch.device) -> float:
    """Wall-clock seconds until the device has finished the work."""
    began_s = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - began_s


def _part_s(parts: StageMap, part: int, shape: tuple[int, int], device: torch.device, timed: Timed) -> float:
    config = parts.decoder
    model = StageDecoder(parts, part).to(device)
    tokens_BT = (torch.arange(shape[0] * shape[1], device=device) % config.vocab_size).view(shape)
    x_BTD = torch.zeros(*shape, config.dim, device=device)

    def once() -> None:
        model.zero_grad(set_to_none=True)
        arrived = tokens_BT if model.is_first else x_BTD.detach().requires_grad_()
        loss = model.loss(arrived, tokens_BT) if model.is_last else model(arrived).sum()
        loss.backward()

    once()  # the first pass imports, compiles and allocates
    return median(timed(once, device) for _ in range(TRIES))


def _micro_batch(run: RunConfig) -> tuple[int, int]:
    context = run.model.context_tokens
    num_batches = run.pipeline.micro_batches if run.pipeline is not None else 1
    return run.inner.batch_tokens // context // num_batches, context
