"""How tokens are drawn from a model's output: settings, checked before anything slow is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError

DEFAULT_TEMPERATURE: Final = 0.7
"""Low enough that small models write real words, high enough that they do not repeat one for ever."""

MAX_TOKENS: Final = 1 << 20
_MAX_TEMPERATURE: Final = 100.0
"""Above this all tokens are almost equally likely."""

_SEED_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling settings.

    Attributes:
        num_tokens: largest number of tokens.
        seed: of the random numbers; on one machine the same seed gives the same text.
        temperature: divides the logits. Lower is more predictable; 0 takes the likeliest token each time.
        top_k: draw only from this number of likeliest tokens, 0 for all.

    Raises:
        ConfigError: a number out of range.
    """

    num_tokens: int
    seed: int = 0
    temperature: float = DEFAULT_TEMPERATURE
    top_k: int = 0

    def __post_init__(self) -> None:
        remedy = "see: potluck generate --help"
        if not 1 <= self.num_tokens <= MAX_TOKENS:
            raise ConfigError(f"tokens is {self.num_tokens}", f"1 to {MAX_TOKENS}", remedy)
        # Written so that NaN is refused too.
        if not 0 <= self.temperature <= _MAX_TEMPERATURE:
            raise ConfigError(f"temperature is {self.temperature}", f"0 to {_MAX_TEMPERATURE:g}", remedy)
        if self.top_k < 0:
            raise ConfigError(f"top-k is {self.top_k}", "a whole number of at least 1, or 0 for all tokens", remedy)
        if not 0 <= self.seed < 1 << _SEED_BITS:
            raise ConfigError(f"seed is {self.seed}", f"0 to 2^{_SEED_BITS} - 1", remedy)
