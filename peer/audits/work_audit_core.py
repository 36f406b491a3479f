"""Decides which work a peer does again, and compares it with what its contributor sent. Pure.

An auditor compares a contribution with the redone delta, that of the same steps done again, and with a control: the delta of as many
steps from the same state, on windows that it draws in private. Only the redone one has read the same text. So the gap

    (cos(contribution, redone delta) - cos(contribution, control)) / (1 - cos(redone delta, control))

is 1 for the redone delta itself, somewhat less for work on the assigned windows with other moments, however many steps it took, and
about 0 for work on other windows, for copies, for averages and for noise. Both deltas begin with the same moments, those of the
auditor at the start of the round, so these cancel out, and none have to be sent. Random chunks of the vectors are enough: nobody knows
in advance which ones are compared.

Assigned data against other data was first compared by loss (Gauntlet, https://arxiv.org/abs/2505.21684); spot checks of volunteers'
work are those of Sarmenta (https://doi.org/10.1016/S0167-739X(01)00077-2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.host.work_rules import LEAST_STEPS, MOST_STEPS
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId
from protocol.rounds.messages.record import CommitRecord, Contributor
from protocol.rounds.messages.requests import StepsTaken

STRANGERS_WEIGHT: Final = 10
"""A stranger's work is drawn this many times as often as a member's or a keeper's."""

COMPARED_CHUNKS: Final = 16
"""Chunks that an audit compares of a contribution; all of them where it has fewer."""

MOST_COMPARED: Final = 1 << 20
"""Values that an audit compares at most, but always one chunk."""

LEAST_DIFFERENCE: Final = 1e-3
"""Least 1 - cos(redone delta, control). Below it the windows make no difference, and there is no finding."""

LARGEST_GAP: Final = 2.0

Draw = Callable[[], float]
"""A number in [0, 1) that nobody else can guess."""


@dataclass(frozen=True, slots=True)
class Products:
    """Inner products over the compared chunks: of the contribution, the redone delta and the control. `with_redone` and `with_control`
    are the contribution's, `between` that of the other two.
    """

    contribution_squared: float
    redone_squared: float
    control_squared: float
    with_redone: float
    with_control: float
    between: float


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of comparing a contribution with redone work.

    Attributes:
        gap: as the module's docstring defines it, cut to [-2, 2].
        length_ratio: the length of the contribution over that of the redone delta, at least 0.
    """

    gap: float
    length_ratio: float


def compared(products: Products) -> Finding | None:
    """The finding, None where the auditor's two deltas say nothing. A contribution of zeros has a gap of 0."""
    found = (products.redone_squared, products.control_squared)
    if not all(0.0 < squared < math.inf for squared in found) or not math.isfinite(products.contribution_squared):
        return None
    difference = 1.0 - products.between / math.sqrt(products.redone_squared * products.control_squared)
    if not difference >= LEAST_DIFFERENCE:
        return None
    if not products.contribution_squared > 0.0:
        return Finding(0.0, 0.0)
    length = math.sqrt(products.contribution_squared)
    with_redone = products.with_redone / (length * math.sqrt(products.redone_squared))
    with_control = products.with_control / (length * math.sqrt(products.control_squared))
    gap = max(-LARGEST_GAP, min(LARGEST_GAP, (with_redone - with_control) / difference))
    return Finding(gap, length / math.sqrt(products.redone_squared))


def audits_round(share: float, own: PeerStanding, draw: Draw) -> bool:
    """Whether this peer, of standing `own`, audits a round. Drawn before the round, since the moments of its beginning are needed.

    Args:
        share: of rounds, 0 to 1.
    """
    return own.may_vote and draw() < share


def drawn_contributor(
    contributors: Sequence[PeerId], me: PeerId, standings: Mapping[PeerId, PeerStanding], draw: Draw
) -> PeerId | None:
    """The contributor whose work of an audited round this peer does again. None where it contributed nothing, or nobody else did.

    Args:
        standings: of the peers that are no keepers.
    """
    others = [peer for peer in contributors if peer != me]
    if me not in contributors or not others:
        return None
    weights = [STRANGERS_WEIGHT if standings.get(peer) is PeerStanding.STRANGER else 1 for peer in others]
    left = draw() * sum(weights)
    for peer, weight in zip(others, weights, strict=True):
        left -= weight
        if left < 0.0:
            return peer
    return others[-1]


def compared_chunks(record: CommitRecord, contributor: PeerId, chunk_elements: int, draw: Draw) -> tuple[int, ...]:
    """The numbers of the chunks to compare, drawn from the slices that sum the contribution; none where no slice does.

    Args:
        chunk_elements: values of a chunk.
    """
    summed = [
        chunk
        for part in record.slices
        if not any(each.peer == contributor for each in part.omitted)
        for chunk in range(part.first_chunk, part.stop_chunk)
    ]
    most = min(len(summed), max(1, min(COMPARED_CHUNKS, MOST_COMPARED // chunk_elements)))
    for place in range(most):  # the first steps of a shuffle
        other = place + int(draw() * (len(summed) - place))
        summed[place], summed[other] = summed[other], summed[place]
    return tuple(sorted(summed[:most]))


def claimed_steps(entry: Contributor, batch_tokens: int) -> int:
    """The local steps that a contribution's tokens make; 0 where they make no whole number, or too few or too many to judge.

    Args:
        batch_tokens: tokens of a local step.
    """
    num_steps, rest = divmod(entry.tokens, batch_tokens)
    return num_steps if not rest and not entry.lanes and LEAST_STEPS <= num_steps <= MOST_STEPS else 0


def is_large(entry: Contributor, batch_tokens: int) -> bool:
    """Whether a contribution claims so many steps that it is to be done again."""
    return entry.tokens >= LEAST_STEPS * batch_tokens and not entry.lanes


def why_untold(entry: Contributor, steps: StepsTaken | None, told_until: int, batch_tokens: int) -> str:
    """Why the steps that a contributor tells cannot be done again; empty where they can.

    Args:
        entry: its claim, of many steps (`is_large`).
        steps: as it tells them; None where it tells none.
        told_until: the place in its data after the steps that it told last time. Text that it told already might be old work.
        batch_tokens: tokens of a local step.
    """
    num_claimed = claimed_steps(entry, batch_tokens)
    if not num_claimed:
        return f"its {entry.tokens} tokens are no whole number of steps, or of more than {MOST_STEPS}"
    if steps is None:
        return "it tells no steps"
    if steps.num_steps != num_claimed:
        return f"it tells {steps.num_steps} steps and claims {num_claimed}, as several replicas do"
    if steps.first_step < told_until:
        return f"it tells steps from {steps.first_step} on, and told those up to {told_until} already"
    return ""
