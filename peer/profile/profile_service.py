"""The daemon's side of `potluck profile`: takes the owner's requests and hands them to the training process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Offload
from peer.profile.profile_files import ProfileRequest, profile_folder, take_request, write_problem
from peer.training.worker_channel import ProfileOrder, Reply

log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
ASK_WITHIN_S: Final = 60.0
"""The training process begins at a step boundary, and may be at its start."""

NO_PROCESS: Final = "the training process takes no orders now"
CANNOT: Final = "this kind of training cannot be recorded"


@runtime_checkable
class Profiled(Protocol):
    """A trainer that records its steps."""

    profile: Callable[[ProfileOrder], Awaitable[Reply | None]]


async def serve_profiles(state_dir: Path, trainer: object, clock: Clock, offload: Offload) -> None:
    """Take requests until cancelled, one after another."""
    while True:
        request = await offload.run(partial(take_request, state_dir, clock.unix_s()))
        if request is not None:
            await _serve(state_dir, trainer, request, offload)
        await trio.sleep(LOOK_EVERY_S)


async def _serve(state_dir: Path, trainer: object, request: ProfileRequest, offload: Offload) -> None:
    log.info("profile_asked", steps=request.num_steps)
    if not isinstance(trainer, Profiled):
        await offload.run(partial(write_problem, state_dir, request, CANNOT))
        return
    folder = str(profile_folder(state_dir).absolute())
    order = ProfileOrder(num_steps=request.num_steps, folder=folder, request=request.request)
    reply: Reply | None = None
    with trio.move_on_after(ASK_WITHIN_S):
        reply = await trainer.profile(order)
    if reply is None:
        await offload.run(partial(write_problem, state_dir, request, NO_PROCESS))
