"""`python -m tests.benchmarks.memory --json FILE [--quick]`: what taking part in a run costs in memory, over plain training.

Two real peers, each a daemon and its training process, train one model on this machine and hold rounds; a third process trains the
same model at the same micro-batch in a plain loop with AdamW, nothing else. The peak of each process is the kernel's own (VmHWM), of
the peers from their second commit on, so that starts are left out; it is told apart for starts, too. "Together" is the daemon with
its training process and p2pd, pages that they share counted once (PSS), looked at ten times a second.

With two sizes of the model the growth from one to the other tells what a value costs, without interpreters and libraries.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch
from torch.nn import functional

from averaging.models.llama.config import LlamaConfig
from peer.machine.memory import own_peak_bytes
from peer.models.decoder import Decoder
from peer.training.optimizers.adamw import AdamW, ParameterGroup
from protocol.errors import MachineError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import child_named, family_of, open_children
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import BenchPeer, Swarm, start_swarm, wait_until

BENCH: Final = "memory"
NUM_PEERS: Final = 2
CODECS: Final = ("int8", "int8/4", "topk")
"""Of contributions; with a number behind it in so many fragments of layers, each with rounds of its own, and the embeddings."""

CONTEXT_TOKENS: Final = 64
BATCH_TOKENS: Final = 2 * CONTEXT_TOKENS
"""Small on purpose: large batches would hide what is held for each value behind activations."""

STEPS_A_ROUND: Final = 4
STEPS_A_ROUND_OF_A_UNIT: Final = 8
"""In fragments the round of each is so many steps after the one before it, more than a commit may be late."""

CHUNK_ELEMENTS: Final = 1 << 16
PLAIN_STEPS: Final = 3
FIRST_COMMITS: Final = 2
COMMITS_SEEN: Final = 5
ROUND_LIMIT_S: Final = 300.0
LOOK_EVERY_S: Final = 0.1
MOST_OF_TRAINING: Final = 1.25
MB: Final = 1e6

SMALL: Final = LlamaConfig(
    dim=256, num_layers=6, num_heads=4, num_kv_heads=2, ffn_dim=704, context_tokens=CONTEXT_TOKENS
)
LARGE: Final = LlamaConfig(
    dim=512, num_layers=8, num_heads=8, num_kv_heads=4, ffn_dim=1408, context_tokens=CONTEXT_TOKENS
)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one peer, in bytes: in rounds, and from the start of each process until its second commit."""

    daemon: int
    training: int
    together: int
    daemon_start: int
    training_start: int


# --- plain training -----------------------------------------------------------------------------------------------------------


def plain_peak_bytes(model: LlamaConfig) -> int:
    """Peak resident memory of this process after some steps of AdamW."""
    torch.set_num_threads(1)
    decoder = Decoder(model)
    matrices = [p for p in decoder.parameters() if p.dim() >= 2]
    vectors = [p for p in decoder.parameters() if p.dim() < 2]
    optimizer = AdamW((ParameterGroup(matrices, 0.1), ParameterGroup(vectors, 0.0)), beta1=0.9, beta2=0.95)
    generator = torch.Generator().manual_seed(1)
    shape = (BATCH_TOKENS // CONTEXT_TOKENS, CONTEXT_TOKENS + 1)
    for _ in range(PLAIN_STEPS):
        tokens_BT = torch.randint(0, 256, shape, generator=generator)
        logits_BTV = decoder(tokens_BT[:, :-1])
        loss = functional.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step(0.001)
        optimizer.zero_grad()
    return own_peak_bytes()


def _plain(model: LlamaConfig) -> int:
    command = [sys.executable, "-m", "tests.benchmarks.memory", "--json", "-", "--plain", model.model_dump_json()]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# --- peers --------------------------------------------------------------------------------------------------------------------


def run_config(model: LlamaConfig, codec: str) -> RunConfig:
    """A run whose rounds come every few steps."""
    sources = Path(__file__).parents[2] / "protocol"
    codec, _, fragments = codec.partition("/")
    steps = (int(fragments) + 1) * STEPS_A_ROUND_OF_A_UNIT if fragments else STEPS_A_ROUND
    return RunConfig(
        run=RunSection(name="memory", total_tokens=1 << 50, min_members=NUM_PEERS, max_members=8),
        model=model,
        data=DataSection(source="text", glob=f"{sources}/**/*.py", heldout_every=5),
        inner=InnerSection(learning_rate=0.001, batch_tokens=BATCH_TOKENS),
        round=RoundSection.model_validate(
            {
                "target_tokens": NUM_PEERS * BATCH_TOKENS * steps,
                "longest_interval_s": ROUND_LIMIT_S,
                "codec": codec,
                "chunk_elements": CHUNK_ELEMENTS,
                **({"mode": "streaming", "fragments": int(fragments)} if fragments else {}),
            }
        ),
        checkpoint=CheckpointSection(every_rounds=1 << 16),
    )


def _peak_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf8")


def _shared_once(pid: int) -> int:
    """PSS of a process and all that descend from it."""
    total_bytes = 0
    for process in family_of(pid):
        with suppress(OSError, psutil.Error):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf8").splitlines()
            total_bytes += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total_bytes


@contextmanager
def _watched(pids: Sequence[int]) -> Iterator[dict[int, int]]:
    """The largest of `_shared_once` by process, while the block runs."""
    most, ends = dict.fromkeys(pids, 0), threading.Event()

    def watch() -> None:
        while not ends.wait(LOOK_EVERY_S):
            for pid in pids:
                most[pid] = max(most[pid], _shared_once(pid))

    watcher = threading.Thread(target=watch, name="memory")
    watcher.start()
    try:
        yield most
    finally:
        ends.set()
        watcher.join()


def _pids(peer: BenchPeer) -> tuple[int, int]:
    """Of the daemon and of its training process."""
    worker = child_named(peer.running, "peer.worker")
    if worker is None:
        raise MachineError("a peer without a training process", "one", "look at its log")
    return peer.running.process.pid, worker.pid


def _wait_for_commits(swarm: Swarm, num_commits: int) -> None:
    def are_there() -> bool:
        return all(
            (status := peer.status()) is not None and status.index >= num_commits for peer in swarm.peers.values()
        )

    if not wait_until(are_there, ROUND_LIMIT_S, LOOK_EVERY_S * 5):
        raise MachineError(f"no {num_commits} commits after {ROUND_LIMIT_S:.0f} s", "rounds", "look at the peers' logs")


def _seen(swarm: Swarm) -> list[Peaks]:
    _wait_for_commits(swarm, FIRST_COMMITS)
    pids = [_pids(peer) for peer in swarm.peers.values()]
    starts = [(_peak_of(daemon), _peak_of(worker)) for daemon, worker in pids]
    for pair in pids:
        for pid in pair:
            _forget_peak(pid)
    with _watched([daemon for daemon, _ in pids]) as together:
        _wait_for_commits(swarm, FIRST_COMMITS + COMMITS_SEEN)
    return [
        Peaks(_peak_of(daemon), _peak_of(worker), together[daemon], *start)
        for (daemon, worker), start in zip(pids, starts, strict=True)
    ]


def measure(directory: Path, model: LlamaConfig, codec: str) -> list[Peaks]:
    """Both peers of one run."""
    directory.mkdir(parents=True)
    places = Places(LOOPBACK, (Place(),) * NUM_PEERS, "loopback")
    with open_children(directory / "logs") as children:
        swarm = start_swarm(
            children,
            directory,
            places,
            run_config(model, codec),
            peer_environment={},
            peer_flags=("--device", "cpu", "--num-threads", "1"),
        )
        try:
            return _seen(swarm)
        finally:
            swarm.close_logs()


# --- the table ----------------------------------------------------------------------------------------------------------------


def _row(
    metric: str, values: Sequence[int], plain: int, settings: Mapping[str, object], most: float | None = None
) -> Row:
    worst = max(values)
    return Row(
        BENCH,
        metric,
        round(worst / MB, 1),
        "MB",
        round(plain / MB, 1),
        round(worst / plain, 3),
        "" if most is None else f"<= {most:g} x",
        None if most is None else worst <= most * plain,
        len(values),
        {"best": round(min(values) / MB, 1), "worst": round(worst / MB, 1)},
        settings,
    )


def rows_of(codec: str, model: LlamaConfig, peaks: Sequence[Peaks], plain: int) -> list[Row]:
    """The larger of both peers, beside the plain loop."""
    num_values = model_schema(model).num_elements
    settings: dict[str, object] = {
        "codec": codec, "values": num_values, "batch_tokens": BATCH_TOKENS, "peers": NUM_PEERS, "machine": machine()
    }  # fmt: skip
    name = f"{codec}, {num_values / 1e6:.1f}M values"
    return [
        _row(f"{name}: training process", [each.training for each in peaks], plain, settings, MOST_OF_TRAINING),
        _row(f"{name}: daemon", [each.daemon for each in peaks], plain, settings),
        _row(f"{name}: together", [each.together for each in peaks], plain, settings),
        _row(f"{name}: training process, start", [each.training_start for each in peaks], plain, settings),
        _row(f"{name}: daemon, start", [each.daemon_start for each in peaks], plain, settings),
    ]


def growth_rows(codec: str, found: Mapping[int, tuple[Sequence[Peaks], int]]) -> list[Row]:
    """The cost of a value, from the smallest model to the largest; nothing if there is only one model."""
    if len(found) < 2:
        return []
    few, many = min(found), max(found)
    (small, plain_small), (large, plain_large) = found[few], found[many]
    plain = round((plain_large - plain_small) / (many - few), 2)
    rows = []
    for part in ("training", "daemon", "together"):
        grown = max(getattr(each, part) for each in large) - max(getattr(each, part) for each in small)
        value = round(grown / (many - few), 2)
        rows.append(
            Row(BENCH, f"{codec}: {part}, a value more", value, "B/value", plain, round(value / plain, 3), trials=1,
                settings={"from": few, "to": many}),
        )  # fmt: skip
    return rows


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.memory", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="the small model alone")
    parser.add_argument("--codecs", default=",".join(CODECS), help="of contributions, by commas")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.plain:
        print(plain_peak_bytes(LlamaConfig.model_validate_json(options.plain)))
        return 0
    models = (SMALL,) if options.quick else (SMALL, LARGE)
    plain = {model.dim: _plain(model) for model in models}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="potluck-memory-") as folder:
        for codec in options.codecs.split(","):
            found: dict[int, tuple[Sequence[Peaks], int]] = {}
            for model in models:
                peaks = measure(Path(folder) / f"{codec.replace('/', '-in-')}-{model.dim}", model, codec)
                found[model_schema(model).num_elements] = (peaks, plain[model.dim])
                rows += rows_of(codec, model, peaks, plain[model.dim])
            rows += growth_rows(codec, found)
    write_rows(rows, options.json)
    print_rows(rows, "memory: peers beside a plain loop of AdamW")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
