"""Opens the trainer of a layout: one replica, or several islands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import torch

from peer.training.islands.island_trainer import open_island_trainer
from peer.training.peer_trainer import PeerTrainer
from peer.training.plan.layout import Layout
from peer.training.supervision.replica_cards import Without
from peer.training.trainer import open_worker_trainer
from peer.training.training_plan import TrainingPlan
from peer.training.worker_process import EarlyWorker


@asynccontextmanager
async def open_trainer(
    plan: TrainingPlan,
    layout: Layout,
    anchor_N: torch.Tensor,
    early: EarlyWorker | None = None,
    without: Without = lambda left: None,
) -> AsyncIterator[PeerTrainer]:
    """A running trainer that begins at `anchor_N`, (N,) with all units one after another. Its processes end with the context.

    Args:
        plan: of the whole peer.
        layout: its replicas; `early` becomes the first one's first process.
        without: chooses the replica to go on with when a card is lost for good.
    """
    plans = [plan_of_world(plan, layout, world) for world in range(len(layout.worlds))]
    devices = [world.devices if world.mesh.num_ranks > 1 else () for world in layout.worlds]
    if len(plans) == 1:
        async with open_worker_trainer(plans[0], anchor_N, early, devices[0]) as alone:
            del anchor_N  # a vector that nothing else holds would stay in memory for as long as the trainer
            alone.without = without
            yield alone
    else:
        async with open_island_trainer(plans, anchor_N, early, devices, without) as together:
            del anchor_N
            yield together


def plan_of_world(plan: TrainingPlan, layout: Layout, number: int) -> TrainingPlan:
    """The plan of one replica: its device, its own data positions, its share of the processor, and its file of moments."""
    world = layout.worlds[number]
    device = plan.device if world.devices[0] == "auto" else world.devices[0]
    return plan.model_copy(
        update={
            "device": device,
            "mesh": world.mesh,
            "first_step": plan.first_step + number,
            "stride": len(layout.worlds),
            "num_threads": _threads(plan.num_threads, layout),
            "moments_file": _own_file(plan.moments_file, number),
        }
    )


def _threads(num_threads: int, layout: Layout) -> int:
    """A process's share of the processor's threads; 0 for torch's own choice."""
    on_cpu = [device for world in layout.worlds for device in world.devices if device.startswith("cpu")]
    if len(on_cpu) < 2:
        return num_threads
    return max(1, (num_threads or psutil.cpu_count(logical=False) or 1) // len(on_cpu))


def _own_file(path: Path | None, number: int) -> Path | None:
    """The first replica takes up what a peer with one card kept."""
    return path if path is None or not number else path.with_name(f"{path.stem}-{number}{path.suffix}")
