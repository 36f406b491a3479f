"""Cards that cannot exchange values directly do it more slowly, and say so."""

from __future__ import annotations

import pytest

from peer.training.supervision.wires_core import wire_settings

DOCKERS_DEFAULT = 64 << 20
PLENTY = 8 << 30


@pytest.mark.parametrize(
    ("shared_bytes", "has_peer_access", "environment", "words"),
    [
        (PLENTY, True, {}, ()),
        (
            DOCKERS_DEFAULT,
            True,
            {"NCCL_SHM_DISABLE": "1"},
            ("/dev/shm has 64 MB", "cards that are far apart", "--shm-size 1g"),
        ),
        (
            PLENTY,
            False,
            {"NCCL_P2P_DISABLE": "1"},
            ("not let these cards reach each other's memory", "the machine's memory"),
        ),
        (
            DOCKERS_DEFAULT,
            False,
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
            ("not let these cards reach each other's memory", "/dev/shm has 64 MB", "loopback", "--shm-size 1g"),
        ),
        (0, False, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, ("/dev/shm has 0 MB",)),
    ],
)
def test_a_slower_way_is_taken_only_where_the_better_one_does_not_work(
    shared_bytes: int, has_peer_access: bool, environment: dict[str, str], words: tuple[str, ...]
) -> None:
    found = wire_settings(shared_bytes, has_peer_access=has_peer_access)
    assert found.environment == environment
    assert bool(found.note) == bool(words)
    assert "\n" not in found.note
    for word in words:
        assert word in found.note
