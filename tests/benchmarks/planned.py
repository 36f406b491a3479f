"""`python -m tests.benchmarks.planned --json FILE [--quick]`: what `potluck plan` foretells, against runs on loopback.

Two runs of a host and two peers: a small model that trains beside its exchanges, and a larger one that waits for them. Each peer has
one thread. Before a run two processes measure their speed at the same time, as `potluck doctor --speed` does, and the plan takes that.
A row is what the run did over what the plan said: tokens/s, bytes of a round that a peer sends, and a peer's memory. Speed is measured
again after the run. If both measures differ by more than the target, other programs took the machine, and the time is not judged.

Memory is the kernel's peak of the daemon and of its training process since their start, with the memory that both share counted once.
The plan's number for it is the promise of a dry run, for a peer that trains on the CPU. Memory of a card is compared with torch's own
counting by `tests.benchmarks.memory_plan`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tomli_w

from averaging.models.llama.config import LlamaConfig
from peer.forecast.crew_core import Link, parse_crew
from peer.forecast.forecast_core import Conditions, Forecast, forecast
from peer.status.status import PeerStatus
from protocol.errors import MachineError
from protocol.run.manifest import RunConfig
from tests.benchmarks.memory_readings import peak_bytes, reading
from tests.benchmarks.memory_runs import pids_of
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import open_children
from tests.benchmarks.recovery_swarm import run_config
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import BenchPeer, Swarm, start_swarm

BENCH: Final = "planned"
PEERS: Final = 2
LOCAL_STEPS: Final = 20
WARM_UP_ROUNDS: Final = 2
MOST_OFF: Final = 0.25
MOST_BYTES_OFF: Final = 0.05
MOST_MEMORY_OFF: Final = 0.1
ROWS_OF_A_RUN: Final = 3
LOOPBACK_LINK: Final = Link(1000.0, 1000.0)
WITHIN_S: Final = 300.0
ANSWERS_WITHIN_S: Final = 20.0
"""A machine that others use may let a peer wait for its turn."""


SMALL: Final = LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=352, context_tokens=128)
LARGER: Final = LlamaConfig(dim=256, num_layers=4, num_heads=4, num_kv_heads=4, ffn_dim=704, context_tokens=128)
RUNS: Final = (("beside training", SMALL, "overlap"), ("while training waits", LARGER, "blocking"))


@dataclass(frozen=True, slots=True)
class Seen:
    """A window of a run: tokens/s that were committed, bulk bytes that a peer sent for each round, and memory of the fullest peer."""

    tokens_per_s: float
    round_bytes: float
    num_rounds: int
    memory_bytes: int


def config_of(model: LlamaConfig, mode: str) -> RunConfig:
    """A run whose rounds are due after 20 local steps of each peer."""
    base = run_config(model, PEERS, 300.0)
    inner = base.inner.model_copy(update={"batch_tokens": 8 * model.context_tokens})
    target = PEERS * LOCAL_STEPS * inner.batch_tokens
    section = base.round.model_copy(update={"target_tokens": target, "mode": mode, "chunk_elements": None})
    return RunConfig.model_validate(base.model_dump() | {"inner": inner.model_dump(), "round": section.model_dump()})


def measured_speeds(config: RunConfig, directory: Path) -> list[float]:
    """Tokens/s of each of the peers' processes, measured at the same time."""
    run_file = directory / "measured.toml"
    run_file.write_text(tomli_w.dumps(config.model_dump(mode="json")), encoding="utf8")
    command = [sys.executable, "-m", "potluck", "doctor", "--speed", str(run_file), "--json", "--device", "cpu"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=_one_thread(), text=True, start_new_session=True)
        for _ in range(PEERS)
    ]
    try:
        return [float(json.loads(process.communicate(timeout=WITHIN_S)[0])["tokens_per_s"]) for process in started]
    finally:
        for process in started:
            process.kill()


def _one_thread() -> dict[str, str]:
    return os.environ | {"POTLUCK_PEER_NUM_THREADS": "1"}


def planned(config: RunConfig, speeds: Sequence[float]) -> Forecast:
    """The plan of these peers on loopback."""
    crew = parse_crew(",".join(f"1x{speed:.3f}tok/s" for speed in speeds))
    return forecast(config, crew, Conditions(link=LOOPBACK_LINK))


def watched(config: RunConfig, directory: Path, num_rounds: int) -> Seen:
    """A real run, over so many rounds after the first few.

    Raises:
        MachineError: rounds do not come.
    """
    with open_children(directory) as children:
        swarm = start_swarm(
            children,
            directory,
            Places(LOOPBACK, (Place(),) * PEERS, "loopback"),
            config,
            peer_environment={},
            peer_flags=("--device", "cpu", "--num-threads", "1"),
        )
        try:
            first, begin_s = _next_round(swarm, WARM_UP_ROUNDS)
            before = _bulk_bytes(swarm)
            last, end_s = first, begin_s
            while last.index < first.index + num_rounds:
                last, end_s = _next_round(swarm, last.index)
            tokens, rounds = last.total_tokens - first.total_tokens, last.index - first.index
            sent = (_bulk_bytes(swarm) - before) / PEERS / rounds
            memory = max(map(_memory_bytes, swarm.peers.values()))
            return Seen(tokens / (end_s - begin_s), sent, rounds, memory)
        finally:
            swarm.close_logs()


def _next_round(swarm: Swarm, after: int) -> tuple[PeerStatus, float]:
    """The first peer's status when it has just applied a round after this one, and when."""
    peer, deadline_s = swarm.peers[1], time.monotonic() + WITHIN_S
    while (status := _status(peer)).index <= after:
        if time.monotonic() > deadline_s:
            raise MachineError(f"no round after {after}", f"one within {WITHIN_S:.0f} s")
        time.sleep(0.05)
    return status, time.monotonic()


def _status(peer: BenchPeer) -> PeerStatus:
    deadline_s = time.monotonic() + ANSWERS_WITHIN_S
    while (status := peer.status()) is None:
        if time.monotonic() > deadline_s:
            raise MachineError("a peer does not answer", "a running one")
    return status


def _memory_bytes(peer: BenchPeer) -> int:
    """The peaks of a peer's processes, which need not be at one moment, with the memory that they share counted once."""
    pids = pids_of(peer)
    return sum(map(peak_bytes, pids.values())) - max(reading(pid).mapping for pid in pids.values())


def _bulk_bytes(swarm: Swarm) -> int:
    found = [_status(peer) for peer in swarm.peers.values()]
    return sum(status.bytes_up - status.control_bytes_up for status in found)


def rows_of(name: str, plan: Forecast, seen: Seen, settings: dict[str, object], *, is_calm: bool) -> list[Row]:
    """The rows of a run: its figures over those of the plan. `is_calm`: whether the machine was as fast after the run as before."""
    speed, sent = plan.speed.tokens_per_s, float(plan.speed.rounds.up_bytes)
    memory, promised = float(seen.memory_bytes), float(plan.machine_bytes)
    return [
        _row(f"{name}: tokens/s", seen.tokens_per_s, speed, "tokens/s", MOST_OFF if is_calm else None, settings),
        _row(f"{name}: bytes that a peer sends a round", seen.round_bytes, sent, "B", MOST_BYTES_OFF, settings),
        _row(f"{name}: memory of a peer", memory, promised, "B", MOST_MEMORY_OFF, settings),
    ]


def _row(
    metric: str, value: float, baseline: float, unit: str, most_off: float | None, settings: dict[str, object]
) -> Row:
    ratio = value / baseline
    target = f"within {most_off:.0%} of the plan" if most_off is not None else ""
    is_met = abs(ratio - 1.0) <= most_off if most_off is not None else None
    return Row(BENCH, metric, round(value), unit, round(baseline), round(ratio, 4), target, is_met, 1, {}, settings)


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.planned", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="four rounds of each run instead of fifteen")
    options = parser.parse_args(arguments)
    num_rounds, rows = (4 if options.quick else 15), list[Row]()
    for name, model, mode in RUNS:
        config, before = config_of(model, mode), machine()
        with tempfile.TemporaryDirectory(prefix="potluck-planned-") as temporary:
            directory = Path(temporary)
            speeds = measured_speeds(config, directory)
            seen = watched(config, directory, num_rounds)
            later = measured_speeds(config, directory)
        is_calm = abs(sum(later) / sum(speeds) - 1.0) <= MOST_OFF
        plan = planned(config, [(before_it + after_it) / 2 for before_it, after_it in zip(speeds, later, strict=True)])
        settings = {
            "parameters": config.num_elements,
            "mode": mode,
            "measured_before_tokens_per_s": [round(speed) for speed in speeds],
            "measured_after_tokens_per_s": [round(speed) for speed in later],
            "rounds": seen.num_rounds,
            "machine_before": before,
            "machine_after": machine(),
        }
        rows += rows_of(name, plan, seen, settings, is_calm=is_calm)
        print_rows(rows[-ROWS_OF_A_RUN:], name)
    write_rows(rows, options.json)
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
