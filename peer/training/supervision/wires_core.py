"""The way that values take between the cards of one replica, and the line that says when it is a slow one. Pure.

NCCL takes the first way that works: from card to card, through a file in /dev/shm, or over the network. It fails, and takes no other
way, if /dev/shm is there and too small, as in a container by docker's default. gloo uses the loopback interface only. The memory that
ranks share with the daemon is not in /dev/shm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

LEAST_SHARED_BYTES: Final = 1 << 28
"""Of /dev/shm: about 10 MB for each pair of cards and channel."""

_NO_SHARED: Final = "/dev/shm has {megabytes} MB, too little for NCCL"
_NO_PEERS: Final = "the driver does not let these cards reach each other's memory"


@dataclass(frozen=True, slots=True)
class WireSettings:
    """How values go between cards.

    Attributes:
        environment: variables of NCCL.
        note: why a slower way is taken and what to do about it, in one line; empty for the best way.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def wire_settings(shared_bytes: int, *, has_peer_access: bool) -> WireSettings:
    """The way between CUDA cards.

    Args:
        shared_bytes: size of /dev/shm, 0 where there is none.
        has_peer_access: whether the driver lets each card reach the memory of each other one.
    """
    environment, reasons = {}, []
    if not has_peer_access:
        environment["NCCL_P2P_DISABLE"] = "1"
        reasons.append(_NO_PEERS)
    is_small = shared_bytes < LEAST_SHARED_BYTES
    if is_small:
        environment["NCCL_SHM_DISABLE"] = "1"
        reasons.append(_NO_SHARED.format(megabytes=shared_bytes >> 20))
    if not reasons:
        return WireSettings(environment)
    # NCCL links cards that are far apart on the board through the machine's memory, whatever the driver lets them reach
    which = " between cards that are far apart" if has_peer_access else ""
    way = "the loopback interface, much slower" if is_small else "the machine's memory, slower"
    remedy = "; in docker give --shm-size 1g" if is_small else ""
    return WireSettings(environment, f"{', and '.join(reasons)}: values{which} go over {way}{remedy}")
