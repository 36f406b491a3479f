"""A merged model in the layout that Hugging Face calls GraniteMoeShared: names and shapes of tensors, and config.json.

A sparse mixture beside a feed-forward that all tokens pass, and softmax over the logits of the experts that were chosen: ours. Its
multipliers are one, except for the attention's, which in our model is one over the root of a head's values. Experts of a layer lie in
one tensor, gate and up rows one after the other. The names are those of published checkpoints, which transformers reads before and
after its release 5.
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
    """What config.json says of a float32 model that holds so many of its run's experts."""
    return {
        **LAYOUT.config_json(decoder, end),
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "model_type": "granitemoeshared",
        "intermediate_size": mixture.ffn_dim,
        "shared_intermediate_size": decoder.ffn_dim,
        "num_local_experts": num_experts,
        "num_experts_per_tok": mixture.top_k,
        "attention_multiplier": decoder.head_dim**-0.5,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "output_router_logits": False,
    }


def granite_tensors(decoder: LlamaConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A merged model's tensors under their names in the layout.

    Args:
        tensors: by the names of peer/models/mixture.py, routers included; experts in the order of their numbers are the router's rows.
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
        made[f"{mixed}.router.layer.weight"] = tensors[f"{own}.router.weight"].clone()
        shared = [tensors[f"{own}.{part}.weight"] for part in _FEED]
        made[f"model.layers.{layer}.shared_mlp.input_linear.weight"] = torch.cat(shared[:2])
        made[f"model.layers.{layer}.shared_mlp.output_linear.weight"] = shared[2].clone()
    return made | {LAYOUT.name(name): tensor.clone() for name, tensor in tensors.items() if not _is_fed(name)}


def _is_fed(name: str) -> bool:
    """Of a feed-forward, shared or an expert's, or of a router: elsewhere in this layout than in Llama's."""
    words = name.split(".")
    return words[0] == "layers" and words[2] in (*_FEED, "experts", "router")
