"""A merged model in Hugging Face's GraniteMoeShared layout: names and shapes of tensors, and config.json.

The layout fits our model: a sparse mixture plus a feed-forward for all tokens, with softmax over the logits of the chosen experts.
Its multipliers are one, except the attention's, which is one over the square root of the head size. All experts of a layer share
one tensor, with gate rows followed by up rows. The names are those of published checkpoints, which transformers reads before and
after release 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from averaging.models.llama.config import LlamaConfig
from averaging.models.llama.layout import LAYOUT
from protocol.tensors.expert_schema import MixtureConfig

if TYPE_CHECKING:
    import torch

_FEED: Final = ("w_gate", "w_up", "w_down")


def granite_config(
    decoder: LlamaConfig, mixture: MixtureConfig, num_experts: int, end: int | None = None
) -> dict[str, object]:
    """Content of config.json for a float32 model with `num_experts` of its run's experts."""
    return {
        **LAYOUT.config_json(decoder, end),
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "model_type": "granitemoeshared",
        "intermediate_size": mixture.ffn_dim,
        "shared_intermediate_size": decoder.ffn_dim,
        "num_local_experts": num_experts,
        "num_experts_per_tok": mixture.top_k,
        "attention_multiplier": decoder.head_size**-0.5,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "output_router_logits": False,
    }


def granite_tensors(decoder: LlamaConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A merged model's tensors under their names in the layout.

    Args:
        tensors: named as in peer/models/mixture.py, routers included. The router's rows follow the order of the experts' numbers.
    """
    import torch

    made: dict[str, torch.Tensor] = {}
    for layer in range(decoder.num_layers):
        own, mixed = f"layers.{layer}", f"model.layers.{layer}.block_sparse_moe"
        experts = sorted({int(name.split(".")[3]) for name in tensors if name.startswith(f"{own}.experts.")})
        gate, up, down = (
            torch.stack([tensors[f"{own}.experts.{expert}.{part}.weight"] for expert in experts]) for part in _FEED
        )
        made[f"{mixed}.input_linear.weight"] = torch.cat([gate, up], dim=1)
        made[f"{mixed}.output_linear.weight"] = down
        made[f"{mixed}.router.layer.weight"] = tensors[f"{own}.router.weight"]
        shared = [tensors[f"{own}.{part}.weight"] for part in _FEED]
        made[f"model.layers.{layer}.shared_mlp.input_linear.weight"] = torch.cat(shared[:2])
        made[f"model.layers.{layer}.shared_mlp.output_linear.weight"] = shared[2]
    return made | {LAYOUT.name(name): tensor for name, tensor in tensors.items() if not _is_fed(name)}


def _is_fed(name: str) -> bool:
    """Whether the tensor belongs to a feed-forward, shared or an expert's, or to a router. Those have other names here than in
    Llama's layout.
    """
    words = name.split(".")
    return words[0] == "layers" and words[2] in (*_FEED, "experts", "router")
