"""The tokenizer of a run as it goes into checkpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunTokenizer:
    """The bytes of the run's tokenizer.json, and the token that ends a document."""

    data: bytes
    end: int
