from __future__ import annotations

import pytest

from peer.training.ranks.echoes import is_echo


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("RankGone", "a process of the same replica ended", True),
        ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", True),
        ("RuntimeError", "[..] Application timeout caused pair closure; Connection reset by peer", True),
        ("DistBackendError", "NCCL communicator was aborted on rank 1.", True),
        ("DistStoreError", "wait timeout after 300000ms", True),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", False),
        ("KeyError", "'weights'", False),
    ],
)  # fmt: skip
def test_an_error_of_the_way_between_ranks_is_an_echo(name: str, text: str, expected: bool) -> None:
    assert is_echo(name, text) == expected
