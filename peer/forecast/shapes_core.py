"""Models of a given size, and the run that a plan takes for one. Pure.

A shape is a Llama: heads of 64 values below a width of 2048 and of 128 from there on, a key-value head for four of them, a
feed-forward of 2.75 times the width. Among the shapes near a size the one is taken whose width for each layer is nearest to 85, as
published models of that size have it. The loss hardly depends on it (Kaplan et al. 2020, arXiv 2001.08361, figure 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import log
from typing import Final

from pydantic import ValidationError

from protocol.errors import ConfigError
from protocol.run.manifest import RunConfig
from protocol.run.validation_text import explained

LEAST_VALUES: Final = 100_000
MOST_VALUES: Final = 1_000_000_000_000
MOST_TOKENS: Final = 1 << 53
MOST_PEERS: Final = 100_000
"""Of a run (protocol/run/manifest.py)."""

_WIDTHS: Final = (*range(64, 512, 64), *range(512, 2048, 256), *range(2048, 24_577, 512))
"""From the first one on that takes heads by fours, all do."""

_WIDE: Final = 2048
_HEADS_PER_KEY: Final = 4
_FFN_STEP: Final = 64
_FFN_FACTOR: Final = 2.75
_LAYER_WIDTH: Final = 85.0
_MOST_LAYERS: Final = 512
_TIED_BELOW: Final = 1_000_000_000
_SIZE_WEIGHT: Final = 20.0
"""How much more a size that is missed weighs than a shape that is unusual."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that no size tells, and the schedule of the rounds.

    Attributes:
        local_steps: of each member in a round, where the links allow it.
        batch_tokens: of a local step, a multiple of `context_tokens`.
        codec: of contributions and results.
        members: of a round.
    """

    vocab_size: int = 32_768
    context_tokens: int = 1024
    local_steps: int = 30
    batch_tokens: int = 32_768
    codec: str = "int8"
    members: int = 1


def numbers_of(run: RunConfig, usual: Numbers) -> Numbers:
    """The numbers of a given run, for models of other sizes in its place. `usual`: the local steps of a round, which no run.toml
    names.
    """
    return replace(
        usual,
        vocab_size=run.model.vocab_size,
        context_tokens=run.model.context_tokens,
        batch_tokens=run.inner.batch_tokens,
        codec=run.round.codec,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama."""

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_dim: int
    is_tied: bool

    def num_values(self, vocab_size: int) -> int:
        """Values of all its tensors."""
        keys = self.dim * self.num_kv_heads // self.num_heads
        layer = 2 * self.dim * (self.dim + keys) + 3 * self.dim * self.ffn_dim + 2 * self.dim
        return self.num_layers * layer + self.dim + vocab_size * self.dim * (1 if self.is_tied else 2)


@cache
def shape_of(num_values: int, vocab_size: int) -> Shape:
    """The shape nearest to this size.

    Raises:
        ConfigError: a size out of range, or one that the vocabulary's embedding fills alone.
    """
    if not LEAST_VALUES <= num_values <= MOST_VALUES:
        raise ConfigError(f"a model of {num_values:,} values", f"{LEAST_VALUES:,} to {MOST_VALUES:,}")
    found = min(_shapes(num_values, vocab_size), key=lambda pair: pair[0], default=None)
    if found is None:
        raise ConfigError(
            f"a model of {num_values:,} values with a vocabulary of {vocab_size:,}",
            "more values than the smallest embedding has",
            "give a smaller --vocab, such as 257 for bytes",
        )
    return found[1]


def ladder(first: int = 1_000_000, last: int = 100_000_000_000) -> tuple[int, ...]:
    """Sizes from `first` to `last` values, ten in each power of ten."""
    sizes, size = [], float(first)
    while size <= last * 1.001:
        sizes.append(round(size))
        size *= 10.0**0.1
    return tuple(sizes)


def run_of(shape: Shape, tokens: int, numbers: Numbers) -> RunConfig:
    """A run of this shape over so many tokens.

    Raises:
        ConfigError: numbers that no run.toml may have.
    """
    if numbers.local_steps < 1:
        raise ConfigError(f"{numbers.local_steps} local steps of a round", "one or more")
    target = max(1, numbers.local_steps * numbers.batch_tokens * numbers.members)
    values = {
        "run": {
            "name": "plan",
            "total_tokens": max(1, min(tokens, MOST_TOKENS)),
            "min_members": 1,
            "max_members": max(1, min(numbers.members, 64)),
            "max_peers": max(1, min(numbers.members, MOST_PEERS)),
        },
        "model": {
            "vocab_size": numbers.vocab_size,
            "dim": shape.dim,
            "num_layers": shape.num_layers,
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "ffn_dim": shape.ffn_dim,
            "context_tokens": numbers.context_tokens,
            "is_tied": shape.is_tied,
        },
        "inner": {"learning_rate": 0.001, "batch_tokens": numbers.batch_tokens, "optimizer": "muon", "moments": "int8"},
        "round": {"target_tokens": target, "longest_interval_s": 86_400.0, "codec": numbers.codec},
    }
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*explained("the planned run", error)) from error


def shape_from(dim: int, num_layers: int, *, is_tied: bool) -> Shape:
    """The shape of this width and depth. `run_of` refuses widths and depths that no run.toml may have."""
    heads = max(1, dim // (64 if dim < _WIDE or dim % 128 else 128))
    keys = heads // _HEADS_PER_KEY if heads % _HEADS_PER_KEY == 0 else heads
    ffn = max(_FFN_STEP, round(_FFN_FACTOR * dim / _FFN_STEP) * _FFN_STEP)
    return Shape(dim, num_layers, heads, keys, ffn, is_tied)


def _shapes(num_values: int, vocab_size: int) -> Iterator[tuple[float, Shape]]:
    """Shapes with how far they are from the wished size and from the usual form. Widths stop where an embedding is too large."""
    is_tied = num_values < _TIED_BELOW
    for dim in _WIDTHS:
        outside = vocab_size * dim * (1 if is_tied else 2)
        if outside >= num_values:
            return
        one = shape_from(dim, 1, is_tied=is_tied)
        each = one.num_values(vocab_size) - outside - dim
        layers = max(1, min(_MOST_LAYERS, round((num_values - outside) / each)))
        shape = shape_from(dim, layers, is_tied=is_tied)
        missed = log(shape.num_values(vocab_size) / num_values)
        unusual = log(dim / layers / _LAYER_WIDTH)
        yield _SIZE_WEIGHT * missed**2 + unusual**2, shape
