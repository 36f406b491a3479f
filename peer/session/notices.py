"""The conditions of a peer's notices, which a volunteer wants to know while away, from its status. No clock in here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

from averaging.notices.conditions import Condition
from averaging.notices.notifier import Notifier
from peer.owner.controls_core import TrainingAllowance
from peer.session.session import PeerSession
from peer.status.status import PeerStatus
from peer.status.status_of import Sources, status_of

_STOPPED_S: Final = 60.0
"""A training process that dies is started again within seconds."""

_APART_S: Final = 300.0
"""Peers find each other within minutes, or not at all."""


def notices_of(life: PeerSession) -> AbstractAsyncContextManager[None]:
    """Post notices about this life of the peer, while the block runs and at its end."""
    notifier = Notifier(life.config.notify_url, life.config.state_dir, life.clock)
    return notifier.watch(lambda: life.board.run_name, partial(noticed, life.sources))


def noticed(sources: Sources) -> Sequence[Condition]:
    """All conditions that hold now."""
    disk = sources.disk
    full_disk = disk.sentence(sources.board.clock.monotonic_s()) if disk is not None else ""
    return peer_conditions(status_of(sources), sources.board.allowed, full_disk)


def peer_conditions(status: PeerStatus, allowed: TrainingAllowance, full_disk: str) -> Sequence[Condition]:
    """All conditions that hold. `full_disk`: a full disk in one sentence, empty for none."""
    found = [Condition("disk_full", full_disk)] if full_disk else []
    if allowed.is_too_hot:
        found.append(Condition("too_hot", allowed.reason))
    if status.worker_state == "restarting":
        found.append(Condition("training_stopped", f"training stopped: {status.worker_reason}", for_s=_STOPPED_S))
    if status.state == "finished":
        found.append(
            Condition(
                "run_complete",
                f"the run is complete; {status.run_rounds_counted} of its rounds count work of this peer",
            )
        )
    elif status.apart:
        found.append(Condition("apart", status.apart, for_s=_APART_S))
    return found
