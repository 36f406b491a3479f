"""The groups of processes that the all-reduce benchmark compares, and one trial of each: our peers, hivemind's averagers, gloo."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from averaging.models.llama.config import LlamaConfig
from peer.demo.processes import Running, last_line
from protocol.errors import MachineError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.allreduce_files import order, ready_file, result_file
from tests.benchmarks.allreduce_marks import AFTERWARDS, spans
from tests.benchmarks.allreduce_peer import FOLDER_VARIABLE, TOKENS
from tests.benchmarks.places import Places
from tests.benchmarks.processes import Children, family, kill_all_of
from tests.benchmarks.swarm import Swarm, start_swarm, wait_until
from tests.ports import free_port

START_LIMIT_S: Final = 120.0
NEVER_TOKENS: Final = 1 << 50
NEVER_S: Final = 3600.0
_DIM: Final = 64


@dataclass(frozen=True)
class Trial:
    """One averaging of one group.

    Attributes:
        wall_s: for our peers from the first order of a snapshot to the last peer that has the certificate on disk and the new state in
            memory; for others from the call to the last one's return.
        cpu_s: of all processes of the group and all that descend from them, from the order to the end; for our peers without writing
            the state to disk as a generation, which is in `cpu_whole_s`.
        reported: what each process told.
        since_order_s: from the order on. Before our peers' `wall_s` they tell one another that a round is due, and one proposes it;
            others' wall begins with the order anyway.
    """

    wall_s: float
    cpu_s: float
    cpu_whole_s: float
    reported: Sequence[dict[str, Any]] = ()
    since_order_s: float = 0.0

    @property
    def parts_s(self) -> dict[str, float]:
        """Our peers' steps, each as what it adds until the last peer has done it."""
        return spans([reported["steps"] for reported in self.reported])


@dataclass
class Group:
    """Processes that average when told to."""

    name: str
    folder: Path
    running: list[Running]
    num_done: int = 0
    failed: str = ""
    trials: list[Trial] = field(default_factory=list)
    first: list[Trial] = field(default_factory=list)
    """Those that warmed it up before."""

    relative_error: float | None = None
    """Of the first averaging, where it was looked at."""

    swarm: Swarm | None = None
    """Of our peers."""

    def trial(self, limit_s: float, *, is_warm_up: bool = False) -> Trial | None:
        """One averaging; None when it failed, and nothing more is asked of this group then."""
        if self.failed:
            return None
        number, self.num_done = self.num_done, self.num_done + 1
        before_s = self._cpu_s()
        begins_s = order(self.folder, number)
        files = [result_file(self.folder, rank, number) for rank in range(len(self.running))]
        if not wait_until(lambda: all(file.exists() for file in files), limit_s):
            self.failed = f"{self.name}: no end after {limit_s:.0f} s: {[last_line(each) for each in self.running]}"
            return None
        trial = self._judged([json.loads(file.read_text()) for file in files], self._cpu_s() - before_s, begins_s)
        for reported in trial.reported:
            if reported.get("relative_error") is not None:
                self.relative_error = reported["relative_error"]
        if not is_warm_up:
            self.trials.append(trial)
        return trial

    def _cpu_s(self) -> float:
        return sum(_cpu_of(process) for each in self.running for process in family(each))

    def _judged(self, reported: list[dict[str, Any]], cpu_s: float, begins_s: float) -> Trial:
        if any("steps" not in each for each in reported):
            wall_s = max(each["ended_s"] for each in reported) - min(each["began_s"] for each in reported)
            if any(each.get("group", len(reported)) != len(reported) for each in reported):
                self.failed = f"{self.name}: not everybody averaged"
            return Trial(wall_s, cpu_s, cpu_s, reported, wall_s)
        spent_s = sum(each["spent"]["cpu_process_s"] + each["spent"]["cpu_p2pd_s"] for each in reported)
        keeping_s = sum(each["offloaded_s"].get("generation", 0.0) for each in reported)
        parts = spans([each["steps"] for each in reported])
        wall_s = sum(seconds for step, seconds in parts.items() if step not in AFTERWARDS)
        if len({each["digest"] for each in reported}) > 1:
            self.failed = f"{self.name}: peers with different states"
        before_s = min(each["steps"]["ordered"] for each in reported) - begins_s
        return Trial(wall_s, spent_s - keeping_s, spent_s, reported, before_s + wall_s)


def _cpu_of(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def model_of(num_elements: int) -> LlamaConfig:
    """A model with so many values, or up to 191 more."""

    def config(ffn_dim: int) -> LlamaConfig:
        return LlamaConfig(
            dim=_DIM, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=ffn_dim, context_tokens=32, vocab_size=257
        )

    rest = num_elements - model_schema(config(1)).num_elements
    return config(1 + -(-rest // (3 * _DIM)))


def run_config(num_elements: int, num_peers: int, codec: str, chunk_elements: int) -> RunConfig:
    """A run whose rounds are due when all members are ready."""
    sources = Path(__file__).parents[2] / "protocol"
    return RunConfig(
        run=RunSection(name="allreduce", total_tokens=NEVER_TOKENS, min_members=num_peers),
        model=model_of(num_elements),
        data=DataSection(source="text", glob=f"{sources}/**/*.py", heldout_every=5),
        inner=InnerSection(learning_rate=0.001, batch_tokens=64),
        round=RoundSection.model_validate(
            {
                "target_tokens": num_peers * TOKENS,
                "longest_interval_s": NEVER_S,
                "codec": codec,
                "chunk_elements": chunk_elements,
            }
        ),
        checkpoint=CheckpointSection(every_rounds=1 << 16),
    )


@contextmanager
def open_ours(children: Children, directory: Path, places: Places, config: RunConfig) -> Iterator[Group]:
    """A host and a peer in each place."""
    directory.mkdir(parents=True)
    folder = directory / "orders"
    folder.mkdir()
    swarm = start_swarm(
        children,
        directory,
        places,
        config,
        peer_environment={FOLDER_VARIABLE: str(folder)},
        peer_flags=("--device", "cpu", "--num-threads", "1"),
        peer_module="tests.benchmarks.allreduce_peer",
    )
    try:
        time.sleep(2.0)  # heads and readiness are heard of by then
        running = [swarm.peers[n + 1].running for n in range(len(places.peers))]
        yield Group(f"potluck {config.round.codec}", folder, running, swarm=swarm)
    finally:
        swarm.close_logs()
        for each in [*(peer.running for peer in swarm.peers.values()), swarm.host]:
            kill_all_of(each)


@contextmanager
def open_gloo(children: Children, directory: Path, places: Places, num_elements: int) -> Iterator[Group]:
    """A process of gloo in each place."""
    with _opened(
        children, directory, places, "gloo", num_elements, (places.peers[0].address, str(free_port()))
    ) as group:
        yield group


@contextmanager
def open_hivemind(
    children: Children, directory: Path, places: Places, num_elements: int, compression: str
) -> Iterator[Group]:
    """One of hivemind's averagers in each place."""
    with _opened(children, directory, places, f"hivemind {compression}", num_elements, (compression,)) as group:
        yield group


@contextmanager
def _opened(
    children: Children, directory: Path, places: Places, name: str, num_elements: int, rest: tuple[str, ...]
) -> Iterator[Group]:
    folder = directory / name.replace(" ", "-")
    folder.mkdir(parents=True)
    running: list[Running] = []
    try:
        for rank, place in enumerate(places.peers):
            module = f"tests.benchmarks.{name.split()[0]}_baseline"
            command = [*place.prefix, sys.executable, "-m", module, str(folder), str(rank), str(len(places.peers))]
            own = (place.address,) if name != "gloo" else ()
            interface = {"GLOO_SOCKET_IFNAME": place.port.replace("v", "i") if place.namespace else "lo"}
            running.append(
                children.start(f"{folder.name}-{rank}", [*command, str(num_elements), *own, *rest], interface)
            )
        ready = [ready_file(folder, rank) for rank in range(len(places.peers))]
        if not wait_until(lambda: all(file.exists() for file in ready), START_LIMIT_S):
            raise MachineError(f"{name} did not start: {[last_line(each) for each in running]}", "ready processes")
        yield Group(name, folder, running)
    finally:
        for each in running:
            kill_all_of(each)
