"""The decoder's numbers and the tensors that follow from them, without any tensor library; and those of a Llama.

Root-mean-square norms, rotary positions, SwiGLU, grouped-query attention (Llama 2, 2307.09288, section 2.2). Other families are the
same decoder with some switches set: they inherit `DecoderConfig`. A run sets the numbers; the code is part of each peer's
installation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

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

QkNorm = Literal["none", "head", "projection"]
"""Norm of queries and keys before their rotation: none, of each head by itself, or of all heads of a token together."""

_FIRST_KEYS: Final = frozenset(
    (
        *("vocab_size", "dim", "num_layers", "num_heads", "num_kv_heads", "ffn_dim", "context_tokens"),
        *("rope_theta", "norm_eps", "is_tied", "family"),
    )
)
"""Keys that every manifest has. Others are written only where they are used, so the ids of older runs stay."""

_SCALED: Final = ("rope_factor", "rope_original_tokens")
_ROPE_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "none": (),
    "linear": _SCALED[:1],
    "llama3": (*_SCALED, "rope_low_freq_factor", "rope_high_freq_factor"),
    "yarn": (*_SCALED, "rope_beta_fast", "rope_beta_slow", "rope_attention_factor"),
}
"""Keys that belong to each kind of scaling."""


class DecoderConfig(BaseModel):
    """Sizes of a decoder-only language model. A family sets the switches, which are no keys of its section."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    qk_norm: ClassVar[QkNorm] = "none"
    has_qkv_biases: ClassVar[bool] = False
    norms_results: ClassVar[bool] = False
    """Whether norms stand after attention and feed-forward, on what they add to the stream, and not before them."""

    vocab_size: Size = 257
    """Number of token values. 257 is bytes and an end mark; with another tokenizer, its size."""

    dim: Size
    """Width of the model: values of a token between layers. A multiple of `num_heads`, an even number for each. Families other than
    llama take any number if `head_dim` is given.
    """

    num_layers: NumLayers
    """Number of layers."""

    num_heads: Annotated[int, Field(ge=1, le=1024)]
    """Number of attention heads."""

    num_kv_heads: Annotated[int, Field(ge=1, le=1024)]
    """Number of key and value heads, which divides `num_heads`. Fewer of them take less memory when text is generated."""

    head_dim: Annotated[int, Field(ge=2, le=4096)] | None = None
    """Values of one attention head, an even number. `dim` over `num_heads` if not given."""

    ffn_dim: Size
    """Inner width of the feed-forward of each layer."""

    context_tokens: Size
    """Tokens of a training sequence. Longer ones let the model look further back and take more memory."""

    max_position_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    """Longest text that the exported model says it reads. `context_tokens` if not given."""

    rope_theta: Annotated[float, Field(gt=1.0, le=1e9)] = 10000.0
    """Base of the rotary positions. Raise it for long contexts."""

    rope_scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """How the rotary positions are stretched: all alike, slow ones only as Llama 3.1 does, or as YaRN does."""

    rope_factor: Annotated[float, Field(ge=1.0, le=1e6)] = 1.0
    """By how much `rope_scaling` stretches positions."""

    rope_original_tokens: Size | None = None
    """Context before it was stretched; "llama3" and "yarn" need it."""

    rope_low_freq_factor: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Of "llama3": rotations that turn less often than this in the original context are stretched by the whole factor."""

    rope_high_freq_factor: Annotated[float, Field(gt=0.0, le=1e6)] = 4.0
    """Of "llama3": rotations that turn more often than this in the original context are not stretched."""

    rope_beta_fast: Annotated[float, Field(gt=0.0, le=1e6)] = 32.0
    """Of "yarn": rotations that turn more often than this in the original context are not stretched."""

    rope_beta_slow: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Of "yarn": rotations that turn less often than this in the original context are stretched by the whole factor."""

    rope_attention_factor: Annotated[float, Field(gt=0.0, le=1e3)] | None = None
    """Of "yarn": factor of rotated queries and keys. 0.1 times the logarithm of `rope_factor`, plus 1, if not given."""

    norm_eps: Annotated[float, Field(gt=0.0, le=1e-2)] = 1e-5
    """A small number added before norms divide, against division by zero."""

    is_tied: bool = True
    """Whether embedding and output share one matrix. Runs of stages need false, since the two are in different stages."""

    family: str
    """The model family, a folder of `averaging/models`."""

    @model_validator(mode="after")
    def _check_sizes(self) -> DecoderConfig:
        if self.head_dim is None and self.dim % self.num_heads:
            raise ValueError(f"dim {self.dim} over {self.num_heads} heads: expected a whole ratio, or head_dim")
        if self.head_size % 2:
            raise ValueError(f"{self.head_size} values per head: expected an even number")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads over {self.num_kv_heads} key-value heads: expected a whole ratio")
        return self

    @model_validator(mode="after")
    def _check_rope(self) -> DecoderConfig:
        own = _ROPE_KEYS[self.rope_scaling]
        for key in dict.fromkeys(key for keys in _ROPE_KEYS.values() for key in keys):
            if key not in own and getattr(self, key) != DecoderConfig.model_fields[key].default:
                raise ValueError(f'{key} does not belong to rope_scaling = "{self.rope_scaling}"')
        if "rope_original_tokens" in own and self.rope_original_tokens is None:
            raise ValueError(f'rope_scaling = "{self.rope_scaling}" needs rope_original_tokens')
        if self.rope_low_freq_factor >= self.rope_high_freq_factor:
            raise ValueError(
                f"rope_low_freq_factor {self.rope_low_freq_factor}: expected less than rope_high_freq_factor"
            )
        if self.rope_beta_slow >= self.rope_beta_fast:
            raise ValueError(f"rope_beta_slow {self.rope_beta_slow}: expected less than rope_beta_fast")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        values: dict[str, object] = handler(self)
        fields = type(self).model_fields
        return {key: value for key, value in values.items() if key in _FIRST_KEYS or value != fields[key].default}

    @property
    def position_tokens(self) -> int:
        """Tokens of the longest text that the exported model says it reads."""
        return self.max_position_tokens or self.context_tokens

    @property
    def head_size(self) -> int:
        """Values of one attention head, whether given or not."""
        return self.head_dim or self.dim // self.num_heads

    @property
    def kv_dim(self) -> int:
        """Values of all keys of a token in one layer; of all values likewise."""
        return self.num_kv_heads * self.head_size

    @property
    def window(self) -> int | None:
        """Tokens that attention looks back to, the own one included; None for all."""
        return None

    @property
    def attention_dim(self) -> int:
        """Values of all query heads of a token in one layer."""
        return self.num_heads * self.head_size

    @property
    def attended_tokens(self) -> int:
        """Tokens that each token's attention multiplies with, as work is counted: all of the context, although half of it is hidden by
        causality; with a window twice what it sees on average.
        """
        tokens, window = self.context_tokens, self.window
        return tokens if window is None or window >= tokens else 2 * window - window * window // tokens

    @property
    def layer_kept_values(self) -> int:
        """Values per token that one layer keeps for its backward pass. These are the inputs of norms and projections, the rotated
        queries, keys and values in all heads, the attention's output, one number per norm and per head, and four times the
        feed-forward's inner width. Norms of queries and keys keep their inputs and results.
        """
        more = self._more_kept + self._qk_normed
        return 6 * self.dim + 4 * self.attention_dim + 4 * self.ffn_dim + self.layer_activations.sums + more

    @property
    def layer_activations(self) -> LayerActivations:
        """Kept are the inputs of both norms, the normed values, rotated queries, keys and values, the attention's output, and in the
        feed-forward gate, its silu, the other factor and their product. Six of these are results of products. Norms of queries and
        keys keep their inputs too, and attention in a window its parts.
        """
        dim, heads, kv_dim, ffn, more = self.dim, self.attention_dim, self.kv_dim, self.ffn_dim, self._more_kept
        return LayerActivations(
            kept=4 * dim + 2 * heads + 2 * kv_dim + 4 * ffn + more,
            products=2 * dim + 2 * heads + 2 * kv_dim + 2 * ffn,
            compiled=3 * dim + 2 * heads + 2 * kv_dim + 2 * ffn + more,
            sums=self.num_heads + 2 + self._num_qk_norms,
            widest=max(ffn, heads),
            normed=2 * dim + self._qk_normed,
            split=2 * heads + 2 * kv_dim + 4 * ffn + more,
            split_products=2 * heads + 2 * kv_dim + 2 * ffn,
            keys=2 * kv_dim,
        )

    @property
    def _num_qk_norms(self) -> int:
        """Norms of queries and keys of one token."""
        return {"none": 0, "head": self.num_heads + self.num_kv_heads, "projection": 2}[self.qk_norm]

    @property
    def _more_kept(self) -> int:
        """Values per token that a layer keeps because of its switches."""
        is_windowed = self.window is not None and self.window < self.context_tokens
        return self._qk_normed + (self.attention_dim if is_windowed else 0)

    @property
    def _qk_normed(self) -> int:
        """Values per token that norms of queries and keys take."""
        return 0 if self.qk_norm == "none" else self.attention_dim + self.kv_dim

    @property
    def takes_experts(self) -> bool:
        """Only the plain decoder: a merged model has a layout with no other."""
        return False

    @property
    def linears(self) -> Mapping[str, str]:
        """Those of attention and feed-forward."""
        return _LINEARS

    @property
    def split_counts(self) -> dict[str, int]:
        """Heads, key-value heads, and inner values of the feed-forward. None where a norm needs all heads of a token."""
        if self.qk_norm == "projection":
            return {}
        return {"heads": self.num_heads, "key-value heads": self.num_kv_heads, "inner values": self.ffn_dim}

    @property
    def shares_contexts(self) -> bool:
        """True where attention looks back without bound: positions are rotations."""
        return self.window is None or self.window >= self.context_tokens

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Names and shapes in the order of the flat vector."""
        specs = [TensorSpec(EMBEDDING, (self.vocab_size, self.dim))]
        for layer in range(self.num_layers):
            specs += self._layer_tensors(f"layers.{layer}")
        specs.append(TensorSpec("norm.weight", (self.dim,), "ones"))
        if not self.is_tied:
            specs.append(TensorSpec("head.weight", (self.vocab_size, self.dim)))
        return tuple(specs)

    def _layer_tensors(self, name: str) -> list[TensorSpec]:
        dim, projected = self.dim, (("wq", self.attention_dim), ("wk", self.kv_dim), ("wv", self.kv_dim))
        specs = [TensorSpec(f"{name}.attn_norm.weight", (dim,), "ones")]
        specs += [TensorSpec(f"{name}.{part}.weight", (size, dim)) for part, size in projected]
        if self.has_qkv_biases:
            specs += [TensorSpec(f"{name}.{part}.bias", (size,), "zeros") for part, size in projected]
        if self.qk_norm != "none":
            sizes = {"head": (self.head_size, self.head_size), "projection": (self.attention_dim, self.kv_dim)}
            normed = zip(("q_norm", "k_norm"), sizes[self.qk_norm], strict=True)
            specs += [TensorSpec(f"{name}.{part}.weight", (size,), "ones") for part, size in normed]
        return [
            *specs,
            TensorSpec(f"{name}.wo.weight", (dim, self.attention_dim), "residual"),
            TensorSpec(f"{name}.ffn_norm.weight", (dim,), "ones"),
            TensorSpec(f"{name}.w_gate.weight", (self.ffn_dim, dim)),
            TensorSpec(f"{name}.w_up.weight", (self.ffn_dim, dim)),
            TensorSpec(f"{name}.w_down.weight", (dim, self.ffn_dim), "residual"),
        ]


class LlamaConfig(DecoderConfig):
    """Sizes of a decoder-only language model: Llama, SmolLM, and Mistral without a sliding window."""

    family: Literal["llama"] = Field(default="llama", exclude=True)
    """The model family, a folder of `averaging/models`. The default is never written into a manifest."""

    @model_validator(mode="after")
    def _check_dim(self) -> LlamaConfig:
        if self.dim % self.num_heads:
            raise ValueError(f"dim {self.dim} over {self.num_heads} heads: expected a whole ratio, even with head_dim")
        return self

    @property
    def takes_experts(self) -> bool:
        """Always true: an expert is one more SwiGLU (peer/models/mixture.py)."""
        return True


CONFIG: Final = LlamaConfig


def require_llama(config: ModelConfig) -> LlamaConfig:
    """The config as LlamaConfig, for experts, which only this family supports.

    Raises:
        LocalProtocolError: a model of another family.
    """
    if not isinstance(config, LlamaConfig):
        raise LocalProtocolError(f"a model of family {config.family}", "one of family llama, which alone takes experts")
    return config
