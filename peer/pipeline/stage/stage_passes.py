"""Forward and backward passes of micro-batches through one stage, and what is kept between the two.

Between its passes, a stage keeps a micro-batch under its full identity. It keeps the graph or, with recomputation, only the
input, from which everything else is computed again: bit for bit, but for the rounding of layers that are compiled.

Shapes: as peer/models/decoder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from peer.models.decoder import ALL_COUNT, LossMarks
from peer.models.stage_model import StageDecoder
from peer.training.replica.replica import Replica
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.pipeline.micro_batch import MicroBatch


@dataclass(frozen=True, slots=True)
class Kept:
    """One micro-batch between its passes.

    Attributes:
        arrived: tokens or activations; activations require a gradient.
        left: the output with its graph, a scalar at the last stage; None if it is to be computed again.
        targets_BT: the next tokens, at the last stage only.
        share: weight of this micro-batch's mean in the step's loss.
    """

    arrived: torch.Tensor
    left: torch.Tensor | None
    targets_BT: torch.Tensor | None
    share: float


class StagePasses:
    """The passes of one stage.

    Args:
        most_kept: largest number of micro-batches between their passes.
        recomputes: whether forward passes are repeated at the backward pass instead of being kept.
        counts_some: whether only some targets count; the others are `NOT_COUNTED`.
        replica: computes the model's passes.
    """

    def __init__(
        self,
        model: StageDecoder,
        replica: Replica,
        *,
        most_kept: int,
        recomputes: bool = False,
        counts_some: bool = False,
    ) -> None:
        self._model, self._replica = model, replica
        self._marks = LossMarks(0) if counts_some else ALL_COUNT
        self._most_kept = most_kept
        self._recomputes = recomputes
        self._kept: dict[MicroBatch, Kept] = {}

    @property
    def kept(self) -> frozenset[MicroBatch]:
        """Micro-batches that have gone forward but not backward yet."""
        return frozenset(self._kept)

    def forward(
        self, batch: MicroBatch, arrived: torch.Tensor, *, targets_BT: torch.Tensor | None = None, share: float = 1.0
    ) -> torch.Tensor:
        """(B, T) or (B, T, D) to (B, T, D). At the last stage, with its targets, to the mean loss in nats per token. Detached.

        Raises:
            RemoteProtocolError: the input cannot be the previous stage's, or came twice. Nothing was computed.
            LocalProtocolError: more micro-batches than may be kept, or a last stage without targets.
        """
        self._require_work(batch, arrived, targets_BT)
        if batch in self._kept:
            raise RemoteProtocolError(f"micro-batch {batch.number} of step {batch.step} once more", "each once")
        if len(self._kept) >= self._most_kept:
            raise LocalProtocolError(f"{len(self._kept) + 1} micro-batches in flight", f"at most {self._most_kept}")
        if self._recomputes:
            with torch.no_grad():
                left = self._run(batch, arrived, targets_BT)
            self._kept[batch] = Kept(arrived, None, targets_BT, share)
        else:
            arrived = self._with_gradient(arrived)
            left = self._run(batch, arrived, targets_BT)
            self._kept[batch] = Kept(arrived, left, targets_BT, share)
        return left.detach()

    def measured(
        self, batch: MicroBatch, arrived: torch.Tensor, *, targets_BT: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Like `forward`, but keeps nothing. Raises as `forward` does for its input."""
        self._require_work(batch, arrived, targets_BT)
        with torch.no_grad():
            return self._run(batch, arrived, targets_BT)

    def trial_passes(self, shape: tuple[int, int], device: torch.device) -> Iterator[Callable[[], torch.Tensor]]:
        """Passes of the stage without anything of a lane, each with a scalar as its result: what a compiler sees later.

        Args:
            shape: (sequences, tokens) of a micro-batch.
        """
        model = self._model
        tokens_BT = torch.zeros(shape, dtype=torch.long, device=device)
        like = self._replica.parameters[0]
        arrived = (
            tokens_BT if model.is_first else torch.ones((*shape, model.config.dim), dtype=like.dtype, device=device)
        )

        def run() -> torch.Tensor:
            with self._replica.computing():
                given = self._with_gradient(arrived)
                return model.loss(given, tokens_BT, 0, self._marks) if model.is_last else model(given).float().sum()

        def measure() -> torch.Tensor:
            with torch.no_grad():
                run()
            return torch.zeros((), device=device, requires_grad=True)  # nothing of it is to go backward

        yield run
        yield measure

    def backward(self, batch: MicroBatch, grad_BTD: torch.Tensor | None = None) -> torch.Tensor | None:
        """Add the micro-batch's gradients to the parameters'. Returns the gradient of the input, (B, T, D), None at the first
        stage.

        Args:
            grad_BTD: gradient of the output; None at the last stage.

        Raises:
            RemoteProtocolError: the micro-batch is not kept here, or the gradient does not fit it. Nothing was computed.
        """
        kept = self._kept.get(batch)
        if kept is None:
            raise RemoteProtocolError(
                f"a gradient of micro-batch {batch.number}: {self._why_unknown(batch)}", "one kept here"
            )
        self._require_gradient(grad_BTD, kept.arrived)
        del self._kept[batch]
        arrived, left = kept.arrived, kept.left
        if left is None:
            arrived = self._with_gradient(arrived)
            left = self._run(batch, arrived, kept.targets_BT)
        if self._model.is_last:
            self._replica.backward(left * kept.share)
        else:
            self._replica.backward(left, grad_BTD)
        return None if arrived.grad is None else arrived.grad / self._replica.scale.factor

    def forget(self) -> None:
        """Discard every micro-batch and every summed gradient: the step was undone or is over."""
        self._kept.clear()
        self._replica.discard()

    def _run(self, batch: MicroBatch, arrived: torch.Tensor, targets_BT: torch.Tensor | None) -> torch.Tensor:
        with self._replica.computing():
            seed = batch.seed(self._model.stage)
            if targets_BT is not None:
                return self._model.loss(arrived, targets_BT, seed, self._marks)
            left: torch.Tensor = self._model(arrived, seed)
        # neighbours exchange activations and gradients in one type, whatever each of them computes in
        return left if left.dtype == torch.float64 else left.float()

    def _with_gradient(self, arrived: torch.Tensor) -> torch.Tensor:
        return arrived if self._model.is_first else arrived.detach().requires_grad_()

    def _require_work(self, batch: MicroBatch, arrived: torch.Tensor, targets_BT: torch.Tensor | None) -> None:
        self._model.require_input(arrived)
        if self._model.is_last != (targets_BT is not None):
            raise LocalProtocolError(
                f"micro-batch {batch.number} {'without' if targets_BT is None else 'with'} its next tokens",
                "them at the last stage alone",
            )

    def _require_gradient(self, grad_BTD: torch.Tensor | None, arrived: torch.Tensor) -> None:
        if self._model.is_last:
            if grad_BTD is not None:
                raise RemoteProtocolError("a gradient for the last stage", "none: it has the loss")
            return
        shape = (*arrived.shape[:2], self._model.stages.decoder.dim)
        if grad_BTD is None or tuple(grad_BTD.shape) != shape or not grad_BTD.dtype.is_floating_point:
            found = "none" if grad_BTD is None else f"one of shape {tuple(grad_BTD.shape)} in {grad_BTD.dtype}"
            raise RemoteProtocolError(f"for a gradient {found}", f"{shape} in a float type")
        if not bool(torch.isfinite(grad_BTD).all()):
            raise RemoteProtocolError("a gradient that is not finite", "finite values")

    def _why_unknown(self, batch: MicroBatch) -> str:
        likest = [kept for kept in self._kept if kept.number == batch.number]
        return batch.same_work(likest[0]) if likest else "it has not gone forward here, or has gone backward already"
