"""`python -m tests.benchmarks.speeds --json FILE [--quick]`: peers of speed 1 : 2 : 4 as real processes. Does everybody train all the
time, and does everybody weigh what it has trained?

A host and three peers on loopback, with rounds by the clock. The fastest trains at half of full speed, the others at a quarter and an
eighth, so that two cores are enough; a peer's training process writes down how long it trained (timed_worker.py). Weights are those in
the records, against the tokens that each trained in the same window. Every target is judged by the worst window of the worst peer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from averaging.models.llama.config import LlamaConfig
from protocol.errors import MachineError
from protocol.tensors.model_config import model_schema
from tests.benchmarks.fault_watch import Watch
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import open_children
from tests.benchmarks.recovery_swarm import await_whole, run_config
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import Swarm, start_swarm
from tests.benchmarks.timed_peer import TIMED_PEER
from tests.benchmarks.timed_worker import TIMES_VARIABLE, read_times, trained_share

BENCH: Final = "speeds"
MODEL: Final = LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=352, context_tokens=128)
SPEEDS: Final = (1, 2, 4)
SLOWDOWN_OF_THE_FASTEST: Final = 2
INTERVAL_S: Final = 6.0
WARM_UP_ROUNDS: Final = 3
LEAST_SHARE: Final = 0.95
MOST_OFF: Final = 0.05


@dataclass(frozen=True, slots=True)
class Window:
    """Some rounds in a row; by speed.

    Attributes:
        trained: share of its time that a peer's training process trained.
        tokens: what a peer trained.
        weights: its mean share of the rounds.
        num_rounds: how many of the rounds were seen.
    """

    trained: Mapping[int, float]
    tokens: Mapping[int, int]
    weights: Mapping[int, float]
    num_rounds: int

    def off(self, speed: int) -> float:
        """How far the weight is from the share of the tokens, relative to that."""
        share = self.tokens[speed] / sum(self.tokens.values())
        return abs(self.weights[speed] - share) / share


def places_of(directory: Path) -> Places:
    """A corner for each speed, with its slowdown and the file for its times, in the order of SPEEDS."""
    corners = []
    for speed in SPEEDS:
        slowdown = SLOWDOWN_OF_THE_FASTEST * max(SPEEDS) / speed
        given = (f"POTLUCK_PEER_SLOWDOWN={slowdown:g}", f"{TIMES_VARIABLE}={times_file(directory, speed)}")
        corners.append(Place(prefix=("env", *given)))
    return Places(LOOPBACK, tuple(corners), "loopback")


def times_file(directory: Path, speed: int) -> Path:
    """The file that the training process of this speed writes."""
    return directory / f"times-{speed}.jsonl"


def watch_window(watch: Watch, directory: Path, num_rounds: int) -> Window:
    """So many rounds, beginning with a new one.

    Raises:
        MachineError: rounds do not come, or a peer made fewer than two steps meanwhile.
    """
    first = _await_round(watch, _newest(watch) + 1)
    begin_s, before = time.time(), _tokens(watch)
    last = _await_round(watch, first + num_rounds)
    end_s, after = time.time(), _tokens(watch)
    peers = dict(zip(SPEEDS, (watch.swarm.peers[number] for number in sorted(watch.swarm.peers)), strict=True))
    rounds = [row for index, row in watch.rounds.items() if first < index <= last]
    trained = {}
    for speed in SPEEDS:
        share = trained_share(read_times(times_file(directory, speed)), begin_s, end_s)
        if share is None:
            raise MachineError(f"fewer than two steps of the peer of speed {speed}", "peers that train")
        trained[speed] = share
    tokens = {speed: after[peer.number] - before[peer.number] for speed, peer in peers.items()}
    weights = {
        speed: statistics.fmean(row.weights.get(peer.peer_id, 0.0) for row in rounds) for speed, peer in peers.items()
    }
    return Window(trained, tokens, weights, len(rounds))


def _newest(watch: Watch) -> int:
    watch.look()
    return max(watch.index_of(peer) for peer in watch.swarm.peers.values())


def _await_round(watch: Watch, index: int) -> int:
    deadline_s = time.monotonic() + 20 * INTERVAL_S
    while (newest := _newest(watch)) < index:
        if time.monotonic() > deadline_s:
            raise MachineError(f"no round {index}, the newest is {newest}", f"one every {INTERVAL_S:.0f} s")
        time.sleep(0.1)
    return newest


def _tokens(watch: Watch) -> dict[int, int]:
    return {number: watch.heads[number].tokens_trained for number in watch.swarm.peers}


def measure(directory: Path, num_windows: int, num_rounds: int) -> list[Window]:
    """Windows one after another, on one swarm."""
    config = run_config(MODEL, len(SPEEDS), INTERVAL_S)
    directory.mkdir(parents=True, exist_ok=True)
    with open_children(directory / "logs") as children:
        swarm: Swarm = start_swarm(
            children,
            directory,
            places_of(directory),
            config,
            peer_environment={},
            peer_flags=("--device", "cpu", "--num-threads", "1"),
            peer_module=TIMED_PEER,
        )
        try:
            await_whole(swarm, WARM_UP_ROUNDS)
            watch, windows = Watch(swarm), []
            for _ in range(num_windows):
                windows.append(watch_window(watch, directory, num_rounds))
                print(windows[-1], flush=True)
            return windows
        finally:
            swarm.close_logs()


def rows(windows: Sequence[Window], settings: Mapping[str, object]) -> list[Row]:
    """For each speed the share of its time, and how far its weight is off."""
    made = []
    for speed in SPEEDS:
        shares, off = [window.trained[speed] for window in windows], [window.off(speed) for window in windows]
        is_met = min(shares) >= LEAST_SHARE
        reported = f"speed {speed}: share of its time that it trains"
        made.append(_row(reported, sorted(shares, reverse=True), f">= {LEAST_SHARE:g}", is_met, settings))
        reported = f"speed {speed}: weight off its share of the tokens by"
        made.append(_row(reported, sorted(off), f"<= {MOST_OFF:g}", max(off) <= MOST_OFF, settings))
    return made


def _row(metric: str, best_first: Sequence[float], target: str, is_met: bool, settings: Mapping[str, object]) -> Row:
    spread = {"best": round(best_first[0], 4), "worst": round(best_first[-1], 4)}
    median = round(statistics.median(best_first), 4)
    return Row(BENCH, metric, median, "share", None, None, target, is_met, len(best_first), spread, settings)


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speeds", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="one window of five rounds instead of three of fifteen")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this new folder")
    options = parser.parse_args(arguments)
    num_windows, num_rounds = (1, 5) if options.quick else (3, 15)
    before = machine()
    with tempfile.TemporaryDirectory(prefix="potluck-speeds-") as temporary:
        directory = options.keep.absolute() if options.keep else Path(temporary)
        windows = measure(directory, num_windows, num_rounds)
    settings = {
        "speeds": SPEEDS,
        "slowdown_of_the_fastest": SLOWDOWN_OF_THE_FASTEST,
        "parameters": model_schema(MODEL).num_elements,
        "longest_interval_s": INTERVAL_S,
        "rounds": [window.num_rounds for window in windows],
        "machine_before": before,
        "machine_after": machine(),
    }
    made = rows(windows, settings)
    write_rows(made, options.json)
    print_rows(made, "speeds: peers of speed 1 : 2 : 4")
    return 0 if all(row.met is not False for row in made) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
