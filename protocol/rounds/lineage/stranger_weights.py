"""The weights of contributions in a sum (R10): their tokens, under two caps, and strangers' together under a third of the others'.

Keepers and members weigh up to the record's weight cap. A stranger weighs at most the lower median of what they weigh, and all
strangers together at most a quarter of the sum, by one ratio of integers. So a crowd of strangers, and any number of tokens that they
claim, moves a mean no further than a third of what the trusted members bring. In a sum without strangers the weight cap alone counts.

Every reducer and every reader of a record computes the same from signed claims: each says whether its signer is a stranger.

Rules: R10, R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.rounds.messages.record import CommitRecord

TRUSTED_PARTS: Final = 3
"""Strangers together weigh at most one part beside so many parts of keepers and members: a quarter of the whole."""


def weights_of(tokens: Sequence[int], are_strangers: Sequence[bool], cap_tokens: int) -> list[int]:
    """The integer weight of each contribution in one sum, in tokens; of strangers alone they are zeros.

    Args:
        tokens: of each contribution, as its signer claims them, at least 0.
        are_strangers: of each whether its signer is a stranger.
        cap_tokens: the most that a keeper or member weighs, at least 1.
    """
    capped = [min(each, cap_tokens) for each in tokens]
    trusted = sorted(weight for weight, is_stranger in zip(capped, are_strangers, strict=True) if not is_stranger)
    if len(trusted) == len(capped):
        return capped
    most = trusted[(len(trusted) - 1) // 2] if trusted else 0
    bounded = [
        min(weight, most) if is_stranger else weight for weight, is_stranger in zip(capped, are_strangers, strict=True)
    ]
    return with_strangers_bounded(bounded, are_strangers)


def with_strangers_bounded(weights: Sequence[int], are_strangers: Sequence[bool]) -> list[int]:
    """These weights, those of strangers scaled down together where they are more than a quarter of all; each is rounded down."""
    theirs = sum(weight for weight, is_stranger in zip(weights, are_strangers, strict=True) if is_stranger)
    most = (sum(weights) - theirs) // TRUSTED_PARTS
    if theirs <= most:
        return list(weights)
    return [
        weight * most // theirs if is_stranger else weight
        for weight, is_stranger in zip(weights, are_strangers, strict=True)
    ]


def recorded_weights(record: CommitRecord) -> list[int]:
    """The weight of each contributor of a record, as if every slice counted all of them. Credits follow it (R20)."""
    entries = record.contributors
    return weights_of([e.tokens for e in entries], [e.is_stranger for e in entries], record.weight_cap_tokens)
