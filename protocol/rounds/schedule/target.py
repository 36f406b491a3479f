"""How many ready tokens make the next round due. Pure: every commit record carries the number, so all peers of a run agree on it.

By default all rounds are alike. A ramp begins with small rounds: each takes a fixed share of all tokens committed before it. So
rounds are evenly spread over the logarithm of the training. Local training loses most against synchronous training early, and early
rounds are few bytes in all. "auto" measures: a round lasts as long as its exchange needs, so that exchanges do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Final

MOST_CHANGE: Final = 2
"""A measured target is at most this many times the previous one, or at least that part of it: one slow round proves little."""


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """Measures of the time between two proposals, as seen by the leader of the later one. For the first round that it hears of,
    they run from the previous commit until every slice had its result.

    Attributes:
        target_tokens: at which the later one was due.
        tokens: offered to it.
        round_s: between the two proposals.
        exchange_s: from the earlier proposal to its commit, with all that its exchange brought; where training waits for it, from
            the leader's own snapshot on.
        heartbeat_s: between two reports of ready tokens, while the later one was about to be due.
    """

    target_tokens: int
    tokens: int
    round_s: float
    exchange_s: float
    heartbeat_s: float = 0.0

    @property
    def late_s(self) -> float:
        """Seconds between the later round's falling due and its proposal, for want of reports. A time longer than a heartbeat that
        began before the exchange was over is no such delay: the round waited for the exchange.
        """
        since_due_s = self.round_s * max(0, self.tokens - self.target_tokens) / max(1, self.tokens)
        return min(since_due_s, max(self.heartbeat_s, self.round_s - self.exchange_s))


@dataclass(frozen=True, slots=True)
class RoundTarget:
    """The manifest's rule for targets. Tokens are those of all members together.

    Attributes:
        most_tokens: of the largest round; of every round without a ramp and without "auto".
        first_tokens: of one member in the smallest round.
        ramp_share: of the tokens committed before, 0 without a ramp.
        exchange_share: with "auto", the share of a round that its exchange may take, above 0; else 0.
        is_blocking: training waits for exchanges.
    """

    most_tokens: int
    first_tokens: int = 1
    ramp_share: float = 0.0
    exchange_share: float = 0.0
    is_blocking: bool = False

    def least(self, num_members: int) -> int:
        """Tokens of the smallest round of `num_members`."""
        return min(self.most_tokens, num_members * self.first_tokens)

    @property
    def fewest_tokens(self) -> int:
        """Tokens of the smallest possible round of the run, whatever takes part in it and whatever the measures were."""
        return self.least(1) if self.ramp_share or self.exchange_share else self.most_tokens

    def planned(self, total_tokens: int, num_members: int) -> int:
        """Tokens of the round after `total_tokens` are committed, by the plan alone; with "auto" the least that it may come to."""
        if not self.ramp_share:
            return self.least(num_members) if self.exchange_share else self.most_tokens
        return max(self.least(num_members), min(self.most_tokens, int(total_tokens * self.ramp_share)))

    def after(self, total_tokens: int, num_members: int, measured: MeasuredRound) -> int:
        """Tokens of the round that follows the measured one, at `total_tokens`, with `num_members`.

        Tokens are also trained while reports are under way, after a round falls due and before its proposal. They come on top of
        the next round too, so they are taken off its target. Tokens trained while the earlier exchange still ran are not taken off:
        with a larger target the round would have been opened at the same moment.
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
        """About how many rounds a training of `total_tokens` takes, by the plan alone."""
        least = self.least(num_members)
        if not self.ramp_share:
            return -(-total_tokens // self.planned(0, num_members))
        even_until = min(total_tokens, least / self.ramp_share)
        grows_until = min(total_tokens, self.most_tokens / self.ramp_share)
        growing = log(grows_until / even_until) / log(1.0 + self.ramp_share) if grows_until > even_until else 0.0
        return ceil(even_until / least + growing + (total_tokens - grows_until) / self.most_tokens)
