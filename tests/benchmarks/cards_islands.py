"""Two islands of one peer: their mean beside two peers', their speed beside one card's, and their bytes on the wire."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
import trio

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.training.islands.open_trainer import open_trainer, plan_of_world
from peer.training.islands.sums_core import weights_of
from peer.training.local_training import LocalTrainer
from peer.training.plan.layout import Layout, World
from peer.training.training_plan import TrainingPlan
from protocol.errors import MachineError
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.cards_peer import CARDS_PEER, ISLANDS_VARIABLE
from tests.benchmarks.codecs import packed_text
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import open_children
from tests.benchmarks.recovery_swarm import await_whole, run_config
from tests.benchmarks.results import Row, machine
from tests.benchmarks.swarm import BenchPeer, start_swarm, wait_until

MODEL: Final = LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=352, context_tokens=128)
SWARM_MODEL: Final = LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=4, ffn_dim=352, context_tokens=32)
BATCH_TOKENS: Final = 1024
ROUNDING: Final = 1e-6
LEAST_SPEED: Final = 1.95
MOST_BYTES: Final = 0.52
"""Of two peers' bytes: half, and what moves from one round into the next."""

WITHIN_S: Final = 600.0
ROUND_S: Final = 6.0
SETTLE_S: Final = 2.0
"""After a commit, until its bytes are counted."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: steps of each island, seconds of training for a speed, and rounds of a swarm."""

    steps: int
    speed_s: float
    rounds: int


FULL: Final = Size(40, 60.0, 6)
QUICK: Final = Size(6, 10.0, 2)


def island_rows(bench: str, devices: Sequence[str], size: Size) -> list[Row]:
    """The rows of two islands on these devices."""
    settings = machine() | {"devices": list(devices)}
    islands = Layout(worlds=tuple(World(devices=(device,)) for device in devices))
    alone = Layout(worlds=islands.worlds[:1])
    with tempfile.TemporaryDirectory() as folder:
        plan = _plan(packed_text(Path(folder)), devices[0])
        distance, values = trio.run(_distance, plan, islands, size)
        speeds = [trio.run(_tokens_per_s, plan, layout, size) for layout in (islands, alone, alone, islands)]
    both, one = speeds[0] + speeds[3], speeds[1] + speeds[2]
    faster = both / one
    is_judged = not any(device.startswith("cpu") for device in devices)
    own, others = _bytes_of_rounds(size)
    share = own / others
    return [
        Row(bench, "two islands: largest distance of a value from two peers' mean by tokens", distance, "", None, None,
            f"<= {ROUNDING:g}", distance <= ROUNDING, 1, {}, settings | {"steps": size.steps, "values": values}),
        Row(bench, "two islands: tokens a second", round(both / 2, 1), "1/s", round(one / 2, 1), round(faster, 3),
            f">= {LEAST_SPEED} times one card's" if is_judged else "", faster >= LEAST_SPEED if is_judged else None, 2,
            {}, settings | {"seconds": size.speed_s}),
        Row(bench, "two islands: bulk bytes of a round, beside two peers in the same rounds", round(own / size.rounds), "B",
            round(others / size.rounds), round(share, 3), f"<= {MOST_BYTES} of two peers'", share <= MOST_BYTES,
            size.rounds, {}, machine() | {"peers": 3, "values": model_schema(SWARM_MODEL).num_elements}),
    ]  # fmt: skip


def _plan(shard: Path, device: str) -> TrainingPlan:
    return TrainingPlan(
        model=MODEL,
        inner=InnerSection(learning_rate=0.002, batch_tokens=BATCH_TOKENS),
        seed=1,
        peer="benchmark",
        total_tokens=1 << 40,
        train_shards=(shard,),
        heldout_shards=(shard,),
        device=device,
        num_threads=1,
        micro_batch=BATCH_TOKENS // MODEL.context_tokens,
    )


async def _distance(plan: TrainingPlan, layout: Layout, size: Size) -> tuple[float, int]:
    """Of the islands' snapshot from the mean of two trainers that take the same windows, each for itself; and the values."""
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    with trio.fail_after(WITHIN_S):
        async with open_trainer(plan, layout, anchor_N) as trainer:
            while trainer.progress().tokens_ready < 2 * size.steps * BATCH_TOKENS:
                await trio.sleep(0.05)
            await trainer.pause()
            snapshot = await trainer.snapshot()
            tokens = [round(card.tokens_trained) for card in trainer.cards]
    mean_N = torch.zeros_like(anchor_N)
    for number, weight in enumerate(weights_of(tokens)):
        alone = LocalTrainer(plan_of_world(plan, layout, number))
        alone.load(anchor_N, 0)
        while alone.counters.tokens_ready < tokens[number]:
            alone.step()
        mean_N += weight * alone.theta()
    return float((snapshot.theta_N - mean_N).abs().max()), anchor_N.numel()


async def _tokens_per_s(plan: TrainingPlan, layout: Layout, size: Size) -> float:
    """After the first steps of each process."""
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    with trio.fail_after(WITHIN_S):
        async with open_trainer(plan, layout, anchor_N) as trainer:
            while min(card.tokens_trained for card in trainer.cards) < 2 * BATCH_TOKENS:
                await trio.sleep(0.01)
            begin_s, before = trio.current_time(), trainer.progress().tokens_trained
            await trio.sleep(size.speed_s)
            return (trainer.progress().tokens_trained - before) / (trio.current_time() - begin_s)


def _bytes_of_rounds(size: Size) -> tuple[int, int]:
    """Bulk bytes, up and down, of a peer with two islands and of two peers with one card, in the same rounds of one swarm."""
    config = run_config(SWARM_MODEL, 3, ROUND_S)
    places = (Place(prefix=("env", f"{ISLANDS_VARIABLE}=2")), Place(), Place())
    with tempfile.TemporaryDirectory() as folder, open_children(Path(folder) / "logs") as children:
        swarm = start_swarm(
            children,
            Path(folder),
            Places(LOOPBACK, places, "loopback"),
            config,
            peer_environment={},
            peer_flags=("--device", "cpu", "--num-threads", "1", "--slowdown", "20"),
            peer_module=CARDS_PEER,
        )
        try:
            await_whole(swarm, 2)
            peers = list(swarm.peers.values())
            before = _counted(peers, 2)
            after = _counted(peers, before[0] + size.rounds)
            if after[0] != before[0] + size.rounds:
                raise MachineError(
                    f"{after[0] - before[0]} rounds", f"{size.rounds}", "let the machine do less meanwhile"
                )
        finally:
            swarm.close_logs()
            children.kill_all()
    own, *others = (late - early for early, late in zip(before[1], after[1], strict=True))
    return own, sum(others)


def _counted(peers: Sequence[BenchPeer], least_index: int) -> tuple[int, list[int]]:
    """The round that all have come to, this one or a later, and each peer's bulk bytes until then."""
    if not wait_until(partial(_all_at, peers, least_index), WITHIN_S):
        raise MachineError(f"no round {least_index}", "commits", "let the machine do less meanwhile")
    time.sleep(SETTLE_S)
    statuses = [status for peer in peers if (status := peer.status()) is not None]
    if len(statuses) < len(peers):
        raise MachineError("a peer that does not answer", "its status", "let the machine do less meanwhile")
    return statuses[0].index, [sum(count.bytes_up + count.bytes_down for count in each.bulk) for each in statuses]


def _all_at(peers: Sequence[BenchPeer], least_index: int) -> bool:
    statuses = [peer.status() for peer in peers]
    return all(status is not None and status.index >= least_index for status in statuses)
