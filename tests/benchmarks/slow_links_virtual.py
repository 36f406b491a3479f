"""The parts of the slow-links benchmark in virtual time: half an hour at the slowest line, and measured rounds against fixed ones.

`local_steps = "auto"` is to find, at each rate, what somebody would find who tries all numbers of steps: the smallest with which the
target utilisation is kept. So the same swarm is run with fixed numbers around it. In overlap the exchange may take 95% of a round, and
peers train all the time; in blocking runs they train for 95% of it.

While training waits, most exchanges of one rate take as long, and some a second or so more, when its two streams are not done at
the same time. With one number of steps every round is like the one before, so that one number has such rounds often and the next
none, by chance, and the smallest that keeps the utilisation in a few rounds is the luckiest, up to 10% below others that keep it. So
all fixed numbers are asked how long they wait, and the fewest steps are those with which the mean of that is a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean
from typing import Final

from tests.benchmarks.results import Row, machine
from tests.simulation.slow_links import CODEC, Links, Reported, RoundTiming, run
from tests.simulation.trainer import MIN_DIRECTIONS, STEP_TOKENS

BENCH: Final = "slow_links"
RATES_MBIT_S: Final = (100, 50, 20, 10)
UTILISATION: Final = 0.95
TOLERANCE: Final = 0.002
"""Of the share of a round that an exchange takes: what a number of steps that just keeps it may be over it in a few rounds."""

AROUND: Final = (0.9, 0.95, 0.98, 1.0, 1.02, 1.05)
"""Fixed numbers of steps, by that at which measured rounds are due. Rounds last longer, measured and fixed ones alike, by what is
trained until word of it has gone round.
"""

BLOCKING_AROUND: Final = tuple(0.9 + 0.0125 * number for number in range(13))
"""Their waiting time hardly depends on the number of steps."""

FEW_AROUND: Final = (0.9, 1.0, 1.05)
NUM_ROUNDS: Final = 6
BLOCKING_ROUNDS: Final = 48
"""Of a measured run in which training waits; fixed numbers there have a quarter as many each."""

SETTLED_AFTER: Final = 16
"""Rounds of a measured run: from one step, doubling, to as many as any of these takes, and some."""

NEAR: Final = 8
"""Steps by which a round is longer than it is to be: what is trained until word of it has gone round."""

LIMIT_S: Final = 200_000.0
HALF_AN_HOUR_S: Final = 1800.0
MOST_OFF: Final = 0.02


@dataclass(frozen=True, slots=True)
class Choice:
    """Steps of a round, how much of the time is trained, and the share of it in which something is exchanged."""

    steps: float
    utilisation: float
    exchange_share: float

    @property
    def keeps(self) -> bool:
        """Whether that is as good as asked for where training goes on."""
        return self.exchange_share <= UTILISATION + TOLERANCE

    def waited_s(self, step_s: float) -> float:
        """For how long nothing is trained in a round."""
        return self.steps * step_s * (1.0 / self.utilisation - 1.0)


def measured(links: Links, *, is_blocking: bool) -> tuple[Choice, Reported]:
    """The choice of "auto"."""
    timing, num_rounds = RoundTiming(None, UTILISATION, is_blocking), BLOCKING_ROUNDS if is_blocking else NUM_ROUNDS
    reported = run(links, timing, lambda reported: len(reported.rounds) >= SETTLED_AFTER + num_rounds, LIMIT_S)
    return _choice(reported, num_rounds), reported


def _choice(reported: Reported, num_rounds: int) -> Choice:
    return Choice(reported.steps(num_rounds), reported.utilisation(num_rounds), reported.exchange_share(num_rounds))


def best_fixed(links: Links, reported: Reported, around: Sequence[float], *, is_blocking: bool) -> Choice | None:
    """The smallest number that keeps the utilisation: of the fixed ones, where one does, or, in blocking runs, by what they wait."""
    guess = mean(one.target_tokens for one in reported.steady(NUM_ROUNDS)) / (links.num_peers * STEP_TOKENS)
    num_rounds = BLOCKING_ROUNDS // 4 if is_blocking else NUM_ROUNDS
    choices = (
        _choice(_fixed(links, steps, num_rounds, is_blocking=is_blocking), num_rounds)
        for steps in sorted({walkable(ceil(guess * part)) for part in around})
    )
    if is_blocking:
        waited_s = mean(choice.waited_s(links.step_s) for choice in choices)
        return Choice(waited_s / links.step_s * UTILISATION / (1.0 - UTILISATION), UTILISATION, 1.0 - UTILISATION)
    return next((choice for choice in choices if choice.keeps), None)


def walkable(steps: int) -> int:
    """So many, or a few more: simulated parameters come back to where they were after MIN_DIRECTIONS steps, and one contribution would
    be offered twice.
    """
    over = (steps + NEAR) % MIN_DIRECTIONS
    return steps - over + 2 * NEAR if steps >= NEAR and over < 2 * NEAR else steps


def _fixed(links: Links, steps: int, num_rounds: int, *, is_blocking: bool) -> Reported:
    timing = RoundTiming(steps, UTILISATION, is_blocking)
    return run(links, timing, lambda reported: len(reported.rounds) >= num_rounds + 2, LIMIT_S)


def auto_rows(*, is_quick: bool) -> list[Row]:
    """Both modes at all rates; one rate where it is to be quick."""
    rows = []
    for mbit_s in RATES_MBIT_S[1:2] if is_quick else RATES_MBIT_S:
        for is_blocking in (False, True):
            links = Links(mbit_s * 1e6, num_peers=2)
            auto, reported = measured(links, is_blocking=is_blocking)
            around = BLOCKING_AROUND if is_blocking else AROUND
            best = best_fixed(links, reported, FEW_AROUND if is_quick else around, is_blocking=is_blocking)
            print(mbit_s, "blocking" if is_blocking else "overlap", auto, best, flush=True)
            rows += _auto_rows(mbit_s, links, auto, best, is_blocking=is_blocking)
    return rows


def _auto_rows(mbit_s: int, links: Links, auto: Choice, best: Choice | None, *, is_blocking: bool) -> list[Row]:
    mode = "blocking" if is_blocking else "overlap"
    name = f"auto, {mode}, {mbit_s} Mbit/s, simulated"
    settings: Mapping[str, object] = {
        "peers": links.num_peers, "codec": CODEC, "values": links.values, "step_s": links.step_s,
        "latency_one_way_s": links.latency_s, "exchange_share": round(auto.exchange_share, 4), "machine": machine(),
    }  # fmt: skip
    if best is None:
        return [Row(BENCH, f"{name}: no fixed number of steps keeps {UTILISATION}", None, "", settings=settings)]
    regret = auto.utilisation / best.utilisation
    steps, num_rounds = auto.steps / best.steps, BLOCKING_ROUNDS if is_blocking else NUM_ROUNDS
    is_near = abs(steps - 1.0) <= MOST_OFF or abs(auto.steps - best.steps) <= 1.0
    return [
        Row(BENCH, f"{name}: share of the time that peers train", round(auto.utilisation, 4), "share",
            round(best.utilisation, 4), round(regret, 4), f">= {1 - MOST_OFF:g} x", regret >= 1 - MOST_OFF, num_rounds,
            settings=settings),
        Row(BENCH, f"{name}: steps a round, against the fewest that keep {UTILISATION}", round(auto.steps, 2), "steps",
            round(best.steps, 2), round(steps, 4), f"1 +- {MOST_OFF:g} x, or a step", is_near, num_rounds, settings=settings),
    ]  # fmt: skip


def virtual_rows(num_peers: int) -> list[Row]:
    """Half an hour at 1 Mbit/s, 200 ms there and back, 1% lost."""
    links = Links(1e6, latency_s=0.1, loss=0.01, num_peers=num_peers)
    reported = run(links, RoundTiming(100), lambda reported: False, HALF_AN_HOUR_S)
    print(num_peers, sorted(reported.deaths), reported.num_partial, len(reported.rounds), flush=True)
    settings: Mapping[str, object] = {
        "peers": num_peers, "codec": CODEC, "virtual_s": reported.lasted_s, "rounds": len(reported.rounds), "machine": machine()
    }  # fmt: skip
    name = f"{num_peers} peers, 1 Mbit/s, 100 ms one way, 1% lost, 30 virtual minutes"
    return [
        Row(BENCH, f"{name}: taken for dead", len(reported.deaths), "", None, None, "= 0", not reported.deaths, 1, settings=settings),
        Row(BENCH, f"{name}: rounds", len(reported.rounds), "", None, None, ">= 1", bool(reported.rounds), 1, settings=settings),
    ]  # fmt: skip
