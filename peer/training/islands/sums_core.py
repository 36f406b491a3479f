"""Sums over several islands: their weights, their shares of credited tokens, and their progress. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from averaging.network.seams.interfaces import TrainerProgress

LEFT_OUT: Final = "left out"
"""State of an island that does not train."""

_STATES: Final = ("training", "starting", "restarting", "paused", "held", LEFT_OUT)
"""All islands together are in the first of these that one of them is in."""


def weights_of(tokens: Sequence[int]) -> tuple[float, ...]:
    """Each island's weight in the mean, by its tokens; their sum is 1. Without any tokens the first counts alone."""
    total = sum(tokens)
    if not total:
        return tuple(float(place == 0) for place in range(len(tokens)))
    return tuple(each / total for each in tokens)


def divided(credited_tokens: int, reported: Sequence[int], ready: Sequence[int]) -> tuple[int, ...]:
    """Each island's share of the credited tokens; the shares' sum is `credited_tokens` wherever so many are there.

    Args:
        reported: each island's tokens at the last snapshot. They are credited first, in proportion.
        ready: each island's tokens that are ready now, from which the rest is taken in order.
    """
    total = sum(reported)
    left = min(credited_tokens, total)
    shares = [left * each // total if total else 0 for each in reported]
    left = credited_tokens - sum(shares)
    for rooms in (reported, [max(one, other) for one, other in zip(ready, reported, strict=True)]):
        for place, room in enumerate(rooms):
            more = min(left, max(0, room - shares[place]))
            shares[place] += more
            left -= more
    return tuple(shares)


def names_of(devices: Sequence[str]) -> tuple[str, ...]:
    """A name for each island; those on devices of the same name are counted."""
    seen: Counter[str] = Counter()
    names = []
    for device in devices:
        names.append(device if devices.count(device) == 1 else f"{device} no. {seen[device]}")
        seen[device] += 1
    return tuple(names)


def together(names: Sequence[str], parts: Sequence[TrainerProgress]) -> TrainerProgress:
    """The progress of all islands, of which at least one is there. It trains while one of them does; a reason names its island."""
    losses = [part.loss_nats for part in parts if part.loss_nats is not None]
    state = min((part.state for part in parts), key=_STATES.index)
    return replace(
        parts[0],
        tokens_ready=sum(part.tokens_ready for part in parts),
        tokens_trained=sum(part.tokens_trained for part in parts),
        loss_nats=sum(losses) / len(losses) if losses else None,
        tokens_per_s=sum(part.tokens_per_s for part in parts),
        restarts=sum(part.restarts for part in parts),
        state="held" if state == LEFT_OUT else state,
        reason=_reason(names, parts),
        num_replicas=max(1, sum(part.state != LEFT_OUT for part in parts)),
        answers_within_s=max(part.answers_within_s for part in parts),
        has_theta=any(part.has_theta for part in parts),
    )


def _reason(names: Sequence[str], parts: Sequence[TrainerProgress]) -> str:
    if len({part.reason for part in parts}) == 1:
        return parts[0].reason
    return "; ".join(f"{name}: {part.reason}" for name, part in zip(names, parts, strict=True) if part.reason)
