from __future__ import annotations

import pytest
import torch

from peer.training.plan.layout import Mesh
from peer.training.ranks.process_group import loopback_environment, open_process_group
from peer.training.ranks.rank_group import RankGroup
from protocol.errors import LocalProtocolError


def test_ranks_speak_over_the_loopback_interface_alone() -> None:
    assert loopback_environment("cpu") == {"GLOO_SOCKET_IFNAME": "lo"}
    assert loopback_environment("cuda") == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def test_ranks_without_a_folder_to_meet_in_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="2 ranks without a folder"):
        open_process_group(RankGroup(Mesh(shard=2), 0), torch.device("cpu"), None)
