"""Counting the memory of one rank's step, in one process: the other ranks are pretended, so that what arrives from them is noise."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peer.models.decoder import Decoder
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.layout import Mesh
from peer.training.ranks.process_group import open_process_group
from peer.training.ranks.rank_group import RankGroup
from peer.training.ranks.ranked_replica import RankedReplica
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import ModelConfig, model_schema


class CountedCard(TorchDispatchMode):
    """In its block it counts all memory of tensors that torch makes, also where a tensor's memory is given back and taken again.

    Attributes:
        peak_bytes: the most there were since `forget_peak`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # a tensor over ranks claims memory of the whole; its parts come here next
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        are_new = [self._note(leaf.untyped_storage()) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(are_new):
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    @property
    def live_bytes(self) -> int:
        """Of the tensors that are alive now."""
        alive = (each() for each in self._alive.values())
        return sum(storage.nbytes() for storage in alive if storage is not None)

    def forget_peak(self) -> None:
        self.peak_bytes = self.live_bytes

    def _note(self, storage: torch.UntypedStorage) -> bool:
        """Whether it is a new one."""
        key = storage._cdata
        if key in self._alive:
            return False
        self._alive[key] = weakref.ref(storage)
        weakref.finalize(storage, self._alive.pop, key, None)
        return True


def counted_rank_bytes(model: ModelConfig, inner: InnerSection, micro_batch: int, plan: CardPlan, mesh: Mesh) -> int:
    """The most bytes at any moment of a later micro-batch of a later step, and of that step, on rank 0."""
    schema, device = model_schema(model), torch.device("cpu")
    with _pretended_ranks(mesh):
        replica = RankedReplica(partial(Decoder, model), schema, inner, plan, device, RankGroup(mesh, 0), Path())
        decoder = replica.model
        assert isinstance(decoder, Decoder)
        tokens_BT = torch.zeros((micro_batch, model.context_tokens + 1), dtype=torch.int64)
        inputs_BT, targets_BT = replica.cut(tokens_BT)
        summed = mock.patch("peer.training.ranks.ranked_replica.summed", lambda values, _device: [1.0] * len(values))
        with summed, CountedCard() as card:  # nothing arrives to add up
            for step in range(2):
                for is_last in (False, True):
                    if step and is_last:
                        card.forget_peak()
                    replica.begin_pass(is_last=is_last)
                    with replica.computing():
                        loss = decoder.loss(inputs_BT, targets_BT)
                    replica.backward(loss)
                    del loss
                replica.finish([torch.zeros(())], 1.0)
                replica.step(1e-3)
        return card.peak_bytes


@contextmanager
def _pretended_ranks(mesh: Mesh) -> Iterator[None]:
    """A process group that sends nothing, opened already."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.num_ranks)
    try:
        wires = open_process_group(RankGroup(mesh, 0), torch.device("cpu"), Path())
        with mock.patch("peer.training.ranks.ranked_replica.open_process_group", return_value=wires):
            yield
    finally:
        distributed.destroy_process_group()
