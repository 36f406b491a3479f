"""Tokens as sets: each token that a peer trains has a number, and nothing may be lost or applied twice.

A set of tokens is a list of half-open intervals; a contribution's tokens are in the order in which they were trained. The tokens of
each process life have a range of their own, because the next life may read the same data again; its tokens are others.
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]
Tokens = list[Interval]

LIFE_TOKENS = 1 << 40
"""Room for the tokens of one process life: the token of life k at data position p has the number k * LIFE_TOKENS + p."""


def count(tokens: Iterable[Interval]) -> int:
    """How many tokens."""
    total = 0
    for begin, stop in tokens:
        total += stop - begin
    return total


def data(tokens: Iterable[Interval]) -> Tokens:
    """Which data these tokens are, in whichever life it was read."""
    return [(begin % LIFE_TOKENS, begin % LIFE_TOKENS + stop - begin) for begin, stop in tokens]


def append(tokens: Tokens, begin: int, stop: int) -> None:
    """Add an interval at the end, in place."""
    if begin == stop:
        return
    if tokens and tokens[-1][1] == begin:
        tokens[-1] = (tokens[-1][0], stop)
    else:
        tokens.append((begin, stop))


def split(tokens: Tokens, num_tokens: int) -> tuple[Tokens, Tokens]:
    """The first `num_tokens`, and the rest; fewer when there are not so many."""
    first: Tokens = []
    rest: Tokens = []
    for begin, stop in tokens:
        taken = min(stop - begin, max(0, num_tokens))
        append(first, begin, begin + taken)
        append(rest, begin + taken, stop)
        num_tokens -= taken
    return first, rest


def union(tokens: Iterable[Interval]) -> Tokens:
    """Sorted, each token once."""
    merged: Tokens = []
    for begin, stop in sorted(tokens):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif begin < stop:
            merged.append((begin, stop))
    return merged


def overlap(some: Iterable[Interval], others: Iterable[Interval]) -> Tokens:
    """Tokens in both."""
    found: Tokens = []
    other = union(others)
    for begin, stop in union(some):
        for other_begin, other_stop in other:
            low, high = max(begin, other_begin), min(stop, other_stop)
            if low < high:
                found.append((low, high))
    return found


def differing(some: Iterable[Interval], others: Iterable[Interval]) -> tuple[Tokens, Tokens]:
    """Tokens only in the first, and only in the second."""
    one, two = union(some), union(others)
    return without(one, two), without(two, one)


def without(some: Tokens, others: Tokens) -> Tokens:
    """The tokens of the first that are not in the second; both sorted, each token once."""
    left: Tokens = []
    for begin, stop in some:
        for other_begin, other_stop in others:
            if other_stop <= begin or other_begin >= stop:
                continue
            if begin < other_begin:
                left.append((begin, other_begin))
            begin = max(begin, other_stop)
        if begin < stop:
            left.append((begin, stop))
    return left
