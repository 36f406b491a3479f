"""How many ready tokens make the next round due. Pure: every commit record carries the number, so that all of a run agree on it.

Without more in the manifest all rounds are alike. A ramp begins with small ones: a round takes a fixed share of all tokens committed
before it, so that rounds are evenly spread over the logarithm of what is trained; most of what local training loses against
synchronous training it loses early, and early rounds are few bytes in all. "auto" measures: a round lasts as long as its exchange
needs, so that the exchanges fit behind one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Final

MOST_CHANGE: Final = 2
"""A measured target is at most so many times the one before, or that part of it: one slow round says little."""


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """What was trained between two proposals, as the leader of the later one saw it; of the first round that it hears of since the
    commit before, until every slice had its result.

    Attributes:
        target_tokens: at which the later one was due.
        tokens: offered to it.
        round_s: between the two proposals.
        exchange_s: from the earlier proposal to its commit, with all that its exchange brought; where training waits for it, from the
            leader's own snapshot on.
        heartbeat_s: between two words of what is ready, while the later one was about to be due.
    """

    target_tokens: int
    tokens: int
    round_s: float
    exchange_s: float
    heartbeat_s: float = 0.0

    @property
    def late_s(self) -> float:
        """For how long the later round was due before it was proposed, for want of word of it. What is longer than a heartbeat is no
        such delay where it began before the exchange was over: it was the exchange that was waited for.
        """
        since_due_s = self.round_s * max(0, self.tokens - self.target_tokens) / max(1, self.tokens)
        return min(since_due_s, max(self.heartbeat_s, self.round_s - self.exchange_s))


@dataclass(frozen=True, slots=True)
class RoundTarget:
    """The manifest's rule. Tokens are those of all members together.

    Attributes:
        most_tokens: of a round; of all of them without a ramp and without "auto".
        first_tokens: of one member in the smallest round.
        ramp_share: of the tokens committed before, 0 without a ramp.
        exchange_share: with "auto", of a round, that its exchange may take, above 0; else 0.
        is_blocking: training waits for exchanges.
    """

    most_tokens: int
    first_tokens: int = 1
    ramp_share: float = 0.0
    exchange_share: float = 0.0
    is_blocking: bool = False

    def least(self, num_members: int) -> int:
        """The smallest round of so many members."""
        return min(self.most_tokens, num_members * self.first_tokens)

    @property
    def fewest_tokens(self) -> int:
        """Of any round of the run, however many take part in it and whatever was measured."""
        return self.least(1) if self.ramp_share or self.exchange_share else self.most_tokens

    def planned(self, total_tokens: int, num_members: int) -> int:
        """Of the round that follows so many committed tokens, whatever was measured: with "auto" the least that it may come to."""
        if not self.ramp_share:
            return self.least(num_members) if self.exchange_share else self.most_tokens
        return max(self.least(num_members), min(self.most_tokens, int(total_tokens * self.ramp_share)))

    def after(self, total_tokens: int, num_members: int, measured: MeasuredRound) -> int:
        """Of the round that follows the measured one, at `total_tokens`, with so many members.

        What was trained between a round's falling due and its proposal, while heartbeats told of it, comes on top of the next one,
        too, and is less to wait for. What was trained while the exchange before was still going on is not: with a larger target the
        round would have been opened at the same moment.
        """
        planned = self.planned(total_tokens, num_members)
        if not self.exchange_share or measured.round_s <= 0.0:
            return planned
        tokens_per_s = measured.tokens / measured.round_s
        needed = ceil(min(float(self.most_tokens), tokens_per_s * measured.exchange_s / self.exchange_share))
        needed -= int(tokens_per_s * measured.late_s)
        least, most = measured.target_tokens // MOST_CHANGE, measured.target_tokens * MOST_CHANGE
        return max(planned, min(self.most_tokens, max(least, min(most, needed))))

    def num_rounds(self, total_tokens: int, num_members: int) -> int:
        """About as many as a training of so many tokens takes, by the plan alone."""
        least = self.least(num_members)
        if not self.ramp_share:
            return -(-total_tokens // self.planned(0, num_members))
        even_until = min(total_tokens, least / self.ramp_share)
        grows_until = min(total_tokens, self.most_tokens / self.ramp_share)
        growing = log(grows_until / even_until) / log(1.0 + self.ramp_share) if grows_until > even_until else 0.0
        return ceil(even_until / least + growing + (total_tokens - grows_until) / self.most_tokens)
