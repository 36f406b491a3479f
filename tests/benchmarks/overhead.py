"""`python -m tests.benchmarks.overhead --json FILE [--quick] [--device cpu]`: how much longer a step takes because it is a peer's.

Two real peers with everything on, and a bare loop: the same model, batch, text and AdamW of torch, one thread each, and nothing else.
A pair is TURNS short blocks of steps of the first peer and as many of the loop, in turn: on a shared machine a step's time drifts by a
third within a minute, and long blocks show that. The order changes from pair to pair. The side that does not have its turn is
stopped, the peers with all that belongs to them. On the CPU the first peer, its daemon, its p2pd and the loop share one core, and all
else has another; so what the daemon does is what the steps lose. The second peer's steps sleep: two that compute slow each other down
also on cores of their own, and the loop has nobody beside it. A step is counted from the end of the one before it: what the training
process does in between counts as well. Blocks lie between rounds: one in which the training process was ordered a snapshot, a shift or
an evaluation is no block, and its pair is taken again. Peak memory is in tests.benchmarks.memory.

If the difference is small beside the machine's drift, two numbers of the same blocks say more: the share of the peer's blocks that
passed outside of its steps (looking for orders, telling the daemon, choosing when to step), and the processor time of its daemon and
p2pd, which have the same core. Neither is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from averaging.models.llama.config import LlamaConfig
from peer.demo.processes import Running
from peer.models.decoder import Decoder
from protocol.errors import MachineError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import child_named, die_with_parent, family, open_children, signal_all_of
from tests.benchmarks.recovery_swarm import NEVER_TOKENS, commits_of
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import Swarm, start_swarm, wait_until
from tests.benchmarks.timed_peer import TIMED_PEER
from tests.benchmarks.timed_worker import SLEEP_VARIABLE, TIMES_VARIABLE, Trained, read_times, undisturbed

BENCH: Final = "overhead"
MODELS: Final[Mapping[str, LlamaConfig]] = {
    "cpu": LlamaConfig(dim=256, num_layers=6, num_heads=4, num_kv_heads=2, ffn_dim=704, context_tokens=256),
    "cuda": LlamaConfig(dim=1024, num_layers=12, num_heads=16, num_kv_heads=16, ffn_dim=2816, context_tokens=1024),
}
"""One sequence a step, so that nobody has a micro-batch to choose."""

NUM_PAIRS: Final = 24
TURNS: Final = 4
BLOCK_S: Final = 2.0
ROUND_S: Final = 34.0
AFTER_COMMIT_S: Final = 4.0
"""Its state's root and generation are written by then."""

ASLEEP_S: Final = 0.15
"""A step of the second peer."""

SETTLE_S: Final = 0.6
"""Of each block, before it is counted."""

KEPT_MEMORY: Final = "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=268435456:glibc.malloc.trim_threshold=1073741824"
"""The loop and the peers keep what they have freed. Left to itself the C library gives some of it back, more of one process than of
another, and on a machine whose hypervisor takes free pages a bare step took 0.12 to 0.2 s for it.
"""

MOST_LONGER: Final = 0.01
QUICK_PAIRS: Final = 3
T_95: Final[Mapping[int, float]] = {QUICK_PAIRS: 4.303, NUM_PAIRS: 2.069}
"""Student's t, two-sided, for so many pairs: one degree of freedom less."""

LEAST_STEPS: Final = 5
"""Of a block."""

MOST_TRIES: Final = 10
"""Of a pair, until it lies between two rounds."""

SOURCES: Final = Path(__file__).parents[2] / "protocol"
"""The text of both."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of a step; of the peer's blocks the share outside of its steps, and of their core what its daemon and p2pd took."""

    peer_s: float
    bare_s: float
    outside: float
    beside: float

    @property
    def longer(self) -> float:
        """0 is no difference."""
        return self.peer_s / self.bare_s - 1.0


# --- the bare loop ------------------------------------------------------------------------------------------------------------


def windows(num_tokens: int) -> Iterator[torch.Tensor]:
    """(1, num_tokens) bytes of the text from anywhere, for ever."""
    text_N = np.frombuffer(b"".join(file.read_bytes() for file in sorted(SOURCES.glob("**/*.py"))), dtype=np.uint8)
    places = np.random.default_rng(1)
    while True:
        begin = int(places.integers(len(text_N) - num_tokens))
        yield torch.from_numpy(text_N[begin : begin + num_tokens].astype(np.int64))[None]


def bare_loop(model: LlamaConfig, device: str) -> None:
    """Steps for ever; prints the Unix time at the end of each."""
    torch.set_num_threads(1)
    decoder = Decoder(model).to(device)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    is_autocast = device != "cpu"
    for window_BT in windows(model.context_tokens + 1):
        tokens_BT = window_BT.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=is_autocast):
            logits_BTV = decoder(tokens_BT[:, :-1])
        loss = functional.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        print(time.time(), flush=True)


@contextmanager
def open_bare(model: LlamaConfig, device: str, prefix: Sequence[str], file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The loop in a process of its own, which writes to `file`."""
    command = [*prefix, sys.executable, "-m", "tests.benchmarks.overhead", "--json", "-", "--device", device, "--bare"]
    with file.open("wb") as out:
        process = subprocess.Popen([*command, model.model_dump_json()], stdout=out, preexec_fn=die_with_parent)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _bare_ends(file: Path, begin_s: float, end_s: float) -> list[float]:
    ends = [float(line) for line in file.read_text(encoding="ascii").splitlines(keepends=True) if line.endswith("\n")]
    return [one for one in ends if begin_s <= one <= end_s]


def _step_s(blocks: Sequence[Sequence[float]]) -> float | None:
    """From the end of a step to the end of the next, over all blocks; None where one has too few."""
    if any(len(ends_s) < LEAST_STEPS for ends_s in blocks):
        return None
    return sum(ends_s[-1] - ends_s[0] for ends_s in blocks) / sum(len(ends_s) - 1 for ends_s in blocks)


# --- pairs --------------------------------------------------------------------------------------------------------------------


def run_config(model: LlamaConfig) -> RunConfig:
    """Two peers with a round every ROUND_S."""
    return RunConfig(
        run=RunSection(name="overhead", total_tokens=NEVER_TOKENS, min_members=2, max_members=8),
        model=model,
        data=DataSection(source="text", glob=f"{SOURCES}/**/*.py", heldout_every=5),
        inner=InnerSection(learning_rate=0.001, batch_tokens=model.context_tokens),
        round=RoundSection(target_tokens=NEVER_TOKENS, longest_interval_s=ROUND_S),
        checkpoint=CheckpointSection(every_rounds=1 << 16),
    )


def _await_commit(swarm: Swarm) -> None:
    since_s = time.time()
    if not wait_until(lambda: bool(commits_of(swarm.peers[1], since_s, time.time() + 1.0)), 6 * ROUND_S, 0.2):
        raise MachineError(f"no commit in {6 * ROUND_S:.0f} s", "rounds", "look at the peers' logs")
    time.sleep(AFTER_COMMIT_S)


def _block() -> tuple[float, float]:
    begin_s = time.time() + SETTLE_S
    time.sleep(SETTLE_S + BLOCK_S)
    return begin_s, time.time()


def take_pair(
    swarm: Swarm, bare: subprocess.Popen[bytes], times: Path, bare_times: Path, *, is_bare_first: bool
) -> Pair | None:
    """Blocks of both in turn; the loop is stopped but for its blocks, the peers in these. None where one of them is no block."""
    _await_commit(swarm)
    peer_blocks: list[Sequence[Trained]] = []
    bare_blocks: list[Sequence[float]] = []
    first = next(iter(swarm.peers.values())).running
    beside_s = blocks_s = 0.0
    for is_bare in (is_bare_first, not is_bare_first) * TURNS:
        if not is_bare:
            spent_s, began_s = _beside_s(first), time.monotonic()
            peer_blocks.append(undisturbed(*_block_of(times)))
            beside_s += _beside_s(first) - spent_s
            blocks_s += time.monotonic() - began_s
            continue
        for peer in swarm.peers.values():
            signal_all_of(peer.running, signal.SIGSTOP)
        bare.send_signal(signal.SIGCONT)
        begin_s, end_s = _block()
        bare.send_signal(signal.SIGSTOP)
        for peer in swarm.peers.values():
            signal_all_of(peer.running, signal.SIGCONT)
        bare_blocks.append(_bare_ends(bare_times, begin_s, end_s))
    peer_s, bare_s = _step_s([[one.unix_s for one in block] for block in peer_blocks]), _step_s(bare_blocks)
    if peer_s is None or bare_s is None:
        return None
    return Pair(peer_s, bare_s, _outside(peer_blocks), beside_s / blocks_s)


def _outside(blocks: Sequence[Sequence[Trained]]) -> float:
    trained_s = sum(block[-1].trained_s - block[0].trained_s for block in blocks)
    return 1.0 - trained_s / sum(block[-1].unix_s - block[0].unix_s for block in blocks)


def _beside_s(peer: Running) -> float:
    """Processor seconds of all processes of a peer but the one that trains."""
    worker = child_named(peer, "timed_worker")
    spent_s = 0.0
    for process in family(peer):
        if process != worker:
            times = process.cpu_times()
            spent_s += times.user + times.system
    return spent_s


def _block_of(times: Path) -> tuple[list[Trained], float, float]:
    begin_s, end_s = _block()
    return read_times(times), begin_s, end_s


def take_pairs(take: Callable[[bool], Pair | None], num_pairs: int) -> tuple[list[Pair], int]:
    """So many pairs, each other one with the bare block first, and how many were taken again.

    Raises:
        MachineError: a pair does not come to lie between two rounds.
    """
    pairs: list[Pair] = []
    num_again = 0
    while len(pairs) < num_pairs:
        for _ in range(MOST_TRIES):
            if (pair := take(bool(len(pairs) % 2))) is not None:
                break
            num_again += 1
        else:
            found = (
                f"{MOST_TRIES} pairs, one after the other, with an order or fewer than {LEAST_STEPS} steps in a block"
            )
            raise MachineError(found, "blocks between rounds", "a machine that does nothing else, or a smaller model")
        pairs.append(pair)
        print(f"{pair.longer:+.2%} of {pair.bare_s:.4f} s", flush=True)
    return pairs, num_again


def measure(directory: Path, device: str, num_pairs: int) -> tuple[list[Pair], int]:
    """Pairs on one swarm, and how many were taken again."""
    model = MODELS[device]
    *_, other, own = [*sorted(os.sched_getaffinity(0))] * 2
    os.sched_setaffinity(0, {other})  # the host is a child of ours
    times, bare_times = directory / "times.jsonl", directory / "bare.txt"
    first, rest = (("taskset", "-c", str(core), "env", KEPT_MEMORY) for core in (own, other))
    asleep = (f"{TIMES_VARIABLE}=/dev/null", f"{SLEEP_VARIABLE}={ASLEEP_S}")
    places = (Place(prefix=(*first, f"{TIMES_VARIABLE}={times}")), Place(prefix=(*rest, *asleep)))
    flags = ("--device", device, "--num-threads", "1")
    with open_children(directory / "logs") as children, open_bare(model, device, first, bare_times) as bare:
        bare.send_signal(signal.SIGSTOP)
        swarm = start_swarm(
            children,
            directory,
            Places(LOOPBACK, places, "loopback"),
            run_config(model),
            peer_environment={},
            peer_flags=flags,
            peer_module=TIMED_PEER,
        )
        try:
            return take_pairs(
                lambda is_bare_first: take_pair(swarm, bare, times, bare_times, is_bare_first=is_bare_first), num_pairs
            )
        finally:
            swarm.close_logs()


def rows_of(pairs: Sequence[Pair], num_again: int, device: str) -> list[Row]:
    """The mean with its confidence interval."""
    longer = sorted(pair.longer for pair in pairs)
    mean = statistics.fmean(longer)
    half = T_95[len(longer)] * statistics.stdev(longer) / len(longer) ** 0.5
    settings: dict[str, object] = {
        "device": device, "values": model_schema(MODELS[device]).num_elements, "block_s": BLOCK_S, "turns": TURNS,
        "confidence_95": [round(mean - half, 5), round(mean + half, 5)],
        "mean_with_the_peer_first": _mean(pairs[0::2]), "mean_with_the_loop_first": _mean(pairs[1::2]),
        "median": round(statistics.median(longer), 5), "taken_again": num_again,
        "bare_step_s": round(statistics.median(pair.bare_s for pair in pairs), 4), "machine": machine(),
    }  # fmt: skip
    return [
        Row(BENCH, f"{device}: a peer's step between rounds, longer than a bare one by (mean judged)", round(mean, 5), "share",
            0.0, None, f"<= {MOST_LONGER:g}", mean <= MOST_LONGER, len(pairs),
            {"best": round(longer[0], 5), "worst": round(longer[-1], 5)}, settings),
        _reported(f"{device}: of the peer's blocks, outside of its steps", [pair.outside for pair in pairs], settings),
        _reported(f"{device}: of its core, for its daemon and p2pd", [pair.beside for pair in pairs], settings),
        Row(BENCH, f"{device}: half of its 95% confidence interval", round(half, 5), "share", trials=len(pairs), settings=settings),
    ]  # fmt: skip


def _reported(metric: str, shares: Sequence[float], settings: dict[str, object]) -> Row:
    spread = {"best": round(min(shares), 5), "worst": round(max(shares), 5)}
    return Row(
        BENCH, metric, round(statistics.fmean(shares), 5), "share", trials=len(shares), spread=spread, settings=settings
    )


def _mean(pairs: Sequence[Pair]) -> float:
    """A peer that was stopped for its turn may have much to do at first: of those with the loop first it would show."""
    return round(statistics.fmean(pair.longer for pair in pairs), 5)


def main(arguments: Sequence[str]) -> int:
    """0 when the target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.overhead", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="three pairs")
    parser.add_argument("--device", choices=sorted(MODELS), default="cpu")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bare:
        bare_loop(LlamaConfig.model_validate(json.loads(options.bare)), options.device)
    with tempfile.TemporaryDirectory(prefix="potluck-overhead-") as folder:
        pairs, num_again = measure(Path(folder), options.device, QUICK_PAIRS if options.quick else NUM_PAIRS)
    rows = rows_of(pairs, num_again, options.device)
    write_rows(rows, options.json)
    print_rows(rows, "overhead: a peer's step beside a bare one")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
