"""`python -m tests.benchmarks.allreduce --json FILE [--quick]`: one round of real peers beside hivemind's averager and gloo.

A peer is a whole daemon, in a process of its own, with everything that a round is in the product: credentials, encryption, signed and
hashed contributions, the log, the certificate, the applied state. Only its training is replaced by a vector that is given
(allreduce_peer.py). The host runs beside and is not counted. Links of 1 Gbit/s and 100 Mbit/s are token buckets at both ends of each
peer's own namespace. Trials of all groups take turns. The first rounds of each are not counted, as many of ours as of the others, and
told in a row of their own: connections are made in them, lines learned, and memory is taken that none of them had before. Ours keeps
the contributions of four rounds, and a virtual machine clears what it gives anew at up to 0.4 s for 100 MB.

Wall time of ours begins when the first peer is asked for its snapshot, and ends when the last one has the certificate on disk and
the new state in memory; all results and votes are on disk by then. Its trainers go on there; the state is hashed for its root then,
which is a row of its own ("until rooted"), and in the processor time. hivemind's is that of `step()`, its matchmaking included;
gloo's that of `all_reduce`. "Wall from the order on" begins where theirs does, at the moment for which a trial is ordered: our peers
then tell one another that a round is due, and one proposes it. Processor time is that of all processes of a group and all their
descendants, p2pd included; of ours in two figures, without and with writing the whole new state to disk, which the others do not do.
The lesser figure of each pair has the target, the other one stands beside the same baseline without any.

All places together take hours; `--list` tells the parts that fit into half an hour each, and `--part` measures one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from protocol.errors import PotluckError
from tests.benchmarks.allreduce_arithmetic import error_rows
from tests.benchmarks.allreduce_groups import Group, open_gloo, open_hivemind, open_ours, run_config
from tests.benchmarks.allreduce_kill import kill_in_turn, kill_rows
from tests.benchmarks.allreduce_plan import (
    FULL,
    FULL_KILLS,
    FULL_LIMIT_S,
    KILLED_AT,
    QUICK,
    QUICK_KILLS,
    QUICK_LIMIT_S,
    Plan,
    expected_s,
    parts_of,
)
from tests.benchmarks.allreduce_rows import BENCH, IDLE_BYTES_PER_S, Measured, Setting, rows_of
from tests.benchmarks.idle_memory import IN_MEMORY, memory_rows
from tests.benchmarks.places import LOOPBACK, Place, Places, open_places
from tests.benchmarks.processes import Children, open_children
from tests.benchmarks.results import Row, machine, print_rows, write_rows

TRIAL_LIMIT_S: Final = 240.0


@contextmanager
def _places(setting: Setting) -> Iterator[Places]:
    if not setting.rate_mbit_s:
        yield Places(LOOPBACK, (Place(),) * setting.num_peers, "loopback")
        return
    with open_places(setting.num_peers, setting.rate_mbit_s) as places:
        yield places


def take_turns(groups: Sequence[Group], plan: Plan, setting: Setting) -> None:
    """Warm-ups of all in turn, then trials, the last ones after a pause."""
    for number in range(setting.num_warm_ups):
        for group in groups:
            warm_up = group.trial(TRIAL_LIMIT_S, is_warm_up=True) if group.num_done == number else None
            if warm_up is not None:
                group.first.append(warm_up)
    for number in range(plan.num_trials):
        if number == plan.num_trials - 1 and not all(group.failed for group in groups):
            time.sleep(setting.idle_s)
        for group in groups:
            begin_s = time.monotonic()
            trial = group.trial(min(TRIAL_LIMIT_S, max(5.0, plan.left_s)))
            if trial is not None:
                print(f"  {group.name}: {trial.wall_s:.3f} s, processor {trial.cpu_s:.2f} s", flush=True)
            if time.monotonic() - begin_s > plan.left_s:
                return


def measure(children: Children, directory: Path, setting: Setting, plan: Plan) -> list[Measured]:
    """All codecs of one setting, the first beside every baseline, the others beside gloo."""
    found: list[Measured] = []
    with _places(setting) as places, ExitStack() as stack:
        if setting.rate_mbit_s and not places.peers[0].namespace:
            print(f"{setting.name} left out: {places.how}", flush=True)
            return []
        others: list[Group] = []
        if setting.has_baselines:
            others.append(stack.enter_context(open_gloo(children, directory, places, setting.num_elements)))
            for compression in setting.compressions:
                opened = open_hivemind(children, directory, places, setting.num_elements, compression)
                others.append(stack.enter_context(opened))
        if setting.is_apart:
            take_turns(others, plan, setting)
            stack.close()
        for number, codec in enumerate(setting.codecs):
            if number and not plan.fits(setting):
                break
            beside = others if number == 0 else others[:1]
            try:
                found.append(_measure_codec(children, directory / codec, places, setting, codec, beside, plan))
            except PotluckError as error:  # what the codecs before it took stands
                print(f"{setting.name}, {codec}: {error.one_line()}", flush=True)
    return found


def _measure_codec(
    children: Children,
    directory: Path,
    places: Places,
    setting: Setting,
    codec: str,
    beside: Sequence[Group],
    plan: Plan,
) -> Measured:
    print(f"{setting.name}, {codec}", flush=True)
    config = run_config(setting.num_elements, setting.num_peers, codec, setting.chunk_elements)
    begun = {group.name: 0 if setting.is_apart else len(group.trials) for group in beside}
    killed: list[Row] = []
    with open_ours(children, directory, places, config) as ours:
        take_turns((ours,) if setting.is_apart else (ours, *beside), plan, setting)
        if (setting.num_peers, setting.rate_mbit_s, codec) == KILLED_AT and not ours.failed:
            kills = kill_in_turn(ours, places, setting, codec, plan)
            killed = kill_rows(kills, ours.trials, f"{setting.name}, {codec}", {})
            ours.failed = ""
    for group in (ours, *beside):
        if group.failed:
            print(f"  {group.failed}", flush=True)
    baselines = {group.name: group.trials[begun[group.name] :] for group in beside}
    failures = [group.failed for group in (ours, *beside) if group.failed]
    return Measured(setting, codec, ours.trials, baselines, ours.relative_error, failures, killed, ours.first)


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.allreduce", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer places and trials, at most ten minutes")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this new folder")
    parser.add_argument(
        "--part", type=int, default=0, help="which part of the whole, from 1; without it as much as fits"
    )
    parser.add_argument("--list", action="store_true", help="tell the parts and how long they take, and end")
    parser.add_argument(
        "--only", default="", help="only places with this in their name, such as 'loopback, 25M, N = 4'"
    )
    parser.add_argument("--trials", type=int, default=0)
    options = parser.parse_args(arguments)
    num_trials = options.trials or (3 if options.quick else 5)
    limit_s, num_kills = (QUICK_LIMIT_S, QUICK_KILLS) if options.quick else (FULL_LIMIT_S, FULL_KILLS)
    known = [each for each in (QUICK if options.quick else FULL) if options.only in each.name]
    parts = parts_of(known, num_trials, num_kills)
    if options.list:
        _print_parts(parts, num_trials, num_kills)
        return 0
    if options.json is None or not 0 <= options.part <= len(parts):
        parser.error(f"expected --json FILE, and a part of 1 to {len(parts)} or none")
    settings = parts[options.part - 1] if options.part else [setting for part in parts for setting in part]
    plan = Plan(settings, num_trials, limit_s, num_kills)
    before = machine()
    rows: list[Row] = error_rows(BENCH) if options.part < 2 else []
    if options.only in IN_MEMORY and options.part < 2:
        rows += memory_rows(BENCH, IDLE_BYTES_PER_S)
    with tempfile.TemporaryDirectory(prefix="potluck-allreduce-") as temporary:
        directory = options.keep.absolute() if options.keep else Path(temporary)
        for found in _measure_all(directory, plan, {"machine_before": before}):
            rows += found
            write_rows(rows, options.json)  # what an interrupt leaves
    write_rows(rows, options.json)
    judged = [row for row in rows if row.target or row.baseline is not None]
    print_rows(judged, f"allreduce: one round of real peers; {len(rows) - len(judged)} rows more in {options.json}")
    print(f"machine before {before}, after {machine()}; {time.monotonic() - plan.began_s:.0f} s")
    return 0 if all(row.met is not False for row in rows) else 1


def _print_parts(parts: Sequence[Sequence[Setting]], num_trials: int, num_kills: int) -> None:
    for number, part in enumerate(parts, 1):
        minutes = [expected_s(setting, num_trials, num_kills) / 60 for setting in part]
        print(f"--part {number}: {sum(minutes):.0f} minutes")
        for setting, own in zip(part, minutes, strict=True):
            beside = ", ".join(("gloo", *setting.compressions)) if setting.has_baselines else "nothing"
            print(f"  {setting.name}: {', '.join(setting.codecs)} beside {beside}; {own:.0f} minutes")


def _measure_all(directory: Path, plan: Plan, about: dict[str, object]) -> Iterator[list[Row]]:
    """The rows of each setting when it is done."""
    with open_children(directory / "logs") as children:
        for number, setting in enumerate(plan.settings):
            if not plan.fits(setting):
                print(f"{setting.name} left out: no time", flush=True)
                continue
            try:
                found = [
                    row
                    for each in measure(children, directory / str(number), setting, plan)
                    for row in rows_of(each, about)
                ]
            except PotluckError as error:
                print(f"{setting.name}: {error.one_line()}", flush=True)
            else:
                yield found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
