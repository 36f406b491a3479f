"""A part of a task as sequences to score, and their log-likelihoods as a score. Pure.

The definitions are those of lm-evaluation-harness for multiple choice: `acc` takes the choice with the greatest log-likelihood, and
`acc_norm` the one with the greatest log-likelihood for its length, here in bytes of UTF-8. Of equal ones the first is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from averaging.data.tasks.task_file import Questions, QuestionTokens

SHARE_OF_TIME: Final = 0.1
"""Most of the time that scores take from training, on the average."""

MOST_SAVED_S: Final = 10.0
"""So much of that time may be saved up. A small task then takes no rests."""

SLICE_S: Final = 2.0
"""Duration that a slice of a measurement should have. Training waits for a slice, and all other commands do."""

FIRST_SEQUENCES: Final = 4
MOST_SEQUENCES: Final = 256
MOST_TOKENS: Final = 1 << 16
"""Most of a slice: as a message it then stays within the bounds of the channel to the training process."""

FIRST_TOKENS: Final = 4
"""Tokens of each answer in the first slice."""


@dataclass(frozen=True, slots=True)
class Request:
    """One choice of a question: a sequence of tokens, of which the last `num_scored` belong to the choice."""

    tokens: tuple[int, ...]
    num_scored: int


def requests_of(item: QuestionTokens, context_tokens: int) -> tuple[Request, ...]:
    """The requests of one question, cut on the left to what the model reads, and the token after it."""
    whole = ((*item.context, *choice) for choice in item.choices)
    return tuple(
        Request(tokens[-(context_tokens + 1) :], len(choice))
        for tokens, choice in zip(whole, item.choices, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """Questions answered, and how many of them rightly: by log-likelihood, and by log-likelihood for each byte."""

    num_items: int = 0
    num_right: int = 0
    num_right_by_length: int = 0


def tally(task: Questions, items: Sequence[int], log_likelihoods: Sequence[float]) -> Tally:
    """The score of these questions. `log_likelihoods` has one value for each of their choices, in order."""
    right = right_by_length = begin = 0
    for item in (task.items[number] for number in items):
        own = log_likelihoods[begin : begin + len(item.choices)]
        begin += len(item.choices)
        right += _first_greatest(own) == item.answer
        by_length = [value / length for value, length in zip(own, item.lengths, strict=True)]
        right_by_length += _first_greatest(by_length) == item.answer
    return Tally(len(items), right, right_by_length)


def _first_greatest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda place: (values[place], -place))


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Time that scores may take: it grows with time, and slices use it up. `left_s` as of `since_s`, monotonic seconds."""

    since_s: float
    left_s: float = MOST_SAVED_S / 2

    def after(self, took_s: float, now_s: float) -> TimeBudget:
        """The budget after a slice of `took_s` that ends now."""
        saved_s = min(MOST_SAVED_S, self.left_s + SHARE_OF_TIME * max(0.0, now_s - self.since_s))
        return TimeBudget(now_s, saved_s - took_s)

    @property
    def rest_s(self) -> float:
        """How long training goes on alone before the next slice."""
        return max(0.0, -self.left_s / SHARE_OF_TIME)


def next_size(size: int, took_s: float, most: int) -> int:
    """The size of the next slice, after one of `size` took so long: it doubles, stays or shrinks towards SLICE_S."""
    if took_s < SLICE_S / 2:
        return min(most, 2 * size)
    return max(1, int(size * SLICE_S / took_s)) if took_s > SLICE_S else size


def first_fitting(requests: Sequence[Request], size: int) -> int:
    """How many of the first requests make the next slice: at most `size`, and not more tokens than a message holds; at least one."""
    num_tokens = 0
    for number, request in enumerate(requests[:size]):
        num_tokens += len(request.tokens)
        if number and num_tokens > MOST_TOKENS:
            return number
    return min(size, len(requests))
