"""One process of `long_context`: a forward and a backward pass over its share of one sequence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch
import torch.distributed as distributed

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat
from peer.training.plan.layout import Mesh
from peer.training.ranks.split_sequences import split_sequences
from protocol.tensors.model_config import model_schema
from tests.peer.pretended_card import PretendedCard
from tests.peer.training.ranks.rank_processes import Found

CONTEXT_FILE: Final = "context"
"""Tokens of the context, as a number, in the folder of the ranks."""


def model_of(context_tokens: int) -> LlamaConfig:
    """A small model with such a context."""
    return LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=352, context_tokens=context_tokens)


def measured_pass(mesh: Mesh, rank: int, folder: Path) -> Found:
    """The gradients, and the bytes of activations. A work for `run_ranks`."""
    config = model_of(int((folder / CONTEXT_FILE).read_text()))
    model = Decoder(config)
    load_flat(model, model_schema(config), genesis_anchor(model_schema(config), 1) * 3)
    tokens_BT = torch.randint(257, (1, config.context_tokens + 1), generator=torch.Generator().manual_seed(3))
    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
    if mesh.context > 1:
        store = distributed.FileStore(str(folder / "store"), mesh.num_ranks)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=mesh.num_ranks)
        own = split_sequences(model, mesh, rank, distributed.new_group())
        inputs_BT, targets_BT = own.of(inputs_BT), own.of(targets_BT)
    kept = _Kept(model)
    with PretendedCard() as card:
        with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
            loss = model.loss(inputs_BT, targets_BT)
        torch.autograd.backward(loss)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for grad in gradients.values() if mesh.context > 1 else ():
        distributed.all_reduce(grad)
        grad /= mesh.num_ranks
    return {**gradients, "kept": torch.tensor(kept.num_bytes), "peak": torch.tensor(card.peak_bytes)}


class _Kept:
    """Bytes of what autograd saves, but for parameters and constants."""

    def __init__(self, model: Decoder) -> None:
        held = (*model.parameters(), *model.buffers())
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in held}
        self.num_bytes = 0

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.num_bytes += storage.nbytes()
        return tensor
