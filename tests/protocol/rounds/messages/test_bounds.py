from __future__ import annotations

import pytest

from protocol.errors import RemoteProtocolError
from protocol.rounds.messages.bounds import MAX_TOKENS, require_hash, require_tokens


def test_what_is_fine_passes() -> None:
    require_hash("root", bytes(32))
    require_tokens(0)
    require_tokens(MAX_TOKENS)


@pytest.mark.parametrize("tokens", [-1, MAX_TOKENS + 1])
def test_tokens_that_no_run_counts_are_refused(tokens: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{tokens} tokens"):
        require_tokens(tokens)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_hash_of_another_length_is_refused_by_its_name(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"root of {length} bytes"):
        require_hash("root", bytes(length))
