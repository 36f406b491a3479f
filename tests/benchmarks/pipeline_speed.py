"""Rows of pipeline runs that need real time: a lane of processes beside torch's own pipeline, and what a lost member costs.

Every end is a peer's network with its p2pd and direct bulk, encrypted, and a training process of one thread; torch's are three
processes of one thread over gloo, in clear text. All stay up; each trial measures them in turn.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import psutil

from tests.benchmarks import pipeline_plan as plan
from tests.benchmarks.pipeline_end import KEEPER, SPARE, SPARE_STAGE, STAGE_OF, write_credentials
from tests.benchmarks.places import LOOPBACK, Place
from tests.benchmarks.processes import die_with_parent, family_of, kill_family
from tests.benchmarks.results import Row, at_most, machine
from tests.benchmarks.slow_wire import open_wire
from tests.benchmarks.wire_core import WireSpec
from tests.ports import free_port

BENCH: Final = "pipeline"
TORCHS: Final = ("gpipe", "1f1b")
HOP_S: Final = 0.05
_LOOK_S: Final = 0.25
_LIMIT_S: Final = 60.0

Process = subprocess.Popen[str]


def _pipes(process: Process) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise SystemExit("a process without pipes")
    return process.stdin, process.stdout


def _tell(process: Process, line: str) -> None:
    given, _ = _pipes(process)
    given.write(line + "\n")
    given.flush()


def _hear(process: Process) -> dict[str, object]:
    line = _pipes(process)[1].readline()
    if not line:
        raise SystemExit(f"a stage ended with {process.wait()}: {process.args!r}")
    reported: dict[str, object] = json.loads(line)
    return reported


def _ask(process: Process, line: str) -> dict[str, object]:
    _tell(process, line)
    return _hear(process)


def _number(reported: dict[str, object], name: str) -> float:
    found = reported[name]
    if not isinstance(found, int | float):
        raise SystemExit(f"{name} is {found!r}")
    return float(found)


@contextmanager
def _open(command: Sequence[str], log: Path, environment: dict[str, str]) -> Iterator[Process]:
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        kill_family(process.pid)
        process.wait()


@dataclass
class Pipeline:
    """The stages of one way to train, and what was measured of it."""

    processes: dict[str, Process]
    schedule: str
    is_torch: bool
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor seconds of all processes for each inner step."""

    num_steps: int = 0
    loss_nats: float = 0.0
    """Of the last of its steps, in nats a token."""

    def take(self, steps: int) -> float:
        """So many inner steps, measured; returns the seconds that each took."""
        before_s, first = self._cpu_s(), self.processes[KEEPER]
        reported = _ask(first, f"{self.schedule} {steps}" if self.is_torch else f"steps {steps}")
        seconds = _number(reported, "seconds") / steps
        self.seconds.append(seconds)
        self.cpu_s.append((self._cpu_s() - before_s) / steps)
        if self.is_torch:
            self.loss_nats = _number(reported, "loss_nats")
        else:
            self.num_steps += steps
            last = self.processes[f"stage{plan.NUM_STAGES - 1}"]
            self.loss_nats = _number(_ask(last, f"loss {self.num_steps}"), "loss_nats")
        return seconds

    def _cpu_s(self) -> float:
        total_s = 0.0
        for process in (one for end in self.processes.values() for one in family_of(end.pid)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s


@contextmanager
def open_lane(
    folder: Path, codec: str, schedule: str, places: Sequence[Place] = (), *, has_spare: bool = False
) -> Iterator[Pipeline]:
    """A lane of ours, that waits for orders; its processes end with the block."""
    folder.mkdir()
    plan.write_text(folder)
    write_credentials(folder)
    names = [name for name in STAGE_OF if name != SPARE or has_spare]
    with ExitStack() as stack:
        processes = {}
        for number, name in enumerate(names):
            place = places[number] if places else Place()
            words = (sys.executable, "-m", "tests.benchmarks.pipeline_end", str(folder), name, codec, schedule)
            command = [*place.prefix, *words, SPARE if has_spare else "none", place.address]
            processes[name] = stack.enter_context(_open(command, folder / f"{name}.log", {}))
        reported = {name: _hear(process) for name, process in processes.items()}
        for process in processes.values():
            _tell(process, json.dumps(reported))
        yield Pipeline(processes, schedule, is_torch=False)


@contextmanager
def open_torch(folder: Path, places: Sequence[Place] = ()) -> Iterator[dict[str, Pipeline]]:
    """Torch's pipeline in each schedule, over the same three processes."""
    folder.mkdir()
    plan.write_text(folder)
    first = places[0].address if places else LOOPBACK
    port = 29_500 if places else free_port(first)
    with ExitStack() as stack:
        processes = {}
        for rank in range(plan.NUM_STAGES):
            place = places[rank] if places else Place()
            words = (sys.executable, "-m", "tests.benchmarks.pipeline_gloo", str(folder), str(rank), first, str(port))
            interface = {"GLOO_SOCKET_IFNAME": place.namespace.replace("n", "t") if places else "lo"}
            log = folder / f"rank{rank}.log"
            processes[f"stage{rank}"] = stack.enter_context(_open([*place.prefix, *words], log, interface))
        _hear(processes["stage0"])  # all are connected: gloo gives up where that takes long, on slow lines
        yield {schedule: Pipeline(processes, schedule, is_torch=True) for schedule in TORCHS}


def _in_turn(pipelines: Sequence[Pipeline], trials: int, steps: int) -> None:
    for pipeline in pipelines:
        pipeline.take(1)  # connections, shapes and allocations are made
        pipeline.seconds.clear()
        pipeline.cpu_s.clear()
    for _ in range(trials):
        for pipeline in pipelines:
            pipeline.take(steps)


def _rows(
    name: str, lane: Pipeline, torchs: dict[str, Pipeline], limit: float, settings: dict[str, object]
) -> list[Row]:
    """The lane's steps a second, beside each of torch's schedules; `met` by the medians' ratio."""
    rows = []
    ours = [1.0 / seconds for seconds in lane.seconds]
    for schedule, torch_ in torchs.items():
        value = statistics.median(ours)
        baseline = statistics.median(1.0 / seconds for seconds in torch_.seconds)
        ratio = value / baseline
        more = {
            "ratios": [round(b / a, 3) for a, b in zip(lane.seconds, torch_.seconds, strict=True)],
            "cpu_s_per_step": round(statistics.median(lane.cpu_s), 3),
            "baseline_cpu_s_per_step": round(statistics.median(torch_.cpu_s), 3),
            "loss_nats": round(lane.loss_nats, 4),
            "baseline_loss_nats": round(torch_.loss_nats, 4),
        }
        spread = {"best": round(max(ours), 4), "worst": round(min(ours), 4)}
        rows.append(
            Row(
                BENCH,
                f"{name}, against torch's {schedule}: {ratio:.2f} x",
                round(value, 4),
                "steps/s",
                round(baseline, 4),
                round(ratio, 3),
                f">= {limit:g} x",
                ratio >= limit,
                len(ours),
                spread,
                {**settings, **more, "schedule": lane.schedule},
            )
        )
    return rows


def no_delay(folder: Path, trials: int, steps: int) -> list[Row]:
    """On loopback, with the codec that runs have and with none."""
    settings: dict[str, object] = {**machine(), "steps": steps, "delay_s": 0.0}
    with (
        open_lane(folder / "int8", "int8", "1f1b") as int8,
        open_lane(folder / "fp32", "fp32", "1f1b") as fp32,
        open_torch(folder / "torch") as torchs,
    ):
        _in_turn([int8, fp32, *torchs.values()], trials, steps)
        return [
            *_rows("lane, int8", int8, torchs, 0.7, settings),
            *_rows("lane, fp32", fp32, torchs, 0.7, settings),
        ]


def delayed(folder: Path, trials: int, steps: int) -> list[Row]:
    """With 50 ms one way between any two; as root alone."""
    settings: dict[str, object] = {**machine(), "steps": steps, "delay_s": HOP_S}
    with open_wire(plan.NUM_STAGES) as wire:
        places = wire.places.peers
        with (
            open_lane(folder / "slow", "int8", "gpipe", places) as lane,
            open_torch(folder / "slow-torch", places) as torchs,
        ):
            wire.become(WireSpec(delay_s=HOP_S))
            _in_turn([lane, *torchs.values()], trials, steps)
            return _rows("lane, int8, 50 ms a hop", lane, torchs, 1.0, settings)


def losses(folder: Path, trials: int) -> list[Row]:
    """From a member's death, and from its goodbye, to the end of the next micro-batch; each in a lane of its own, with a spare."""
    found: dict[str, list[float]] = {"kill": [], "leave": []}
    ended: list[str] = []
    for trial in range(trials):
        for how, seconds in found.items():
            try:
                with open_lane(folder / f"{how}{trial}", "int8", "1f1b", has_spare=True) as lane:
                    seconds.append(_lost_s(lane, how))
            except SystemExit as error:  # what else is measured stands, and this one is missing in the row
                ended.append(str(error)[:200])
    settings: dict[str, object] = {
        **machine(),
        "lost_stage": SPARE_STAGE,
        "schedule": "1f1b",
        "codec": "int8",
        "trials_without_a_figure": ended,
    }
    return [
        at_most(BENCH, "kill to the next finished micro-batch, a spare", found["kill"], 2.0, settings),
        at_most(BENCH, "goodbye to the next finished micro-batch, a spare", found["leave"], 0.3, settings),
    ]


def _lost_s(lane: Pipeline, how: str) -> float:
    first, lost = lane.processes[KEEPER], lane.processes[f"stage{SPARE_STAGE}"]
    lane.take(2)
    _ask(first, "begin")
    time.sleep(lane.seconds[-1] * 1.5)  # in mid-step
    epoch = max(mark[1] for mark in _marks(first))
    if how == "leave":
        began_s = _number(_ask(lost, "leave"), "left_s")
    else:
        began_s = time.monotonic()
        for process in family_of(lost.pid):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
    limit_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < limit_s:
        done = [at_s for at_s, of, _, is_backward in _marks(first) if of > epoch and is_backward]
        if done:
            return min(done) - began_s
        time.sleep(_LOOK_S)
    raise SystemExit(f"no micro-batch in {_LIMIT_S:g} s after a member was lost ({how})")


def _marks(end: Process) -> list[tuple[float, int, int, bool]]:
    found = _ask(end, "marks")["marks"]
    if not isinstance(found, list):
        raise SystemExit(f"marks are {found!r}")
    return [(float(at_s), int(epoch), int(number), bool(back)) for at_s, epoch, number, back in found]


def speed_rows(*, is_quick: bool) -> Iterator[list[Row]]:
    """All rows that need real time, as they are measured; those with a delay last, where this user may make lines."""
    trials, steps = (2, 2) if is_quick else (5, 10)
    with tempfile.TemporaryDirectory(prefix="potluck-pipeline.") as name:
        folder = Path(name)
        yield losses(folder, trials)
        yield no_delay(folder, trials, steps)
        if os.geteuid() == 0:
            yield delayed(folder, trials, steps)
