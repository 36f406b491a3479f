"""The coordinator killed at each of its SQL statements and file operations, one forked child for each point.

`kill_everywhere` starts `python -m tests.coordinator.crash_points FOLDER`: a process without threads that imports once and forks for
every point. After each kill it starts on the same folder as production does, compares everything that can be read with what was there
before the act and with what the uncut act leaves, and does the act again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Final

import structlog
import torch

from protocol.errors import PotluckError
from tests.coordinator.crash_stories import Story, all_stories
from tests.coordinator.killing import arm

_MODULE: Final = "tests.coordinator.crash_points"
_ROOT: Final = Path(__file__).parents[2]
_LIMIT_S: Final = 800.0


@dataclass(frozen=True, slots=True)
class StoryResult:
    """The outcome of one way of writing.

    Attributes:
        points: operations at which it was killed; the next one is the uncut act.
        before, after: how many of them left the state before, and the state after.
        problems: everything else, in words; none of it may happen.
        slowest_restart_s: the longest time to start on the folder again, imports apart.
    """

    name: str
    points: int
    before: int
    after: int
    problems: tuple[str, ...]
    slowest_restart_s: float


def kill_everywhere(folder: Path, every: int = 1) -> Sequence[StoryResult]:
    """Kill the coordinator at every point of all its ways of writing, or at every so many, in folders below `folder`.

    Raises:
        RuntimeError: the process that does it failed.
    """
    command = [sys.executable, "-m", _MODULE, str(folder), str(every)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [StoryResult(**{**row, "problems": tuple(row["problems"])}) for row in rows]


def _ended_by_kill(story: Story, folder: Path, at: int) -> bool:
    """Act in a child that ends at operation `at`; the last one counted is the answer that nobody gets. Whether it was killed."""
    child = os.fork()
    if not child:
        code = 1
        try:
            killer = arm(folder, at)
            story.act(folder)
            killer.count()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must never return into its parent's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("the act failed, see above")
    return os.WIFSIGNALED(status)


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def _run_story(story: Story, folder: Path, every: int) -> StoryResult:
    folder.mkdir(parents=True)
    template, work = folder / "before", folder / "work"
    template.mkdir()
    story.prepare(template)
    before = story.read(_copy(template, work))
    _copy(template, work)
    story.act(work)
    after, outcome = story.read(work), story.outcome(work)
    points = num_before = num_after = 0
    problems: list[str] = []
    slowest_s = 0.0
    for at in count(1, every):
        _copy(template, work)
        if not _ended_by_kill(story, work, at):
            break
        points += 1
        began_s = time.perf_counter()
        try:
            found = story.read(work)
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
            story.act(work)
            again = story.outcome(work)
        except PotluckError as error:
            problems.append(f"point {at}: {error.one_line()}")
            continue
        num_before += found == before
        num_after += found == after and found != before
        if found not in (before, after):
            between = [name for name in found if found[name] not in (before.get(name), after.get(name))]
            problems.append(f"point {at}: neither before nor after: {between or 'a mixture of both'}")
        if again != outcome:
            problems.append(f"point {at}: done again, it leaves another {[n for n in again if again[n] != outcome[n]]}")
    return StoryResult(story.name, points, num_before, num_after, tuple(problems), round(slowest_s, 3))


def main() -> None:
    """One JSON line for each story."""
    folder, every = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for number, story in enumerate(all_stories()):
        print(json.dumps(asdict(_run_story(story, folder / str(number), every))), flush=True)


if __name__ == "__main__":
    main()
