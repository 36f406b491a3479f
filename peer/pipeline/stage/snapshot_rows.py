"""A process's rows of a stage's snapshot: written beside the next passes, and read to continue from. Each process has its own rows of
parameters and moments, or all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from peer.machine.device import has_room_beside_step
from peer.pipeline.stage.stage_snapshot import is_finite, layout_of, read_layout, require_finite
from peer.pipeline.stage.stage_trainer import StageTrainer


def send_rows(trainer: StageTrainer, out: torch.Tensor, *, is_first: bool) -> int:
    """Copy this process's rows, as they are now. `trainer.bridge` writes the copies while the next passes are computed. A card
    that lacks memory for them beside a step writes its rows at once.

    Args:
        out: memory for the snapshot, uint8.
        is_first: whether this process writes what is not in rows.

    Returns:
        Bytes of the snapshot.
    """
    trainer.bridge.wait_sent()
    parameters, moments = trainer.replica.parameters, trainer.replica.optimizer.moments()
    shapes = [spec.shape for spec in trainer.schema.tensors]
    wholes = [
        (moment.dtype, shapes[place] if moment.dim() else ())
        for place, moment in zip(trainer.places, moments, strict=False)
    ]
    layout = layout_of([(parameters[0].dtype, (trainer.schema.num_elements,)), *wholes])
    theta_rooms, moment_rooms = trainer.own_rows(layout.views(out))
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = list(zip(parameters, theta_rooms, strict=True))
    pairs += [pair for pair in zip(moments, moment_rooms, strict=True) if is_first or pair[0].dim()]
    if is_first:
        out[: len(layout.head)] = torch.frombuffer(bytearray(layout.head), dtype=torch.uint8)
    num_bytes = sum(own.numel() * own.element_size() for own, _ in pairs if own.device.type != "cpu")
    trainer.bridge.send(pairs, at_once=not has_room_beside_step(trainer.replica.device, num_bytes))
    return layout.num_bytes


def restore_rows(trainer: StageTrainer, data: torch.Tensor, agreed: Callable[[bool], bool]) -> None:
    """Continue from a snapshot, uint8, of which this process reads its own rows.

    Args:
        agreed: whether all processes that read it find it so.

    Raises:
        RemoteProtocolError: not a snapshot of this stage, or values that are not finite. Nothing has changed.
        LocalProtocolError: a snapshot of another optimizer.
    """
    snapshot = read_layout(data, trainer.schema).views(data)
    theta, moments = trainer.own_rows(snapshot)
    require_finite(agreed(all(map(is_finite, (*theta, *moments)))))
    trainer.restore_rows(theta, moments)
