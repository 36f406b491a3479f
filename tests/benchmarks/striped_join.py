"""How much faster a state comes from several donors than from one, each behind a line of 20 Mbit/s (tc tbf in its own namespace)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from averaging.state.state import STATE_BYTES_PER_VALUE
from protocol.errors import MachineError
from tests.benchmarks.places import Place, Places, open_places
from tests.benchmarks.results import Row

BENCH: Final = "recovery"
LINE_BITS_PER_S: Final = 20_000_000
DONORS: Final = (1, 2, 4)
SHARE_OF_LINES: Final = 0.85
TAKE_LIMIT_S: Final = 180.0
_TBF: Final = ("root", "tbf", "rate", f"{LINE_BITS_PER_S}bit", "burst", "32kb", "latency", "60ms")


@dataclass(frozen=True, slots=True)
class Take:
    """One download."""

    num_donors: int
    seconds: float
    num_bytes: int
    is_equal: bool

    @property
    def share_of_lines(self) -> float:
        """Payload over what the donors' lines can carry together."""
        return 8 * self.num_bytes / self.seconds / (self.num_donors * LINE_BITS_PER_S)


def measure(directory: Path, num_values: int, num_trials: int) -> list[Take]:
    """Downloads from 1, 2 and 4 donors in turn; empty where this user may not make namespaces."""
    takes: list[Take] = []
    with open_places(max(DONORS) + 1) as places:
        if not places.peers[0].can_be_cut:
            print(f"no striped join: {places.how}", flush=True)
            return takes
        for place in places.peers[:-1]:
            _shape(place)
        with _donors(directory, places, num_values) as donors:
            for trial in range(num_trials):
                for number in DONORS:
                    take = _take(directory / f"joiner-{trial}-{number}", places.peers[-1], num_values, donors[:number])
                    print(
                        f"join from {number}: {take.seconds:.2f} s, {take.share_of_lines:.2f} of the lines", flush=True
                    )
                    takes.append(take)
    return takes


def rows(takes: Sequence[Take], settings: dict[str, object]) -> list[Row]:
    """One for each number of donors; the one from a single donor is the baseline of the others."""
    made: list[Row] = []
    alone_s = sorted(take.seconds for take in takes if take.num_donors == 1)
    for number in DONORS:
        shares = sorted(take.share_of_lines * number for take in takes if take.num_donors == number)
        if not shares:
            continue
        median, baseline = shares[len(shares) // 2], None
        if alone_s and number > 1:
            baseline = 1.0
        seconds = sorted(take.seconds for take in takes if take.num_donors == number)[len(shares) // 2]
        made.append(
            Row(
                BENCH,
                f"join from {number} donors: speed, in lines of 20 Mbit/s",
                round(median, 3),
                "lines",
                baseline,
                None if baseline is None else round(alone_s[len(alone_s) // 2] / seconds, 3),
                f">= {SHARE_OF_LINES * number:g}",
                shares[0] >= SHARE_OF_LINES * number and all(take.is_equal for take in takes),
                len(shares),
                {"best": round(shares[-1], 3), "worst": round(shares[0], 3)},
                {**settings, "seconds": round(seconds, 2)},
            )
        )
    return made


def state_bytes(num_values: int) -> int:
    """Of anchor and momentum."""
    return STATE_BYTES_PER_VALUE * num_values


def _shape(place: Place) -> None:
    inner = place.port.replace("v", "i")
    subprocess.run(
        ["ip", "netns", "exec", place.namespace, "tc", "qdisc", "add", "dev", inner, *_TBF], check=True, timeout=20.0
    )


@contextmanager
def _donors(directory: Path, places: Places, num_values: int) -> Iterator[list[dict[str, object]]]:
    with ExitStack() as stack:
        running = [
            stack.enter_context(_running(_command("give", place, directory / f"donor-{number}", num_values)))
            for number, place in enumerate(places.peers[:-1])
        ]
        yield [_first_line(process) for process in running]


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()


def _first_line(process: subprocess.Popen[str]) -> dict[str, object]:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise MachineError("a donor that did not start", "its addresses")
    return dict(json.loads(line))


def _command(what: str, place: Place, folder: Path, num_values: int) -> list[str]:
    module = [sys.executable, "-m", "tests.benchmarks.donor", what]
    return [*place.prefix, *module, str(folder), place.address, str(num_values)]


def _take(folder: Path, place: Place, num_values: int, donors: Sequence[dict[str, object]]) -> Take:
    command = [*_command("take", place, folder, num_values), json.dumps(list(donors))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TAKE_LIMIT_S, check=False)
    if ended.returncode != 0:
        raise MachineError(f"a download that failed: {ended.stderr[-300:]}", "a state")
    reported = json.loads(ended.stdout.splitlines()[-1])
    return Take(len(donors), float(reported["seconds"]), int(reported["bytes"]), bool(reported["is_equal"]))
