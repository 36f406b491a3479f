"""`python -m tests.benchmarks.attacks --json FILE [--quick] [--runs FILE]`: held-out loss of runs in which some members lie.

Peers train a small decoder on Python's standard library in this process, as in `tests.benchmarks.convergence`. The last of them attack
in each round, together and with knowledge of all honest work; two of the attacks know the rule. Codecs, error feedback and the rule
that guards each chunk's mean are the product's own.

Loss is over that of the honest peers alone, with the same seed. Tokens are those that the honest peers alone needed for the loss with
which the attacked run ends: the whole training over their share of it. The same attacks against the plain mean stand beside some rows;
where that loses nothing, the attack is none.

`--strangers` has the attackers come by the open door, beside keepers: their weight is bounded. `--weight` is how many times an honest
peer's tokens each attacker claims.

Every training that is finished is a line of the file of runs, and is not trained again: the same command goes on where it was ended.
`--count` tells how many are left, and how long they take by those in the file. `--quick` trains a part of the steps and four attacks:
it shows that all of it works, and its figures mean little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from averaging.models.llama.config import LlamaConfig
from tests.benchmarks.attack_training import ATTACKS, HONEST, Attack, AttackTrial, trained
from tests.benchmarks.convergence import Runs, corpus
from tests.benchmarks.convergence_training import Corpus
from tests.benchmarks.convergence_ways import Ramp, Regime, Trial, Way
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "attacks"
MODEL: Final = LlamaConfig(
    dim=64, num_layers=2, num_heads=4, num_kv_heads=4, ffn_dim=176, context_tokens=64, is_tied=False
)
RATE: Final = 4e-3
LOCAL_STEPS: Final = 8
RULE: Final = "clip-agree"
PLAIN: Final = "off"

WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "int8": Way("int8", ramp=Ramp(LOCAL_STEPS), codec="int8"),
        "int4": Way("int4", ramp=Ramp(LOCAL_STEPS), codec="int4"),
        "e3m0": Way("e3m0", ramp=Ramp(LOCAL_STEPS), codec="e3m0"),
        "topk": Way("topk with feedback", ramp=Ramp(LOCAL_STEPS), codec="topk", result="top12", beta=0.95),
    }
)

MOST: Final[Mapping[int, tuple[float, float]]] = MappingProxyType({10: (1.02, 1.10), 20: (1.03, 1.25), 30: (1.06, 1.6)})
"""The most loss and tokens over those of the honest alone, by the percentage of members that attack."""

MOST_WITHOUT: Final = 1.003
"""The most loss over that of the plain mean where nobody attacks."""

QUICK: Final = (HONEST, "-100x", "against the mean", "uphill, 0.35 along")
USUAL_STEP_S: Final = 0.0075
"""Processor seconds of one peer's local step with its part of a round, on one core of a server."""

PLAIN_TOO: Final = (HONEST, "-100x", "against the mean")
"""Attacks that are tried against the plain mean, too."""


@dataclass(frozen=True)
class Plan:
    """The trainings that are asked for."""

    members: Sequence[int]
    percents: Sequence[int]
    codecs: Sequence[str]
    attacks: Sequence[str]
    seeds: Sequence[int]
    num_steps: int
    are_strangers: bool = False
    weight: int = 1

    def trial(self, num_peers: int, codec: str, attack: Attack, robust: str, seed: int) -> AttackTrial:
        """One of them."""
        regime = Regime("attacks", MODEL, num_peers, self.num_steps, 4 * MODEL.context_tokens, (RATE, RATE, RATE))
        return AttackTrial(Trial(regime, WAYS[codec], seed, RATE), attack, robust)

    def alone(self, num_members: int, percent: int, codec: str, seed: int) -> AttackTrial:
        """The honest members without the others, by the plain mean."""
        num_honest = num_members - num_attackers(num_members, percent)
        return self.trial(num_honest, codec, Attack(HONEST, 0), PLAIN, seed)

    def attacked(self, num_members: int, percent: int, codec: str, name: str, robust: str, seed: int) -> AttackTrial:
        """Some of the members attack; with HONEST none of them."""
        if name == HONEST:
            return self.trial(num_members, codec, Attack(name, 0), robust, seed)
        attack = Attack(name, num_attackers(num_members, percent), self.weight, self.are_strangers)
        return self.trial(num_members, codec, attack, robust, seed)

    @property
    def words(self) -> str:
        """How the attackers stand, for the names of rows; empty where they are like others."""
        strangers = ", strangers" if self.are_strangers else ""
        return f"{strangers}, {self.weight} times the tokens" if self.weight != 1 else strangers

    def trials(self) -> Iterator[AttackTrial]:
        """All of them, some more than once; the most telling ones first."""
        for seed in self.seeds:
            for num_members in self.members:
                for percent in self.percents:
                    for codec in self.codecs:
                        yield self.alone(num_members, percent, codec, seed)
                        for name in self.attacks:
                            for robust in (RULE, PLAIN) if name in PLAIN_TOO else (RULE,):
                                yield self.attacked(num_members, percent, codec, name, robust, seed)


def num_attackers(num_members: int, percent: int) -> int:
    """So many of them attack; rounded down, at least one."""
    return max(1, num_members * percent // 100)


def tokens_over(losses: Sequence[float], alone: Sequence[float]) -> float:
    """How many times as many tokens an attacked training took for its last loss as the honest alone did; losses round by round."""
    last, rounds = losses[-1], len(alone) - 1
    for index, (before, after) in enumerate(pairwise(alone)):
        if after <= last:
            part = (before - last) / (before - after) if before > after else 1.0
            return rounds / max(index + min(1.0, max(0.0, part)), 1e-9)
    return 1.0


@dataclass(frozen=True)
class Table:
    """The recorded trainings of a plan."""

    plan: Plan
    runs: Runs

    def rows(self) -> list[Row]:
        """One or two rows for each attack, share of attackers, number of members and codec."""
        found = list[Row]()
        for num_members in self.plan.members:
            for codec in self.plan.codecs:
                if HONEST in self.plan.attacks:
                    found += self._without(num_members, codec)
                for percent in self.plan.percents:
                    for name in self.plan.attacks:
                        found += [] if name == HONEST else self._rows(num_members, percent, codec, name)
        return found

    def _without(self, num_members: int, codec: str) -> list[Row]:
        """Nobody attacks: the guarded mean against the plain one."""
        ratios, left_out = list[float](), list[float]()
        for seed in self.plan.seeds:
            guarded = self.plan.attacked(num_members, 0, codec, HONEST, RULE, seed)
            plain = replace(guarded, robust=PLAIN)
            one, other = self.runs.loss(guarded), self.runs.loss(plain)
            if one is not None and other is not None:
                ratios.append(one / other)
                left_out.append(self._numbers(guarded, "left_out")[0])
        what = f"{num_members} members, {codec}, nobody attacks"
        return [
            *self._row(f"{what}: loss over the plain mean's", ratios, [], MOST_WITHOUT, codec),
            *self._row(f"{what}: share of chunks left out", left_out, [], 0.01, codec),
        ]

    def _rows(self, num_members: int, percent: int, codec: str, name: str) -> list[Row]:
        losses: dict[str, list[float]] = {RULE: [], PLAIN: []}
        tokens: dict[str, list[float]] = {RULE: [], PLAIN: []}
        for seed in self.plan.seeds:
            alone = self.plan.alone(num_members, percent, codec, seed)
            loss_alone = self.runs.loss(alone)
            for robust in losses:
                trial = self.plan.attacked(num_members, percent, codec, name, robust, seed)
                loss = self.runs.loss(trial)
                if loss is not None and loss_alone is not None:
                    losses[robust].append(loss / loss_alone)
                    tokens[robust].append(tokens_over(self._numbers(trial, "losses"), self._numbers(alone, "losses")))
        what = f"{num_members} members, {percent}% attack, {codec}{self.plan.words}, {name}"
        most_loss, most_tokens = MOST[percent]
        return [
            *self._row(f"{what}: loss over the honest alone", losses[RULE], losses[PLAIN], most_loss, codec),
            *self._row(f"{what}: tokens over the honest alone", tokens[RULE], tokens[PLAIN], most_tokens, codec),
        ]

    def _numbers(self, trial: AttackTrial, name: str) -> list[float]:
        found = self.runs.figure(trial, name)
        return [float(each) for each in found] if isinstance(found, list) else []

    def _row(
        self, metric: str, values: Sequence[float], plain: Sequence[float], most: float, codec: str
    ) -> Iterator[Row]:
        if not values:
            return
        value, baseline = statistics.median(values), statistics.median(plain) if plain else None
        settings = {
            "model": MODEL.model_dump(),
            "rate": RATE,
            "local_steps": LOCAL_STEPS,
            "steps": self.plan.num_steps,
            "rule": RULE,
            "codec": codec,
            "machine": machine(),
        }
        yield Row(
            BENCH,
            metric,
            round(value, 4),
            "ratio",
            None if baseline is None else round(baseline, 4),
            None if baseline is None else round(value / baseline, 4),
            f"<= {most:g}",
            max(values) <= most,
            len(values),
            {"best": round(min(values), 4), "worst": round(max(values), 4)},
            settings,
        )


def train_all(plan: Plan, runs: Runs) -> None:
    """Everything that is planned and not in the file."""
    text: Corpus | None = None
    for trial in plan.trials():
        if runs.loss(trial) is not None:
            continue
        text = text or corpus()
        outcome = trained(trial, text)
        runs.add(trial, outcome)
        attack, num_peers = trial.attack, trial.trial.regime.num_peers
        name = f"{attack.num} of {num_peers} {attack.name}, {trial.trial.way.name}, {trial.robust}, seed {trial.trial.seed}"
        print(f"{name}: {outcome['loss']:.4f} nats/byte, {outcome['cpu_s']:.0f} CPU s", flush=True)


def left_s(plan: Plan, runs: Runs) -> tuple[int, int, float]:
    """The trainings of a plan, those that are not in the file, and the processor seconds that these take: by the typical time of one
    peer and step of those in the file, else by USUAL_STEP_S.
    """
    planned = {trial.key: trial for trial in plan.trials()}
    spent = [
        float(str(cpu_s)) / steps_of(trial)
        for trial in planned.values()
        if (cpu_s := runs.figure(trial, "cpu_s")) is not None
    ]
    left = [trial for trial in planned.values() if runs.loss(trial) is None]
    step_s = statistics.median(spent) if spent else USUAL_STEP_S
    return len(planned), len(left), step_s * sum(map(steps_of, left))


def steps_of(trial: AttackTrial) -> int:
    """Local steps of all peers together."""
    return trial.trial.regime.num_peers * trial.trial.regime.num_steps


def _names(text: str, known: Sequence[str]) -> list[str]:
    return [name for name in known if not text or any(part in name for part in text.split("|"))]


def _percents(text: str) -> list[int]:
    found = [int(number) for number in text.split(",")]
    if unknown := [number for number in found if number not in MOST]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} has no aim; expected some of {sorted(MOST)}")
    return found


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.attacks", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--runs", type=Path, help="where finished trainings are kept; FILE.runs without it")
    parser.add_argument("--quick", action="store_true", help="a part of the steps, four attacks, one seed")
    parser.add_argument("--members", default="10,20", help="numbers of members, by commas")
    parser.add_argument(
        "--percents", default="10,20,30", type=_percents, help="of them that attack, by commas: 10, 20, 30"
    )
    parser.add_argument("--codecs", default="", help="codecs that have one of these in their name, by |")
    parser.add_argument("--attacks", default="", help="attacks that have one of these in their name, by |")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--steps", type=int, default=320, help="local steps of each peer")
    parser.add_argument("--strangers", action="store_true", help="the attackers are strangers, and all others keepers")
    parser.add_argument("--weight", type=int, default=1, help="times an honest peer's tokens that an attacker claims")
    parser.add_argument(
        "--count", action="store_true", help="tell what is left and how long it takes, and train nothing"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    options = _options(arguments)
    torch.set_num_threads(1)
    plan = Plan(
        [int(number) for number in options.members.split(",")],
        options.percents,
        _names(options.codecs, list(WAYS)),
        _names(options.attacks, list(ATTACKS)),
        range(options.seeds),
        options.steps,
        options.strangers,
        options.weight,
    )
    if options.quick:
        strangers, weight = options.strangers, options.weight
        plan = Plan([10], [20], ["int8"], QUICK, [0], min(options.steps, 48), strangers, weight)
    runs = Runs(options.runs or options.json.with_name(options.json.name + ".runs"))
    if options.count:
        num, num_left, cpu_s = left_s(plan, runs)
        print(f"{num_left} of {num} trainings are left: about {cpu_s / 3600:.1f} h of one core")
        return 0
    train_all(plan, runs)
    rows = Table(plan, runs).rows()
    write_rows(rows, options.json)
    print_rows(rows, "loss under attack")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
