"""Opens torch's process group for the ranks of one replica: NCCL between CUDA cards, gloo elsewhere, over the loopback interface.

The ranks find each other by a file in the folder where they meet, so that no port is opened. The group is never closed: closing may
wait for ever for a rank that is gone, and the end of the process closes it, too.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from peer.training.ranks.rank_group import RankGroup
from protocol.errors import LocalProtocolError

STORE_NAME: Final = "store"
COLLECTIVE_WITHIN_S: Final = 600.0
"""Ranks come to each collective together, since they wait for orders elsewhere. The daemon's patience ends them earlier."""

TENSOR: Final = "tensor"
SHARD: Final = "shard"
CONTEXT: Final = "context"
READER: Final = "reader"


@dataclass(frozen=True, slots=True)
class Wires:
    """The groups of ranks, as torch's meshes of one dimension; this rank's own.

    Attributes:
        shard: ranks that hold the rows of each parameter.
        tensor: ranks that split the products of each layer.
        context: ranks that share the tokens of each sequence; None if each rank has whole ones.
    """

    shard: DeviceMesh
    tensor: DeviceMesh
    context: DeviceMesh | None


def open_process_group(group: RankGroup, device: torch.device, meeting: Path | None) -> Wires:
    """Open the group of all ranks, once in a process, and those of the parts of its mesh. Raises as `join_process_group`."""
    join_process_group(group, device, meeting)
    mesh = group.mesh
    found = init_device_mesh(device.type, (mesh.shard, mesh.tensor), mesh_dim_names=(SHARD, TENSOR))
    if mesh.context == 1:
        return Wires(found[SHARD], found[TENSOR], None)
    readers = init_device_mesh(
        device.type, (mesh.readers, mesh.context, mesh.tensor), mesh_dim_names=(READER, CONTEXT, TENSOR)
    )
    return Wires(found[SHARD], found[TENSOR], readers[CONTEXT])


def join_process_group(group: RankGroup, device: torch.device, meeting: Path | None) -> None:
    """Open the group of all ranks, once in a process.

    Raises:
        LocalProtocolError: a plan of several ranks without a folder to meet in.
    """
    if meeting is None:
        raise LocalProtocolError(f"{group.size} ranks without a folder to meet in", "the folder")
    for name, value in loopback_environment(device.type).items():
        os.environ.setdefault(name, value)
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
        torch.cuda.init()  # type: ignore[no-untyped-call] # else torch would choose the card by the rank
    if not dist.is_initialized():
        dist.init_process_group(
            backend="cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=dist.FileStore(str(meeting / STORE_NAME), group.size),
            rank=group.rank,
            world_size=group.size,
            timeout=timedelta(seconds=COLLECTIVE_WITHIN_S),
            device_id=device if is_cuda else None,
        )


def loopback_environment(device_type: str) -> dict[str, str]:
    """Variables of the libraries that carry values between ranks: these never leave the machine. The way between cards is chosen by
    peer/training/supervision/wires.py.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    of_cards = {"NCCL_SOCKET_IFNAME": loopback} if device_type == "cuda" else {}
    return {"GLOO_SOCKET_IFNAME": loopback, **of_cards}
