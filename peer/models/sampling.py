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

MAX_THREADS: Final = 1024
_PARAMETERS_A_THREAD: Final = 8_000_000
"""A thread with less of a model to multiply waits for the others for longer than it works."""


def threads_for(num_parameters: int, num_cores: int) -> int:
    """Threads with which a model of this size is sampled fast. They do not depend on what else runs: a sum over another number of
    threads is rounded otherwise, and the same seed should give the same text.
    """
    return max(1, min(num_cores, num_parameters // _PARAMETERS_A_THREAD))


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling settings.

    Attributes:
        num_tokens: largest number of tokens.
        seed: of the random numbers; on one machine the same seed gives the same text.
        temperature: divides the logits. Lower is more predictable; 0 takes the likeliest token each time.
        top_k: draw only from this number of likeliest tokens, 0 for all.
        threads: of the CPU, 0 for as many as suit the size of the model.

    Raises:
        ConfigError: a number out of range.
    """

    num_tokens: int
    seed: int = 0
    temperature: float = DEFAULT_TEMPERATURE
    top_k: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        remedy = "see: potluck generate --help"
        if not 1 <= self.num_tokens <= MAX_TOKENS:
            raise ConfigError(f"tokens is {self.num_tokens}", f"1 to {MAX_TOKENS}", remedy)
        # Written so that NaN is refused too.
        if not 0 <= self.temperature <= _MAX_TEMPERATURE:
            raise ConfigError(f"temperature is {self.temperature}", f"0 to {_MAX_TEMPERATURE:g}", remedy)
        if self.top_k < 0:
            raise ConfigError(f"top-k is {self.top_k}", "a whole number of at least 1, or 0 for all tokens", remedy)
        if not 0 <= self.threads <= MAX_THREADS:
            raise ConfigError(f"threads is {self.threads}", f"1 to {MAX_THREADS}, or 0 for as many as suit", remedy)
        if not 0 <= self.seed < 1 << _SEED_BITS:
            raise ConfigError(f"seed is {self.seed}", f"0 to 2^{_SEED_BITS} - 1", remedy)
