"""Split replicas beside one process: the largest error of any gradient."""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.family import call_layer
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, Spine, load_flat, parameters_in_order
from peer.models.mixture import MixtureDecoder
from peer.training.plan.card_plan import Checkpointing
from peer.training.plan.layout import Mesh
from peer.training.plan.split_core import reader_of
from peer.training.ranks.split_layers import split_layers
from peer.training.ranks.split_sequences import split_sequences
from peer.training.replica.checkpointing import checkpointed
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.model_families import FAMILIES, parse_model
from protocol.tensors.tensor_schema import TensorSchema
from tests.peer.training.ranks.rank_processes import run_ranks

MODEL: Final = LlamaConfig(
    vocab_size=257, dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=44, context_tokens=48
)
OTHERS: Final[dict[str, dict[str, object]]] = {"qwen3": {"head_dim": 10}, "mistral": {"window_tokens": 48}}
"""More numbers of other families."""

MIXTURE: Final = MixtureConfig(num_experts=3, ffn_dim=12)
SEQUENCES: Final = 4
TIMEOUT: Final = timedelta(seconds=60)


def made(kind: str) -> tuple[Spine, TensorSchema]:
    """A model of one kind, always with the same parameters."""
    config: ModelConfig = MODEL.model_copy(update={"is_tied": kind != "untied"})
    if kind in FAMILIES:
        config = parse_model({**config.model_dump(), **OTHERS.get(kind, {}), "family": kind})
    model: Spine
    if kind == "expert":
        model, schema = MixtureDecoder(MODEL, MIXTURE, (0, 1)), held_units(config, MIXTURE, (0, 1)).whole
    else:
        model, schema = Decoder(config), model_schema(config)
    # norms of queries and keys that are three times as large would make float32 inexact
    load_flat(model, schema, genesis_anchor(schema, 1) * (1 if kind in FAMILIES else 3))
    return model, schema


def tokens() -> torch.Tensor:
    """(B, T + 1)."""
    shape = (SEQUENCES, MODEL.context_tokens + 1)
    return torch.randint(MODEL.vocab_size, shape, generator=torch.Generator().manual_seed(3))


def loss_of(model: Spine, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """The mean over these tokens."""
    if isinstance(model, MixtureDecoder):
        return model.loss(inputs_BT, targets_BT, 1)
    assert isinstance(model, Decoder)
    return model.loss(inputs_BT, targets_BT)


@functools.cache
def wanted(kind: str) -> list[torch.Tensor]:
    """The gradients of one process."""
    model, schema = made(kind)
    tokens_BT = tokens()
    torch.autograd.backward(loss_of(model, tokens_BT[:, :-1], tokens_BT[:, 1:]))
    return [_value(parameter.grad, parameter) for parameter in parameters_in_order(model, schema)]


def found(kind: str, mesh: Mesh, rank: int, kept: Checkpointing, *, is_sharded: bool) -> list[torch.Tensor]:
    """The same of a split replica: the means over all readers and contexts, whole.

    Args:
        is_sharded: its rows lie on the ranks by torch's fully_shard.
    """
    ranks = init_device_mesh("cpu", (mesh.readers, mesh.context, mesh.tensor), mesh_dim_names=("r", "c", "t"))
    rows = ranks["r", "c"]._flatten("shard")
    model, schema = made(kind)
    names = [name for name, _ in model.named_parameters()]
    model.call = checkpointed(kept, call_layer)
    tokens_BT = tokens().chunk(mesh.readers)[reader_of(mesh, rank)]
    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
    if mesh.tensor > 1:
        split_layers(model, ranks["t"])
    if is_sharded:
        for layer in model.layers_in_order():
            fully_shard(layer, mesh=rows)
        fully_shard(model, mesh=rows)
        register_fsdp_forward_method(model, "loss")
    if mesh.context > 1:
        own = split_sequences(model, mesh, rank, ranks["c"].get_group())
        inputs_BT, targets_BT = own.of(inputs_BT), own.of(targets_BT)
    torch.autograd.backward(loss_of(model, inputs_BT, targets_BT))
    assert [name for name, _ in model.named_parameters()] == names
    named = dict(model.named_parameters())
    return [_mean(_value(named[spec.name].grad, named[spec.name]), rows, is_sharded) for spec in schema.tensors]


def _mean(grad: torch.Tensor, rows: DeviceMesh, is_sharded: bool) -> torch.Tensor:
    whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
    if not is_sharded:  # fully_shard has taken the mean already
        distributed.all_reduce(whole, group=rows.get_group())
        whole /= rows.size()
    return whole


def _value(grad: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if grad is None else grad


def largest_error(case: str, rank: int) -> torch.Tensor:
    """Of one case, as "untied shard=2 context=2 rows full"."""
    kind, *words = case.split()
    numbers = dict(word.split("=") for word in words if "=" in word)
    mesh = Mesh.model_validate({name: int(number) for name, number in numbers.items()})
    kept: Checkpointing = next((word for word in ("full", "selective") if word in words), "none")  # type: ignore[assignment]
    gradients = found(kind, mesh, rank, kept, is_sharded="rows" in words)
    return torch.stack([(one - other).abs().max() for one, other in zip(gradients, wanted(kind), strict=True)]).max()


def check_cases(mesh: Mesh, rank: int, folder: Path) -> dict[str, torch.Tensor]:
    """The largest error of any gradient in each case of the folder's list. A work for `run_ranks`."""
    store = distributed.FileStore(str(folder / "store"), mesh.num_ranks)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=mesh.num_ranks, timeout=TIMEOUT)
    return {case: largest_error(case, rank) for case in (folder / "cases").read_text().splitlines()}


def errors_of(folder: Path, num_ranks: int, *cases: str) -> list[float]:
    """The largest error of any gradient on any rank, by case."""
    (folder / "cases").write_text("\n".join(cases))
    ranks = run_ranks(Mesh(shard=num_ranks), check_cases, folder)
    return [max(float(errors[case]) for errors in ranks) for case in cases]
