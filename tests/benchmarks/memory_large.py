"""`python -m tests.benchmarks.memory --large`: three rounds of a model so large that two peers and a host fill this machine.

Both peers are whole: they hold the state, reduce, vote and commit. If two that train do not fit by what the dry run promises, the
second is paused by its owner from its start on. Its training process then has parameters, but neither gradients nor moments. The rows
say which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from averaging.models.llama.config import LlamaConfig
from peer.owner.pause_file import PAUSE_FILE
from protocol.errors import MachineError
from protocol.estimates.estimates import host_memory_bytes
from protocol.pipeline.placement.peer_memory import peer_memory_bytes
from protocol.tensors.model_config import model_schema
from tests.benchmarks.memory_rows import BENCH, promise_row
from tests.benchmarks.memory_runs import CONTEXT_TOKENS, NUM_PEERS, Run, Seen, watch_checkpoint, watch_rounds
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import Children, open_children
from tests.benchmarks.results import Row, machine
from tests.benchmarks.swarm import Swarm, start_swarm, wait_until

LARGE_VALUES: Final = 400_000_000
COMMITS: Final = 3
LIMIT_S: Final = 3600.0
UNTRAINED_BYTES: Final = 12
"""A value, of gradients and moments that a paused peer does not have."""

FLAGS: Final = ("--device", "cpu", "--num-threads", "1", "--fit", "smallest")
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Plan:
    """How two peers and a host share this machine's memory; bytes as the dry runs promise them."""

    num_values: int
    first_bytes: int
    second_bytes: int
    host_bytes: int
    is_second_paused: bool

    @property
    def all_bytes(self) -> int:
        """The host writes its checkpoint once the rounds are over, so its base alone counts beside both peers."""
        return self.first_bytes + self.second_bytes + host_memory_bytes(0)


def large_model(num_values: int) -> LlamaConfig:
    """A decoder of about so many values."""
    dim = 1536 if num_values > 200_000_000 else 1024
    layer_values = 3 * dim * dim + 3 * dim * (dim * 8 // 3)
    return LlamaConfig(
        dim=dim,
        num_layers=max(1, round(num_values / layer_values)),
        num_heads=dim // 64,
        num_kv_heads=dim // 128,
        ffn_dim=dim * 8 // 3,
        context_tokens=CONTEXT_TOKENS,
    )


def plan_for(num_values: int, available_bytes: int) -> Plan:
    """Both peers train if that fits.

    Raises:
        MachineError: not even one that trains and one that is paused fit.
    """
    whole, host = (
        peer_memory_bytes(num_values),
        host_memory_bytes(num_values, has_momentum=False),
    )  # its rounds: plain means
    both = Plan(num_values, whole, whole, host, is_second_paused=False)
    if both.all_bytes <= available_bytes:
        return both
    one = Plan(num_values, whole, whole - UNTRAINED_BYTES * num_values, host, is_second_paused=True)
    if one.all_bytes <= available_bytes:
        return one
    fixed_bytes = 2 * peer_memory_bytes(0) + host_memory_bytes(0)
    largest = int((available_bytes - fixed_bytes) * num_values / (one.all_bytes - fixed_bytes))
    raise MachineError(
        f"{num_values / 1e6:.0f}M values take {one.all_bytes / GB:.1f} GB, and {available_bytes / GB:.1f} GB are free",
        "room for two peers and a host",
        f"take --large-values {largest}, or end other programs",
    )


def large_rows(folder: Path, num_values: int) -> list[Row]:
    """Three rounds, a checkpoint, and what they took beside what was promised.

    Raises:
        MachineError: this machine is too small, or something did not happen in an hour.
    """
    model = large_model(num_values)
    plan = plan_for(model_schema(model).num_elements, psutil.virtual_memory().available)
    run = Run("int8", model, commits=COMMITS, first_commits=0, steps=1, limit_s=LIMIT_S, has_all=True)
    with open_children(folder / "logs") as children:
        swarm = _start(children, folder / "run", run, plan)
        try:
            seen = watch_rounds(swarm, run)
            seen = replace(seen, host=watch_checkpoint(swarm, run))
        finally:
            swarm.close_logs()
    return _rows(plan, seen, FLAGS)


def _start(children: Children, directory: Path, run: Run, plan: Plan) -> Swarm:
    """The host, then both peers; returns once they have the run's state."""
    directory.mkdir(parents=True)
    nobody = Places(LOOPBACK, (), "loopback")
    swarm = start_swarm(children, directory, nobody, run.config, peer_environment={}, peer_flags=FLAGS)
    swarm.places = replace(nobody, peers=(Place(),) * NUM_PEERS)
    for number in range(1, NUM_PEERS + 1):
        if number > 1 and plan.is_second_paused:
            paused_dir = directory / f"peer-{number}"
            paused_dir.mkdir()
            (paused_dir / PAUSE_FILE).write_text('{"until_unix_s": null}\n', encoding="utf8")
        swarm.start_peer(number)
    if not wait_until(lambda: all(peer.status() is not None for peer in swarm.peers.values()), LIMIT_S):
        raise MachineError("a peer that does not start", "two peers", "look at their logs")
    return swarm


def _rows(plan: Plan, seen: Seen, flags: tuple[str, ...]) -> list[Row]:
    settings: dict[str, object] = {
        "values": plan.num_values,
        "second_peer": "paused from its start" if plan.is_second_paused else "trains",
        "flags": " ".join(flags),
        "commits": COMMITS,
        "machine": machine(),
    }
    name, rows = f"{plan.num_values / 1e6:.0f}M values", list[Row]()
    for which, peer, promised in zip(
        ("first", "second"), seen.rounds, (plan.first_bytes, plan.second_bytes), strict=True
    ):
        rows += [
            promise_row(f"{name}: {which} peer", promised, [peer.together], settings),
            _value(f"{name}: {which} peer's daemon, resident", peer.daemon.resident, plan, settings),
            _value(f"{name}: {which} peer's daemon, anonymous", peer.daemon.kinds.anonymous, plan, settings),
            _value(f"{name}: {which} peer's training process", peer.training.resident, plan, settings),
        ]
    if seen.host is not None:
        rows.append(promise_row(f"{name}: host", plan.host_bytes, [seen.host.resident], settings))
    rows.append(Row(BENCH, f"{name}: time of a round", round(seen.commit_s, 1), "s", trials=COMMITS, settings=settings))
    return rows


def _value(metric: str, num_bytes: int, plan: Plan, settings: dict[str, object]) -> Row:
    return Row(BENCH, metric, round(num_bytes / plan.num_values, 2), "B/value", trials=1, settings=settings)
