"""The tokens that a peer reads at each step: a pure function of (seed, peer, step), which any peer can compute again."""

from __future__ import annotations

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


def heldout_starts(num_windows: int, num_tokens: int, window_tokens: int) -> tuple[int, ...]:
    """The fixed evaluation windows, evenly spread over the held-out part. They are the same for every peer.

    Raises:
        ConfigError: the held-out part is shorter than a window.
    """
    span = num_tokens - window_tokens
    if span < 0:
        raise ConfigError(f"{num_tokens} held-out tokens", f"at least a window of {window_tokens}", "add text")
    return tuple(span * window // max(1, num_windows - 1) for window in range(num_windows))
