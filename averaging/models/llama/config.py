"""The Llama decoder's numbers and the tensors that follow from them, without any tensor library.

Root-mean-square norms, rotary positions, SwiGLU, grouped-query attention (Llama 2, 2307.09288, section 2.2). A run sets the
numbers; the code is part of each peer's installation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.errors import LocalProtocolError
from protocol.tensors.model_config import EMBEDDING, LayerActivations, ModelConfig, NumLayers, Size
from protocol.tensors.tensor_schema import TensorSpec

_LINEARS: Final = {
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "gate_proj": "w_gate",
    "up_proj": "w_up",
    "down_proj": "w_down",
}


class LlamaConfig(BaseModel):
    """Sizes of a decoder-only language model. `vocab_size` 257 is bytes and an end mark."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    vocab_size: Size = 257
    """Number of token values. 257 is bytes and an end mark; with another tokenizer, its size."""

    dim: Size
    """Width of the model: values of a token between layers. A multiple of `num_heads`, an even number for each."""

    num_layers: NumLayers
    """Number of layers."""

    num_heads: Annotated[int, Field(ge=1, le=1024)]
    """Number of attention heads."""

    num_kv_heads: Annotated[int, Field(ge=1, le=1024)]
    """Number of key and value heads, which divides `num_heads`. Fewer of them take less memory when text is generated."""

    ffn_dim: Size
    """Inner width of the feed-forward of each layer."""

    context_tokens: Size
    """Tokens of a training sequence. Longer ones let the model look further back and take more memory."""

    rope_theta: Annotated[float, Field(gt=1.0, le=1e9)] = 10000.0
    """Base of the rotary positions. Raise it for long contexts."""

    norm_eps: Annotated[float, Field(gt=0.0, le=1e-2)] = 1e-5
    """A small number added before norms divide, against division by zero."""

    is_tied: bool = True
    """Whether embedding and output share one matrix. Runs of stages need false, since the two are in different stages."""

    family: Literal["llama"] = Field(default="llama", exclude=True)
    """The model family, a folder of `averaging/models`. The default is never written into a manifest."""

    @model_validator(mode="after")
    def _check_sizes(self) -> LlamaConfig:
        if self.dim % self.num_heads or self.head_dim % 2:
            raise ValueError(f"dim {self.dim} over {self.num_heads} heads: expected an even number of values per head")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads over {self.num_kv_heads} key-value heads: expected a whole ratio")
        return self

    @property
    def head_dim(self) -> int:
        """Values of one attention head."""
        return self.dim // self.num_heads

    @property
    def attention_dim(self) -> int:
        """Values of all query heads of a token in one layer."""
        return self.num_heads * self.head_dim

    @property
    def layer_kept_values(self) -> int:
        """Values per token that one layer keeps for its backward pass. These are the inputs of norms and projections, the rotated
        queries, keys and values in all heads, the attention's output, one number per norm and per head, and four times the
        feed-forward's inner width.
        """
        return 10 * self.dim + 4 * self.ffn_dim + self.num_heads + 2

    @property
    def layer_activations(self) -> LayerActivations:
        """Kept are the inputs of both norms, the normed values, rotated queries, keys and values, the attention's output, and in the
        feed-forward gate, its silu, the other factor and their product. Six of these are results of products.
        """
        dim, kv_dim, ffn = self.dim, self.num_kv_heads * self.head_dim, self.ffn_dim
        return LayerActivations(
            kept=6 * dim + 2 * kv_dim + 4 * ffn,
            products=4 * dim + 2 * kv_dim + 2 * ffn,
            compiled=5 * dim + 2 * kv_dim + 2 * ffn,
            sums=self.num_heads + 2,
            widest=ffn,
            num_norms=2,
            split=2 * dim + 2 * kv_dim + 4 * ffn,
            split_products=2 * dim + 2 * kv_dim + 2 * ffn,
            keys=2 * kv_dim,
        )

    @property
    def takes_experts(self) -> bool:
        """Always true: an expert is one more SwiGLU (peer/models/mixture.py)."""
        return True

    @property
    def linears(self) -> Mapping[str, str]:
        """Those of attention and feed-forward."""
        return _LINEARS

    @property
    def split_counts(self) -> dict[str, int]:
        """Heads, key-value heads, and inner values of the feed-forward."""
        return {"heads": self.num_heads, "key-value heads": self.num_kv_heads, "inner values": self.ffn_dim}

    @property
    def shares_contexts(self) -> bool:
        """Always true: positions are rotations."""
        return True

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Names and shapes in the order of the flat vector."""
        dim, kv_dim = self.dim, self.num_kv_heads * self.head_dim
        specs = [TensorSpec(EMBEDDING, (self.vocab_size, dim))]
        for layer in range(self.num_layers):
            name = f"layers.{layer}"
            specs += [
                TensorSpec(f"{name}.attn_norm.weight", (dim,), "ones"),
                TensorSpec(f"{name}.wq.weight", (dim, dim)),
                TensorSpec(f"{name}.wk.weight", (kv_dim, dim)),
                TensorSpec(f"{name}.wv.weight", (kv_dim, dim)),
                TensorSpec(f"{name}.wo.weight", (dim, dim), "residual"),
                TensorSpec(f"{name}.ffn_norm.weight", (dim,), "ones"),
                TensorSpec(f"{name}.w_gate.weight", (self.ffn_dim, dim)),
                TensorSpec(f"{name}.w_up.weight", (self.ffn_dim, dim)),
                TensorSpec(f"{name}.w_down.weight", (dim, self.ffn_dim), "residual"),
            ]
        specs.append(TensorSpec("norm.weight", (dim,), "ones"))
        if not self.is_tied:
            specs.append(TensorSpec("head.weight", (self.vocab_size, dim)))
        return tuple(specs)


CONFIG: Final = LlamaConfig


def require_llama(config: ModelConfig) -> LlamaConfig:
    """The config as LlamaConfig, for experts, which only this family supports.

    Raises:
        LocalProtocolError: a model of another family.
    """
    if not isinstance(config, LlamaConfig):
        raise LocalProtocolError(f"a model of family {config.family}", "one of family llama, which alone takes experts")
    return config
