"""Ranks agree on the way between their cards."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from peer.training.plan.layout import Mesh
from peer.training.ranks.rank_group import alone, meet
from peer.training.supervision import wires
from peer.training.supervision.wires import prepare_wires


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        monkeypatch.setenv(name, "")  # restored at the end, whatever is set meanwhile
        del os.environ[name]


def _prepared(folder: Path) -> list[str]:
    def one(rank: int) -> str:
        group = meet(Mesh(shard=2), rank, folder)
        try:
            return prepare_wires(group, torch.device("cuda", 2 + rank))
        finally:
            group.close()

    with ThreadPoolExecutor(2) as threads:
        return [each.result(60.0) for each in [threads.submit(one, rank) for rank in range(2)]]


def test_if_one_card_cannot_reach_another_all_ranks_take_the_slower_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def can(own: int, other: int) -> bool:
        asked.append((own, other))
        return own == 2

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", can)
    monkeypatch.setattr(wires, "shared_bytes", lambda: 64 << 20)
    first, second = _prepared(tmp_path)
    assert sorted(asked) == [(2, 3), (3, 2)]
    assert first == second
    assert "--shm-size" in first
    assert (os.environ["NCCL_P2P_DISABLE"], os.environ["NCCL_SHM_DISABLE"]) == ("1", "1")


def test_a_variable_that_the_owner_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: False)
    os.environ["NCCL_P2P_DISABLE"] = "0"
    _prepared(tmp_path)
    assert os.environ["NCCL_P2P_DISABLE"] == "0"


def test_on_the_cpu_nothing_is_prepared() -> None:
    assert prepare_wires(alone(), torch.device("cpu")) == ""
    assert "NCCL_SHM_DISABLE" not in os.environ
