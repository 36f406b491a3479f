"""The loss that a training comes to, by published laws. Pure.

Published: the loss of N values after D tokens, L = E + A / N^a + B / D^b (Hoffmann et al. 2022, arXiv 2203.15556, equation 10). Two
fits of it to the same trainings are published. That of Hoffmann et al. has the digits of their TeX source, as Besiroglu et al. 2024
(arXiv 2404.10102, table 1) quote them. Besiroglu et al. show why it misses the trainings and give a fit of their own in that table.
Theirs is taken here, and the other one bounds the interval.

Published: Charles et al. 2025 (arXiv 2503.09799) fit L = C N^-c to DiLoCo of 1, 2, 4 and 8 members and to data-parallel training, and
L = C N^-c M^0.0116 to all of DiLoCo. That is at 20 tokens a value, with 30 local steps and all rates tuned. Their table of measured
losses is within half a percent of these fits, which a test checks.

Published: Douillard et al. 2023 (arXiv 2311.08105) have 2.9% more perplexity with 1000 local steps than with 50, for 150M values.

Assumed here, because no paper says it: the loss is multiplied by the ratio of two fits also at other numbers of tokens. Beyond 8
members it grows by the power of the joint fit. Below the sizes of the fits it is as the fits go on, which is less than what
`tests.benchmarks.learning` finds for models of a few hundred thousand values. The cost of local steps is a straight line over
their logarithm from 30 steps on, and the same for all sizes and members. Outer rates are tuned, as in the papers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf, log, log2
from typing import Final

from protocol.tables import short_count

CHINCHILLA: Final = "Chinchilla's law"


@dataclass(frozen=True, slots=True)
class Fit:
    """The numbers of L = E + A / N^a + B / D^b, in nats a token."""

    name: str
    floor: float
    of_values: float
    values_power: float
    of_tokens: float
    tokens_power: float

    def loss(self, num_values: float, tokens: float) -> float:
        """L."""
        of_values = self.of_values * math.pow(num_values, -self.values_power)
        return self.floor + of_values + self.of_tokens * math.pow(tokens, -self.tokens_power)


BESIROGLU: Final = Fit("Besiroglu et al. 2024", 1.8172, 482.01, 0.3478, 2085.43, 0.3658)
HOFFMANN: Final = Fit("Hoffmann et al. 2022", 1.6934, 406.4, 0.3392, 410.7, 0.2849)

FLOOR_ERROR: Final = 0.06
"""Two standard errors of E, which is 0.03 (Besiroglu et al. 2024, table 1)."""

VALUES_RANGE: Final = (5.7e7, 1.6e10)
TOKENS_RANGE: Final = (8.2e8, 3.2e11)
"""Of the 240 trainings behind the fit of Besiroglu et al. 2024: their 245 points without the five of the fewest tokens a value, which
they leave out. Tokens are FLOP / 6 N of their file data/svg_extracted_data.csv (github.com/epoch-research/analyzing-chinchilla).
"""

_PARALLEL: Final = (18.129, -0.0953)
_MEMBERS: Final[dict[int, tuple[float, float]]] = {
    1: (18.363, -0.0961),
    2: (18.768, -0.0969),
    4: (19.762, -0.0992),
    8: (21.051, -0.1018),
}
_MOST_MEMBERS: Final = 8
_MORE_MEMBERS_POWER: Final = 0.0116
_DILOCO_VALUES: Final = (3.5e7, 1e10)

_STEPS_FROM: Final = 30.0
_MOST_STEPS: Final = 1000.0
_STEPS_NATS: Final = log(1.029) / log(1000.0 / 50.0)
"""Nats for each e-fold of local steps."""

_LEAST_VOCABULARY: Final = 16_000
TOKENS_PER_VALUE: Final = 20.0
"""Of a training that is compute-optimal by Hoffmann et al. 2022, and of the trainings behind the fits of DiLoCo."""

_ROUGH_SEARCH_STEPS: Final = 200


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the members train together.

    Attributes:
        members: on average; at least 1.
        local_steps: of each in a round; 1 or more.
        vocab_size: tokens that the model knows.
    """

    members: float = 1.0
    local_steps: float = 30.0
    vocab_size: int = 32_768


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """Nats a token on held-out text.

    Attributes:
        low, high: between them lie both fits and the error of the floor. It is no interval of probability.
        notes: on what lies outside of the laws' range, one line each; empty inside.
    """

    nats: float
    low: float
    high: float
    notes: tuple[str, ...] = ()


def expected_loss(num_values: float, tokens: float, schedule: Schedule) -> ExpectedLoss:
    """The loss after so many tokens of all members together, where `no_law_for` says nothing. Both counts are above 0."""
    found = [_of_fit(fit, num_values, tokens, schedule) for fit in (BESIROGLU, HOFFMANN)]
    return ExpectedLoss(
        found[0], min(found) - FLOOR_ERROR, max(found) + FLOOR_ERROR, law_notes(num_values, tokens, schedule)
    )


def no_law_for(num_values: float, tokens: float, schedule: Schedule) -> str:
    """Why the law says nothing about such a training; empty where it does. It counts nats of tokens from a vocabulary of about
    32,000. Far below its range it says more than a model that knows nothing has.
    """
    if reason := no_vocabulary_for(schedule):
        return reason
    if _of_fit(BESIROGLU, num_values, tokens, schedule) >= blind_loss(schedule):
        return f"the law does not hold for {short_count(num_values)} values after {short_count(tokens)} tokens"
    return ""


def no_vocabulary_for(schedule: Schedule) -> str:
    """Why the law says nothing about tokens from such a vocabulary; empty where it does."""
    if schedule.vocab_size < _LEAST_VOCABULARY:
        return f"the law is for tokens from a vocabulary of about 32,000, and this one has {schedule.vocab_size:,}"
    return ""


def blind_loss(schedule: Schedule) -> float:
    """Nats a token of a model that knows nothing, for which all tokens are alike."""
    return log(schedule.vocab_size)


def tokens_to(nats: float, num_values: float, schedule: Schedule) -> float:
    """Tokens after which this loss is expected; infinite where no number of them is enough."""
    if _of_fit(BESIROGLU, num_values, inf, schedule) >= nats:
        return inf
    low, high = 1.0, 1e30
    for _ in range(_ROUGH_SEARCH_STEPS):
        middle = (low * high) ** 0.5
        is_reached = _of_fit(BESIROGLU, num_values, middle, schedule) <= nats
        low, high = (low, middle) if is_reached else (middle, high)
    return high


def least_loss(num_values: float, schedule: Schedule) -> float:
    """The loss that this model nears with more and more tokens."""
    return _of_fit(BESIROGLU, num_values, inf, schedule)


def members_factor(num_values: float, members: float) -> float:
    """The loss of DiLoCo with so many members over that of data-parallel training."""
    known = min(max(members, 1.0), float(_MOST_MEMBERS))
    below = 2 ** int(log2(known))
    above = min(_MOST_MEMBERS, 2 * below)
    share = log2(known / below)
    mixed = (1.0 - share) * _power(_MEMBERS[below], num_values) + share * _power(_MEMBERS[above], num_values)
    more = math.pow(max(1.0, members / _MOST_MEMBERS), _MORE_MEMBERS_POWER)
    return mixed / _power(_PARALLEL, num_values) * more


def law_notes(num_values: float, tokens: float, schedule: Schedule) -> tuple[str, ...]:
    """Everything outside of the ranges that the laws were fitted in."""
    found = []
    if not VALUES_RANGE[0] <= num_values <= VALUES_RANGE[1]:
        found.append(
            f"the law was fitted to models of {_range(VALUES_RANGE)} values; this one has {short_count(num_values)}, "
            f"{_times_outside(VALUES_RANGE, num_values)}"
        )
    if not TOKENS_RANGE[0] <= tokens <= TOKENS_RANGE[1]:
        found.append(
            f"the law was fitted to {_range(TOKENS_RANGE)} tokens; these are {short_count(tokens)}, "
            f"{_times_outside(TOKENS_RANGE, tokens, 'fewer', 'more')}"
        )
    if schedule.members > _MOST_MEMBERS:
        found.append(f"DiLoCo's law was fitted to 1 to {_MOST_MEMBERS} members; here are {schedule.members:.3g}")
    elif schedule.members > 1 and not _DILOCO_VALUES[0] <= num_values <= _DILOCO_VALUES[1]:
        outside = _times_outside(_DILOCO_VALUES, num_values)
        more = "; members cost small models more than it says" if num_values < _DILOCO_VALUES[0] else ""
        found.append(
            f"DiLoCo's law was fitted to models of {_range(_DILOCO_VALUES)} values, this one is {outside}{more}"
        )
    if schedule.members > 1 and schedule.local_steps > _MOST_STEPS:
        found.append(
            f"the cost of long rounds is known up to {_MOST_STEPS:g} local steps; here are {schedule.local_steps:,.0f}"
        )
    return tuple(found)


def _of_fit(fit: Fit, num_values: float, tokens: float, schedule: Schedule) -> float:
    alone = fit.loss(num_values, tokens)
    if schedule.members <= 1.0:
        return alone
    long_rounds = _STEPS_NATS * log(max(1.0, schedule.local_steps / _STEPS_FROM))
    return alone * members_factor(num_values, schedule.members) + long_rounds


def _power(numbers: tuple[float, float], num_values: float) -> float:
    return numbers[0] * math.pow(num_values, numbers[1])


def _times_outside(ends: tuple[float, float], value: float, below: str = "smaller", above: str = "larger") -> str:
    """How far a value lies outside, such as "29 times smaller"."""
    is_below = value < ends[0]
    return f"{ends[0] / value if is_below else value / ends[1]:,.3g} times {below if is_below else above}"


def _range(ends: tuple[float, float]) -> str:
    return f"{short_count(ends[0])} to {short_count(ends[1])}"
