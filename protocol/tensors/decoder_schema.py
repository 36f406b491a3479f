"""The bundled decoder's numbers and the tensors that follow from them, without any tensor library.

Root-mean-square norms, rotary positions, SwiGLU, grouped-query attention (Llama 2, 2307.09288, section 2.2). A run sets numbers;
the code is what each peer has installed.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.ids import UnitName
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

WHOLE_MODEL: Final = UnitName("fragment-0")
"""The one unit of a run that averages the whole model at once."""

Size = Annotated[int, Field(ge=1, le=1 << 20)]


class DecoderConfig(BaseModel):
    """Sizes of a decoder-only language model. `vocab_size` 257 is bytes and an end mark."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    vocab_size: Size = 257
    dim: Size
    num_layers: Annotated[int, Field(ge=1, le=512)]
    num_heads: Annotated[int, Field(ge=1, le=1024)]
    num_kv_heads: Annotated[int, Field(ge=1, le=1024)]
    ffn_dim: Size
    context_tokens: Size
    rope_theta: Annotated[float, Field(gt=1.0, le=1e9)] = 10000.0
    norm_eps: Annotated[float, Field(gt=0.0, le=1e-2)] = 1e-5
    is_tied: bool = True

    @model_validator(mode="after")
    def _check_sizes(self) -> DecoderConfig:
        if self.dim % self.num_heads or self.head_dim % 2:
            raise ValueError(f"dim {self.dim} over {self.num_heads} heads: expected an even number of values per head")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads over {self.num_kv_heads} key-value heads: expected a whole ratio")
        return self

    @property
    def head_dim(self) -> int:
        """Values of one attention head."""
        return self.dim // self.num_heads


def decoder_schema(config: DecoderConfig, unit: UnitName = WHOLE_MODEL) -> TensorSchema:
    """Names and shapes of the decoder's tensors in the order of the unit's flat vector."""
    dim, kv_dim = config.dim, config.num_kv_heads * config.head_dim
    specs = [TensorSpec("embed.weight", (config.vocab_size, dim))]
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        specs += [
            TensorSpec(f"{name}.attn_norm.weight", (dim,)),
            TensorSpec(f"{name}.wq.weight", (dim, dim)),
            TensorSpec(f"{name}.wk.weight", (kv_dim, dim)),
            TensorSpec(f"{name}.wv.weight", (kv_dim, dim)),
            TensorSpec(f"{name}.wo.weight", (dim, dim)),
            TensorSpec(f"{name}.ffn_norm.weight", (dim,)),
            TensorSpec(f"{name}.w_gate.weight", (config.ffn_dim, dim)),
            TensorSpec(f"{name}.w_up.weight", (config.ffn_dim, dim)),
            TensorSpec(f"{name}.w_down.weight", (dim, config.ffn_dim)),
        ]
    specs.append(TensorSpec("norm.weight", (dim,)))
    if not config.is_tied:
        specs.append(TensorSpec("head.weight", (config.vocab_size, dim)))
    return TensorSchema(unit, tuple(specs))
