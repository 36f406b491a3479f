"""python -m tests.simulation --seeds N --start S [--check-determinism]: seeded swarms in virtual time."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import structlog

from tests.simulation.swarm import simulate


def main() -> int:
    """Exit code 1 when a seed fails; every failure prints its seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--check-determinism", action="store_true", help="run each seed again in a second process")
    parser.add_argument("--verbose", action="store_true", help="log what the services say")
    args = parser.parse_args()
    if not args.verbose:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    failed, begin = [], time.monotonic()
    for seed in range(args.start, args.start + args.seeds):
        try:
            outcome = simulate(seed)
        except BaseExceptionGroup as group:
            failed.append(seed)
            print(f"seed {seed}: FAILED {[str(e) for e in _leaves(group)]}")
            continue
        except AssertionError as error:
            failed.append(seed)
            print(f"seed {seed}: FAILED {error}")
            continue
        print(f"seed {seed}: {outcome.rounds} rounds in {outcome.virtual_s:.0f} virtual s, trace {outcome.trace[:16]}")
        if args.check_determinism and not _is_same_elsewhere(seed, outcome.trace):
            failed.append(seed)
    print(f"{args.seeds - len(failed)} of {args.seeds} seeds good in {time.monotonic() - begin:.1f} s")
    return 1 if failed else 0


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def _is_same_elsewhere(seed: int, trace: str) -> bool:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "1", "--start", str(seed)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    if trace[:16] in printed:
        return True
    print(f"seed {seed}: FAILED: another trace in a second process: {printed.strip()}")
    return False


if __name__ == "__main__":
    sys.exit(main())
