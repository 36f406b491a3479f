"""Whether the manifest's numbers for the length of rounds fit together: ramp, "auto" rounds, momentum.

If not, the sentence names a number that would work. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

from protocol.kinds.outer_table import with_momentum
from protocol.rounds.schedule.outer_rule import LEAST_MOMENTUM_STEPS
from protocol.rounds.schedule.target import RoundTarget


@dataclass(frozen=True, slots=True)
class PacingNumbers:
    """A manifest's numbers, with its defaults filled in.

    Attributes:
        target: at how many tokens of all members rounds are due.
        total_tokens: of the run.
        batch_tokens: of a local step.
        min_members: that the smallest round has; of a unit that only some hold, 1.
        momentum: of the outer step, 0 without.
        momentum_from_steps: steps of each member in a round, from which there is momentum; None where all rounds have it.
    """

    target: RoundTarget
    total_tokens: int
    batch_tokens: int
    min_members: int
    momentum: float = 0.0
    momentum_from_steps: int | None = None

    @property
    def least_tokens(self) -> int:
        """Tokens of the smallest round, without regard to the largest."""
        return self.min_members * self.target.first_tokens

    @property
    def most_steps(self) -> int:
        """Steps of each member in the longest round, with the fewest members: more members make fewer steps each."""
        return self.target.most_tokens // (self.min_members * self.batch_tokens)

    def tokens_of(self, steps: int) -> int:
        """Tokens of a round with `steps` local steps of the fewest members."""
        return steps * self.min_members * self.batch_tokens


def contradiction(numbers: PacingNumbers) -> str:
    """The first of these numbers that cannot work, with one that would; "" if all fit."""
    return _of_the_ramp(numbers) or _of_the_momentum(numbers)


def _of_the_ramp(numbers: PacingNumbers) -> str:
    target, least = numbers.target, numbers.least_tokens
    taken = f"which the first local steps of {numbers.min_members} members take"
    if not target.ramp_share and not target.exchange_share:
        return ""
    if target.most_tokens <= least:
        return f"round.target_tokens {target.most_tokens}: no round could grow: expected more than {least}, {taken}"
    largest = int(numbers.total_tokens * target.ramp_share)
    if target.ramp_share and largest <= least:
        found = f"round.ramp_share {target.ramp_share:g} of run.total_tokens {numbers.total_tokens} is {largest} tokens"
        return f"{found}: no round would grow: expected more than {least}, {taken}: {_enough(numbers)}"
    return ""


def _enough(numbers: PacingNumbers) -> str:
    """The change that makes the last round of a ramp larger than the first, for a sentence."""
    more, digits = numbers.least_tokens + 1.5, 2
    share = more / numbers.total_tokens
    unit = 10.0 ** (digits - 1 - floor(log10(share)))
    if (rounded_up := ceil(share * unit) / unit) < 1.0:
        return f"a ramp_share of at least {rounded_up:g}"
    return f"run.total_tokens of at least {ceil(more / numbers.target.ramp_share)}"


def _of_the_momentum(numbers: PacingNumbers) -> str:
    target, from_steps = numbers.target, numbers.momentum_from_steps
    if not numbers.momentum:
        return (
            ""
            if from_steps is None
            else f"outer.momentum_from_steps {from_steps} belongs to a momentum, with {with_momentum()}"
        )
    if from_steps is None and (target.ramp_share or target.exchange_share):
        asked = f"round.ramp_share {target.ramp_share:g}" if target.ramp_share else 'round.local_steps = "auto"'
        return (
            f"outer.momentum {numbers.momentum:g} with {asked}: deltas of short rounds point the same way, and momentum multiplies "
            f'them: expected {_momentum_that_works(numbers)}, or kind = "mean", learning_rate 1.0 and momentum 0.0'
        )
    if from_steps is not None and numbers.most_steps < from_steps:
        fewer = f"at most {numbers.most_steps}, or " if numbers.most_steps else ""
        return (
            f"outer.momentum_from_steps {from_steps}: with {numbers.min_members} members the longest rounds are of "
            f"{numbers.most_steps} local steps, so that there would never be momentum: expected {fewer}"
            f"round.target_tokens of at least {numbers.tokens_of(from_steps)}"
        )
    return ""


def _momentum_that_works(numbers: PacingNumbers) -> str:
    beside = f"momentum_from_steps = {LEAST_MOMENTUM_STEPS} beside it"
    if numbers.most_steps >= LEAST_MOMENTUM_STEPS:
        return beside
    return f"{beside} and round.target_tokens of at least {numbers.tokens_of(LEAST_MOMENTUM_STEPS)}"
