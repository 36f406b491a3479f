"""`python -m tests.benchmarks.transport --json FILE [--quick]`: one-way bulk between two processes on loopback, always encrypted.

Ours direct and ours over libp2p, each with everything that a peer has around it (p2pd, the asyncio thread, pacer and counters), beside
a blocking socket with ssl and gRPC over mutual TLS, each in processes that do nothing else. MB (1e6 bytes) a second, and processor
seconds of all processes of both ends, p2pd included, for each GB (1e9 bytes). All ends stay up; each trial measures them in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import psutil

from tests.benchmarks.places import Place
from tests.benchmarks.processes import family_of
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.transport_end import FRAME_BYTES, HOST_VARIABLE, write_credentials

BENCH: Final = "transport"
WAYS: Final = ("direct", "libp2p", "blocking", "grpc")
REFERENCE: Final = "grpc"
"""The reference for all others: the rate without any of our code."""

WARM_UP_BYTES: Final = 32 << 20


@dataclass
class Pair:
    """A taker and a giver of one way, and what was measured of them."""

    taker: subprocess.Popen[str]
    giver: subprocess.Popen[str]
    mb_per_s: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)

    def carry(self, num_bytes: int) -> None:
        """One transfer, measured."""
        before_s = self._cpu_s()
        seconds = float(_ask(self.giver, num_bytes)["seconds"])
        self.mb_per_s.append(num_bytes / seconds / 1e6)
        self.cpu_s_per_gb.append((self._cpu_s() - before_s) / num_bytes * 1e9)

    def _cpu_s(self) -> float:
        total_s = 0.0
        for process in (*family_of(self.taker.pid), *family_of(self.giver.pid)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise SystemExit("a process without pipes")
    return process.stdin, process.stdout


def _line(process: subprocess.Popen[str]) -> str:
    line = _pipes(process)[1].readline()
    if not line:
        raise SystemExit(f"an end of the transfer ended with {process.wait()}")
    return line


def _ask(giver: subprocess.Popen[str], num_bytes: int) -> dict[str, float]:
    given, _ = _pipes(giver)
    given.write(f"{num_bytes}\n")
    given.flush()
    reported: dict[str, float] = json.loads(_line(giver))
    return reported


@contextmanager
def open_pair(
    way: str, folder: Path, places: tuple[Place, Place] = (Place(), Place()), warm_up_bytes: int = WARM_UP_BYTES
) -> Iterator[Pair]:
    """Both ends of one way, the giver's place first; they end with the block."""

    def start(role: str, *more: str) -> subprocess.Popen[str]:
        place = places[role == "take"]
        prefix = ("env", f"{HOST_VARIABLE}={place.address}", *place.prefix)
        command = [*prefix, sys.executable, "-m", "tests.benchmarks.transport_end", role, way, str(folder), *more]
        log = (folder / f"{role}-{way}.log").open("w")
        with log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    ends = [start("take")]
    try:
        ends.append(start("give", _line(ends[0])))
        pair = Pair(ends[0], ends[1])
        _ask(pair.giver, warm_up_bytes)
        yield pair
    finally:
        for end in reversed(ends):
            _pipes(end)[0].close()
            with suppress(subprocess.TimeoutExpired):
                end.wait(timeout=20)
            end.kill()


def rows_of(pairs: dict[str, Pair], settings: dict[str, object]) -> list[Row]:
    """Both figures of each way, with the reference's as baseline."""
    rows = []
    figures: tuple[tuple[str, str, Callable[[Pair], list[float]], bool], ...] = (
        ("speed", "MB/s", lambda pair: pair.mb_per_s, True),
        ("processor", "s/GB", lambda pair: pair.cpu_s_per_gb, False),
    )
    for name, unit, pick, is_more_better in figures:
        baseline = statistics.median(pick(pairs[REFERENCE]))
        for way, pair in pairs.items():
            values = pick(pair)
            value, ends = statistics.median(values), (max(values), min(values))
            best, worst = ends if is_more_better else ends[::-1]
            rows.append(
                Row(
                    BENCH,
                    f"{way}: {name}",
                    round(value, 3),
                    unit,
                    None if way == REFERENCE else round(baseline, 3),
                    None if way == REFERENCE else round(value / baseline, 3),
                    trials=len(values),
                    spread={"best": round(best, 3), "worst": round(worst, 3)},
                    settings=settings,
                )
            )
    return rows


def measure(num_trials: int, num_bytes: int) -> list[Row]:
    """All ways in turn, again and again."""
    before = machine()
    with tempfile.TemporaryDirectory(prefix="potluck-transport.") as name:
        folder = Path(name)
        write_credentials(folder)
        with ExitStack() as stack:
            pairs = {way: stack.enter_context(open_pair(way, folder)) for way in WAYS}
            for _ in range(num_trials):
                for pair in pairs.values():
                    pair.carry(num_bytes)
            return rows_of(pairs, {**before, "bytes": num_bytes, "frame_bytes": FRAME_BYTES})


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table and writes JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.transport", description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    rows = measure(3, 256 << 20) if given.quick else measure(7, 1 << 30)
    write_rows(rows, given.json)
    print_rows(rows, "one-way bulk between two processes, loopback")


if __name__ == "__main__":
    main()
