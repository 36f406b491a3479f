"""The tokens that a peer reads at each step: a pure function of (seed, peer, step), which any peer can compute again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from protocol.errors import ConfigError


def window_starts(
    seed: int, peer: str, step: int, num_windows: int, num_tokens: int, window_tokens: int
) -> tuple[int, ...]:
    """First tokens of the windows of one step, each in [0, num_tokens - window_tokens].

    Each start is 64 bits of SHA-256 over (seed, peer, step, window) reduced to the range; the bias of the reduction is below
    num_tokens / 2^64.

    Raises:
        ConfigError: the data is shorter than a window.
    """
    num_starts = num_tokens - window_tokens + 1
    if num_starts < 1:
        raise ConfigError(f"{num_tokens} tokens of training data", f"at least a window of {window_tokens}", "add text")
    prefix = f"potluck window {seed} {peer} {step}".encode()
    return tuple(
        int.from_bytes(sha256(prefix + b" %d" % window).digest()[:8], "big") % num_starts
        for window in range(num_windows)
    )


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """The place of one source in a part of the data.

    Attributes:
        begin, stop: its tokens.
        weight: its share of the windows, relative to the others.
    """

    begin: int
    stop: int
    weight: float


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a step: their first tokens, and the number of the source of each; 0 without a mixture."""

    starts: tuple[int, ...]
    sources: tuple[int, ...]


def step_windows(
    seed: int, peer: str, step: int, num_windows: int, spans: Sequence[SourceSpan], window_tokens: int
) -> Windows:
    """The windows of one step. In a mixture the source of each is drawn by the weights, with 64 bits of SHA-256 over (seed, peer,
    step, window), and its start within the source as `window_starts` does. So anybody can compute both again.

    Args:
        spans: the sources; one of all tokens without a mixture.

    Raises:
        ConfigError: a source is shorter than a window.
    """
    own_starts = [window_starts(seed, peer, step, num_windows, span.stop - span.begin, window_tokens) for span in spans]
    total, prefix = sum(span.weight for span in spans), f"potluck source {seed} {peer} {step}".encode()
    bounds = [int((1 << 64) * (sum(span.weight for span in spans[: place + 1]) / total)) for place in range(len(spans))]
    sources = tuple(_source(prefix, window, bounds) for window in range(num_windows))
    starts = (spans[source].begin + own_starts[source][window] for window, source in enumerate(sources))
    return Windows(tuple(starts), sources)


def _source(prefix: bytes, window: int, bounds: Sequence[int]) -> int:
    drawn = int.from_bytes(sha256(prefix + b" %d" % window).digest()[:8], "big")
    return min(bisect_right(bounds, drawn), len(bounds) - 1)


def heldout_windows(num_windows: int, spans: Sequence[SourceSpan], window_tokens: int) -> tuple[int, ...]:
    """The fixed evaluation windows, as `heldout_starts` spreads them: of a mixture, so many of each source as its weight says, and at
    least one.

    Raises:
        ConfigError: a source is shorter than a window.
    """
    total, starts = sum(span.weight for span in spans), list[int]()
    counts = [max(1, int(num_windows * (span.weight / total))) for span in spans]
    heaviest = max(range(len(spans)), key=lambda place: spans[place].weight)
    counts[heaviest] = max(1, counts[heaviest] + num_windows - sum(counts))
    for span, count in zip(spans, counts, strict=True):
        own = heldout_starts(count, span.stop - span.begin, window_tokens)
        starts += [span.begin + start for start in own]
    return tuple(starts)


def heldout_starts(num_windows: int, num_tokens: int, window_tokens: int) -> tuple[int, ...]:
    """The fixed evaluation windows, evenly spread over the held-out part. They are the same for every peer.

    Raises:
        ConfigError: the held-out part is shorter than a window.
    """
    span = num_tokens - window_tokens
    if span < 0:
        raise ConfigError(f"{num_tokens} held-out tokens", f"at least a window of {window_tokens}", "add text")
    return tuple(span * window // max(1, num_windows - 1) for window in range(num_windows))
