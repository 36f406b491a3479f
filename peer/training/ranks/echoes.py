"""Tells errors of the way between ranks, which another rank's end causes, from a rank's own. Pure."""

from __future__ import annotations

from typing import Final

_COLLECTIVE_ERRORS: Final = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "RankGone"})
_COLLECTIVE_WORDS: Final = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")


def is_echo(error_name: str, text: str) -> bool:
    """Whether an error is of the way between ranks, and so most likely the end of another one.

    Args:
        error_name: of its class.
    """
    low = text.lower()
    return error_name in _COLLECTIVE_ERRORS or any(words in low for words in _COLLECTIVE_WORDS)
