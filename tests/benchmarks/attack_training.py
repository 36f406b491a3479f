"""One training of `tests.benchmarks.attacks`: some peers lie, and the product's own rule guards the mean.

Attackers see all honest contributions of a round before they send their own, and they act together. That is more than a real one can.
Shapes: M peers, H of them honest, F attackers, N values of the model, n of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.robust_mean import Judgement, robust_mean
from averaging.arithmetic.weighted_mean import sum_dtype
from averaging.codecs import codec_by_name
from protocol.kinds.robust_table import ROBUST_RULES
from protocol.rounds.lineage.rule_numbers import CAP_FACTOR
from protocol.rounds.lineage.stranger_weights import weights_of
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_contribution
from tests.benchmarks.convergence_training import CURVE_WINDOWS, Corpus, Training, Unit
from tests.benchmarks.convergence_ways import Trial
from tests.benchmarks.feedback import decoded
from tests.benchmarks.stacked_decoder import StackedDecoder

TOKENS: Final = 1000
"""Of an honest peer's contribution; the caps on weights are in tokens."""

GRADIENT_WINDOWS: Final = 16
"""Windows on which an attacker that knows the rule looks for the way up."""


@dataclass(frozen=True)
class Attack:
    """How the attackers of a training lie.

    Attributes:
        name: of ATTACKS.
        num: how many of the peers, the last ones, attack.
        weight: of each of them, as many times that of an honest peer.
        are_strangers: the attackers came by the open door, and all others are keepers. Their weight is bounded then.
    """

    name: str
    num: int
    weight: int = 1
    are_strangers: bool = False


@dataclass(frozen=True)
class AttackTrial:
    """One training under attack; with `attack.num` of 0 it is of honest peers alone."""

    trial: Trial
    attack: Attack
    robust: str

    @property
    def key(self) -> str:
        """The same for the same numbers."""
        stranger = "-strangers" if self.attack.are_strangers else ""
        return f"{self.trial.key}-{self.attack.name}-{self.attack.num}-{self.attack.weight}-{self.robust}{stranger}"

    def numbers(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {**self.trial.numbers(), "attack": asdict(self.attack), "robust": self.robust}


@dataclass(frozen=True)
class Sight:
    """Everything that attackers know in a round.

    Attributes:
        honest_HN: what the honest peers send.
        own_FN: what the attackers would send if they were honest.
        uphill_N: gradient of the loss at the anchor that the honest mean would make; called where it is needed.
        memory: vectors that the attackers keep from round to round.
        share: of the training that is done, 0 to 1.
    """

    honest_HN: torch.Tensor
    own_FN: torch.Tensor
    uphill_N: Callable[[torch.Tensor], torch.Tensor]
    memory: dict[str, torch.Tensor]
    share: float
    draw: torch.Generator

    @property
    def mean_n(self) -> torch.Tensor:
        """The honest mean."""
        return self.honest_HN.mean(0)

    @property
    def norm(self) -> float:
        """The median length of an honest delta."""
        return float(self.honest_HN.norm(dim=1).median())

    def noise_fn(self) -> torch.Tensor:
        """Random vectors of that length."""
        z_FN = torch.randn(self.own_FN.shape, generator=self.draw)
        scaled_FN: torch.Tensor = z_FN * (self.norm / z_FN.norm(dim=1, keepdim=True))
        return scaled_FN

    def together(self, values_N: torch.Tensor) -> torch.Tensor:
        """All attackers send the same."""
        return values_N.expand_as(self.own_FN).clone()


def _against(sight: Sight) -> torch.Tensor:
    """Minus the honest mean, at the usual length."""
    return sight.together(-sight.mean_n * (sight.norm / sight.mean_n.norm()))


def _stale(sight: Sight) -> torch.Tensor:
    return sight.memory.setdefault("first", sight.own_FN.clone())


def _little(sight: Sight) -> torch.Tensor:
    """A little is enough (1902.06156): within the honest spread of each value, all to one side."""
    return sight.together(sight.mean_n - 1.5 * sight.honest_HN.std(0))


def _drift(sight: Sight) -> torch.Tensor:
    """Half of the honest mean, and always the same direction beside it."""
    if "aside" not in sight.memory:
        aside_N = torch.randn(sight.mean_n.shape, generator=sight.draw)
        sight.memory["aside"] = aside_N / aside_N.norm()
    return sight.together(0.5 * sight.mean_n + 0.85 * sight.norm * sight.memory["aside"])


def _late(sight: Sight) -> torch.Tensor:
    return sight.own_FN if sight.share < 0.5 else _against(sight)


def _uphill(sight: Sight, along: float) -> torch.Tensor:
    """Knows the rule: goes along the honest mean so far that it is kept, and for the rest up the loss."""
    mean_N = sight.mean_n
    direction_N, up_N = mean_N / mean_N.norm(), -sight.uphill_N(mean_N)
    up_N = up_N - (up_N @ direction_N) * direction_N
    aside = (1.0 - along * along) ** 0.5
    return sight.together(sight.norm * (along * direction_N + aside * up_N / up_N.norm()))


HONEST: Final = "none"

ATTACKS: Final[Mapping[str, Callable[[Sight], torch.Tensor]]] = MappingProxyType(
    {
        HONEST: lambda sight: sight.own_FN,
        "flip": lambda sight: -sight.own_FN,
        "-100x": lambda sight: -100.0 * sight.own_FN,
        "noise x10": lambda sight: 10.0 * sight.noise_fn(),
        "against the mean": _against,
        "half against the mean": lambda sight: sight.together(-0.5 * sight.mean_n),
        "a little aside": _little,
        "drift": _drift,
        "zeros": lambda sight: torch.zeros_like(sight.own_FN),
        "stale": _stale,
        "late": _late,
        "uphill, 0.35 along": lambda sight: _uphill(sight, 0.35),
        "uphill, 0.6 along": lambda sight: _uphill(sight, 0.6),
    }
)
"""By name. The last two know the rule."""


@dataclass
class AttackedTraining(Training):
    """A training in which the last peers lie and the run's rule guards each chunk."""

    attack: Attack = field(default_factory=lambda: Attack(HONEST, 0))
    robust: str = "off"
    losses: list[float] = field(default_factory=list)
    left_out: list[tuple[float, float]] = field(default_factory=list)
    judged: list[list[Judgement]] = field(default_factory=list)
    """Of each chunk, round by round."""

    memory: dict[str, torch.Tensor] = field(default_factory=dict)

    def contributions(self, unit: Unit, theta_Mn: torch.Tensor, grid: ChunkGrid) -> tuple[torch.Tensor, int]:
        """With those of the attackers, who looked at the others first."""
        rows_Mn, num_bytes = super().contributions(unit, theta_Mn, grid)
        num_honest = self.num_peers - self.attack.num
        if self.attack.num and self.attack.name != HONEST:
            draw = torch.Generator().manual_seed(1000 * self.trial.seed + unit.num_rounds)
            share = unit.counted_steps / self.num_steps
            sight = Sight(
                rows_Mn[:num_honest],
                rows_Mn[num_honest:],
                lambda mean_N: self._gradient(unit.anchor_n - mean_N, draw),
                self.memory,
                share,
                draw,
            )
            for number, values_n in enumerate(ATTACKS[self.attack.name](sight), num_honest):
                rows_Mn[number] = self._sent(unit, values_n, grid)
        return rows_Mn, num_bytes

    def _sent(self, unit: Unit, values_n: torch.Tensor, grid: ChunkGrid) -> torch.Tensor:
        """A false delta as others decode it."""
        codec = codec_by_name(unit.codec)
        offered = encode_contribution(unit.anchor_n, unit.anchor_n - values_n, 1, codec, grid)
        return decoded(offered.chunks, codec, grid)

    def _gradient(self, anchor_N: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        model, length = StackedDecoder(self.trial.regime.model, anchor_N, 1), self.trial.regime.model.context_tokens + 1
        text = self.corpus.train
        starts = torch.randint(0, len(text) - length, (GRADIENT_WINDOWS,), generator=draw).numpy()
        windows = torch.from_numpy(text[starts[:, None] + np.arange(length)].astype(np.int64))
        model.loss(windows[None]).backward()  # type: ignore[no-untyped-call]
        parts = [part.grad for part in model.parameters]
        return torch.cat([part.flatten() for part in parts if part is not None])

    def mean(self, unit: Unit, rows_Mn: torch.Tensor, grid: ChunkGrid) -> torch.Tensor:
        """By the run's rule, chunk by chunk, as a reducer makes it."""
        num_honest, rule = self.num_peers - self.attack.num, ROBUST_RULES[self.robust]
        weights = [1] * num_honest + [self.attack.weight] * self.attack.num
        strangers = [False] * num_honest + [True] * self.attack.num if self.attack.are_strangers else None
        if strangers is not None:
            weights = weights_of([TOKENS * weight for weight in weights], strangers, CAP_FACTOR * TOKENS)
        mean_n, found = torch.empty(grid.num_elements), list[Judgement]()
        for chunk in range(grid.num_chunks):
            begin, stop = grid.bounds(chunk)
            dtype = sum_dtype(unit.result)
            mean_n[begin:stop], judgement = robust_mean(rows_Mn[:, begin:stop].clone(), weights, rule, dtype, strangers)
            found.append(judgement)
        self.judged.append(found)
        shares_M = 1.0 - np.mean([each.is_kept for each in found], axis=0)
        of_attackers = float(shares_M[num_honest:].mean()) if self.attack.num else 0.0
        self.left_out.append((float(shares_M[:num_honest].mean()), of_attackers))
        self.losses.append(self._loss(CURVE_WINDOWS))
        return mean_n


def trained(trial: AttackTrial, corpus: Corpus) -> dict[str, object]:
    """Train to the end. `losses` are of the anchor before each round and at the end, on the same few windows. `left_out` are the
    shares of honest and of false chunks that did not count.
    """
    training = AttackedTraining(trial.trial, corpus, attack=trial.attack, robust=trial.robust)
    outcome = training.run()
    honest, false = np.mean(training.left_out, axis=0)
    last = training._loss(CURVE_WINDOWS)
    return {**asdict(outcome), "losses": [*training.losses, last], "left_out": [float(honest), float(false)]}
