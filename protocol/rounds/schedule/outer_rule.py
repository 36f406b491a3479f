"""Which outer step a round takes: momentum is for long rounds, and where peers take turns a step is smaller. Pure: it follows from
the base and the commits behind it, so all agree.

Successive deltas of short rounds point the same way, so momentum mu multiplies a step by up to 1 / (1 - mu rho), rho being their
cosine. One unreviewed note has 0.98, 0.93 and 0.73 for it at 16, 64 and 256 local steps, and no momentum ended better up to 64.
With one local step, outer momentum is the worst of all settings (Scaling Laws for DiLoCo, 2503.09799).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.rule_numbers import takes_turns
from protocol.rounds.lineage.turns import TURNS_WITHIN, rounds_a_turn
from protocol.rounds.messages.record import OuterStep

LEAST_MOMENTUM_STEPS: Final = 64
"""Local steps of each member from which momentum is no worse than none."""

WITHIN_FACTOR: Final = 2
"""A voter takes a record whose leader counts so many times its own number of rounds between two turns, or so much fewer."""

PLAIN_MEAN: Final = OuterStep("mean", 1.0, 0.0)


def outer_of_round(outer: OuterStep, momentum_from_tokens: int, base: ChainLink, turns: int = 1) -> OuterStep:
    """The outer step of the round after `base`: the run's, or the plain mean in a short round. A round is short if each voter's
    share of its target is less than `momentum_from_tokens`. It is divided by `turns`, the rounds between two turns of a peer.
    """
    is_short = base.target_tokens < momentum_from_tokens * len(base.roster)
    whole = PLAIN_MEAN if is_short else outer
    return whole if turns == 1 else replace(whole, learning_rate=whole.learning_rate / turns)


def turns_of_base(outer: OuterStep, links: Iterable[ChainLink]) -> int:
    """Rounds between two turns of a peer in the round after a base. `links`: the base and its ancestors, newest first."""
    base, *earlier = islice(links, TURNS_WITHIN)
    return rounds_a_turn([base, *earlier], _divided_by(outer, base))


def _divided_by(outer: OuterStep, base: ChainLink) -> int:
    """The number by which the base's own outer step was divided."""
    made = base.record.outer if base.record is not None else outer
    whole = outer if (made.kind, made.momentum) == (outer.kind, outer.momentum) else PLAIN_MEAN
    return max(1, round(whole.learning_rate / made.learning_rate)) if made.learning_rate > 0 else 1


def allowed_outer(
    found: OuterStep, outer: OuterStep, momentum_from_tokens: int, links: Iterable[ChainLink]
) -> OuterStep:
    """The outer step that a record may have: `found` if it is one, else ours. A leader that joined lately knows fewer commits, so its
    number of turns may be WITHIN_FACTOR times ours, or as much smaller.

    Args:
        links: the record's base and its ancestors, newest first.
    """
    base, *earlier = islice(links, TURNS_WITHIN)
    turns = turns_of_base(outer, [base, *earlier])
    others = range(-(-turns // WITHIN_FACTOR), WITHIN_FACTOR * turns + 1) if takes_turns(base.rules) else ()
    allowed = (outer_of_round(outer, momentum_from_tokens, base, number) for number in (turns, *others))
    return found if found in allowed else outer_of_round(outer, momentum_from_tokens, base, turns)
