"""Whether the numbers of a streaming run fit together: the steps between the rounds of two units, and the delay that must fit
there.

Source of the names and defaults: Streaming DiLoCo (2501.18512, sections 3.1 and 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_DELAY_STEPS: Final = 5
"""Local steps between a fragment's snapshot and its adoption, if commits are mixed in; the paper's loss grows from about 10 on."""


@dataclass(frozen=True, slots=True)
class StreamingNumbers:
    """A manifest's numbers, with its defaults filled in; `delay_steps` is 0 where nothing is mixed."""

    num_layers: int
    num_fragments: int
    delay_steps: int
    target_tokens: int
    total_tokens: int
    batch_tokens: int
    min_members: int

    @property
    def num_units(self) -> int:
        """Units: the fragments and the embeddings."""
        return self.num_fragments + 1

    @property
    def steps_between(self) -> int:
        """Local steps from one unit's round to the next one's, with the fewest members: more members make fewer."""
        return self.target_tokens // (self.batch_tokens * self.min_members * self.num_units)


def contradiction(numbers: StreamingNumbers) -> str:
    """The first of these numbers that cannot work, with one that would; "" if all fit."""
    if numbers.num_fragments > numbers.num_layers:
        return f"round.fragments {numbers.num_fragments}: expected at most the {numbers.num_layers} of model.num_layers"
    if problem := _too_close(numbers):
        return problem
    if numbers.total_tokens < 2 * numbers.target_tokens:
        return (
            f"run.total_tokens {numbers.total_tokens}: expected at least twice round.target_tokens, "
            f"{2 * numbers.target_tokens}, so that each unit has its rounds"
        )
    return ""


def _too_close(numbers: StreamingNumbers) -> str:
    """Why the rounds of two units are too close: less than a step apart, or, if commits are mixed in, no more than the delay."""
    between = numbers.steps_between
    if numbers.delay_steps < between:
        return ""
    apart = f"with {numbers.min_members} peers the rounds of {numbers.num_units} units are {between} local steps apart"
    enough = numbers.batch_tokens * numbers.min_members * numbers.num_units * (numbers.delay_steps + 1)
    total_tokens = 2 * enough
    longer = f" and run.total_tokens of at least {total_tokens}" if numbers.total_tokens < total_tokens else ""
    if not numbers.delay_steps:
        return f"round.target_tokens {numbers.target_tokens}: {apart}: expected at least {enough}{longer}"
    less = f"a delay of at most {between - 1}, or " if between > 1 else ""
    return f"round.delay_steps {numbers.delay_steps}: {apart}: expected {less}round.target_tokens of at least {enough}{longer}"


def what_is_wrong_with_mixing(delay_steps: int | None, alpha: float | None) -> str:
    """Why these two, None where a manifest does not name them, contradict each other; "" if they do not."""
    if delay_steps is not None and alpha is None:
        why = "nothing is mixed, so that no commit is late"
        return f"delay_steps = {delay_steps} without alpha: {why}: expected an alpha, or no delay_steps"
    if delay_steps == 0:
        why = "no commit comes within no steps, so that nothing would be mixed"
        return f"alpha = {alpha} with delay_steps = 0: {why}: expected delay_steps of at least 1, or no alpha"
    return ""
