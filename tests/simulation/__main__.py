"""python -m tests.simulation --seeds N --start S: seeded swarms in virtual time, one line per failing seed, and a summary.

python -m tests.simulation --scenario NAME|all --seeds N --start S: scripted ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from tests.simulation import transitions
from tests.simulation.collection import SCENARIOS
from tests.simulation.lives import MINTED
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.scenario import play
from tests.simulation.stories import Options, Outcome, simulate

ENOUGH_SEEDS = 50
"""From so many seeds on, a kind of fault that never happened fails the run."""

ENOUGH_PEER_HOURS = 96.0
"""The same for a profile with turnover, whose few stories last for hours: in eight peers' twelve about 24 come and 24 go."""

ENOUGH_FOR_TRANSITIONS = 100
"""From so many seeds on, a transition of the profile that was never reached fails the run."""

EPILOG = (
    f"Exits with 1 on any violation; from {ENOUGH_SEEDS} seeds on where a kind of fault of the profile never happened (with turnover: "
    f"from {ENOUGH_PEER_HOURS:.0f} virtual hours times peers on); from {ENOUGH_FOR_TRANSITIONS} seeds on where a transition of the "
    "round machine that the profile must reach was never reached."
)


@dataclass
class Totals:
    """The sums over many stories."""

    seeds: int = 0
    rounds: int = 0
    virtual_s: float = 0.0
    errors: dict[int, str] = field(default_factory=dict)
    traces: dict[int, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    turnover: list[float] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """One more story."""
        self.seeds += 1
        self.rounds += outcome.rounds
        self.virtual_s += outcome.virtual_s
        self.traces[outcome.seed] = outcome.trace
        if outcome.error:
            self.errors[outcome.seed] = outcome.error
        self.faults.update(outcome.faults)
        self.turnover += outcome.turnover
        self.reached.update(outcome.reached)
        self.tokens.update(outcome.tokens)

    def merge(self, other: dict[str, Any]) -> None:
        """The totals of another process, as its JSON says them."""
        self.seeds += other["seeds"]
        self.rounds += other["rounds"]
        self.virtual_s += other["virtual_s"]
        self.errors.update({int(seed): error for seed, error in other["errors"].items()})
        self.traces.update({int(seed): trace for seed, trace in other["traces"].items()})
        self.faults.update(other["faults"])
        self.turnover += other["turnover"]
        self.reached.update(other["reached"])
        self.tokens.update(other["tokens"])

    def unseen(self, profile: Profile, num_peers: int) -> list[str]:
        """Kinds of fault that must have happened by now and did not."""
        is_enough = self.seeds >= ENOUGH_SEEDS
        if profile.turnover:
            is_enough = self.virtual_s / 3600.0 * num_peers >= ENOUGH_PEER_HOURS
        return [kind for kind in profile.kinds if not self.faults[kind]] if is_enough else []

    def unreached(self, profile: Profile) -> list[str]:
        """Transitions that must have been reached by now and were not."""
        return transitions.missing(self.reached, profile.transitions) if self.seeds >= ENOUGH_FOR_TRANSITIONS else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 on any violation, or where a kind of fault or a transition of the profile never happened.

    `arguments`: in the place of those of the process.
    """
    args = _parsed(arguments)
    if not args.verbose:
        quiet = structlog.make_filtering_bound_logger(50)
        structlog.configure(wrapper_class=quiet, cache_logger_on_first_use=True)
    begin_s = time.monotonic()
    if args.scenario:
        return _scenarios(args)
    totals = Totals()
    if args.processes > 1:
        _forked(args, totals)
    else:
        for seed in range(args.start, args.start + args.seeds):
            totals.add(_story(seed, args))
    if args.check_determinism:
        again = Totals()
        for child in _children(args, args.processes):
            _collect(child, again)
        for seed, trace in sorted(totals.traces.items()):
            if again.traces.get(seed) != trace:
                other = again.traces.get(seed, "none")[:12]
                totals.errors.setdefault(seed, f"another trace in a second process: {trace[:12]} and {other}")
    return _report(args, totals, time.monotonic() - begin_s)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", epilog=EPILOG)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--peers", type=int, help="peers at the start; the profile draws them otherwise")
    parser.add_argument("--hours", type=float, help="virtual hours of a profile with turnover")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="default")
    parser.add_argument("--scenario", choices=["all", *SCENARIOS], help="a scripted run instead of a drawn one")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--check-determinism", action="store_true", help="run every seed again in another process")
    parser.add_argument("--trace", action="store_true", help="print what happened, line by line")
    parser.add_argument("--verbose", action="store_true", help="log what the services say")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON instead of a summary")
    return parser.parse_args(arguments)


def _scenarios(args: argparse.Namespace) -> int:
    """One scenario or all, with each seed."""
    num_failed = num_reported = 0
    for name in SCENARIOS if args.scenario == "all" else (args.scenario,):
        for seed in range(args.start, args.start + args.seeds):
            outcome = play(SCENARIOS[name], seed, keeps_trace=args.trace)
            num_reported += 1
            if args.trace:
                print("".join(outcome.lines), end="")
            if outcome.error:
                num_failed += 1
                print(f"{name} seed {seed}: FAILED {outcome.error}", flush=True)
    print(f"scenarios told       {num_reported}")
    print(f"violations           {num_failed}")
    return 1 if num_failed else 0


def _story(seed: int, args: argparse.Namespace) -> Outcome:
    outcome = simulate(seed, PROFILES[args.profile], Options(args.peers, args.hours, args.trace))
    if args.trace:
        print("".join(outcome.lines), end="")
    if outcome.error and not args.json:
        print(f"seed {seed}: FAILED {outcome.error}", flush=True)
    return outcome


def _forked(args: argparse.Namespace, totals: Totals) -> None:
    """The seeds dealt out to processes forked off this one: importing what they need takes as long as some stories."""
    shares = [_fork(args, number) for number in range(args.processes)]
    for pid, reading in shares:
        with os.fdopen(reading) as reported:
            printed = reported.read()
        _, status = os.waitpid(pid, 0)
        if status or not printed:
            raise SystemExit(f"a simulating process ended with {os.waitstatus_to_exitcode(status)}")
        totals.merge(json.loads(printed))


def _fork(args: argparse.Namespace, number: int) -> tuple[int, int]:
    """Every so many seeds from this one on: (process, where it tells its totals)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        share, silent = Totals(), argparse.Namespace(**{**vars(args), "json": True, "trace": False})
        for seed in range(args.start + number, args.start + args.seeds, args.processes):
            share.add(_story(seed, silent))
        with os.fdopen(writing, "w") as reported:
            json.dump(vars(share), reported)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def _children(args: argparse.Namespace, num_processes: int) -> list[subprocess.Popen[str]]:
    """The seeds, split; each with a hash seed of its own, so that an order that hangs on hashes shows."""
    children = []
    for number in range(max(1, num_processes)):
        begin = args.start + args.seeds * number // num_processes
        stop = args.start + args.seeds * (number + 1) // num_processes
        command = [sys.executable, "-m", "tests.simulation", "--json", "--profile", args.profile]
        command += ["--start", str(begin), "--seeds", str(stop - begin)]
        command += ["--peers", str(args.peers)] if args.peers else []
        command += ["--hours", str(args.hours)] if args.hours else []
        environment = {**os.environ, "PYTHONHASHSEED": str(1000 + number)}
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    return children


def _collect(child: subprocess.Popen[str], totals: Totals) -> None:
    printed, _ = child.communicate()
    if child.returncode not in (0, 1) or not printed:
        raise SystemExit(f"a simulating process ended with {child.returncode}")
    totals.merge(json.loads(printed))


def _report(args: argparse.Namespace, totals: Totals, wall_s: float) -> int:
    if args.json:
        print(json.dumps(vars(totals)))
        return 1 if totals.errors else 0
    if args.processes > 1 or args.check_determinism:
        for seed, error in sorted(totals.errors.items()):
            print(f"seed {seed}: FAILED {error}")
    profile = PROFILES[args.profile]
    unseen = totals.unseen(profile, args.peers or profile.num_peers[0])
    unreached = totals.unreached(profile)
    never = ", ".join(transitions.missing(totals.reached)) or "none"
    print(f"profile              {args.profile}")
    print(f"seeds                {totals.seeds}")
    print(f"rounds resolved      {totals.rounds}")
    if totals.turnover:
        mean, most = sum(totals.turnover) / len(totals.turnover), max(totals.turnover)
        print(f"turnover a round     {mean:.1%} on average, {most:.1%} at most, in {len(totals.turnover)} intervals")
    print("faults by kind       " + ", ".join(f"{kind} {n}" for kind, n in sorted(totals.faults.items())))
    if unseen:
        print("FAULTS NEVER SEEN    " + ", ".join(unseen))
    if unreached:
        print("NEVER REACHED        " + ", ".join(unreached))
    print("tokens               " + _reported(totals.tokens))
    print(f"transitions reached  {len(totals.reached)} kinds, {sum(totals.reached.values())} in all; never: {never}")
    for kind, number in sorted(totals.reached.items()):
        print(f"    {kind:<28} {number}")
    print(f"virtual hours        {totals.virtual_s / 3600:.2f}")
    print(f"wall seconds         {wall_s:.1f} ({wall_s / max(1, totals.seeds):.2f} a seed)")
    spent = os.times()
    cpu_s = spent.user + spent.system + spent.children_user + spent.children_system
    print(f"processor seconds    {cpu_s:.1f}, those of its processes included")
    print(f"violations           {len(totals.errors)}")
    return 1 if totals.errors or unseen or unreached else 0


def _reported(tokens: Counter[str]) -> str:
    """The fate of all trained tokens."""
    trained = max(1, tokens[MINTED])
    parts = (f"{name} {number / trained:.2%}" for name, number in tokens.most_common() if name != MINTED)
    return f"{tokens[MINTED]} trained: " + ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
