"""The memory that the plan of a card expects beside torch's own counting, for models of 136M and 1B values: shapes without values on
the CPU, so no card is needed and nothing of this is a card's own reading.

`python -m tests.benchmarks.memory_plan` prints a JSON line for each model, precision and way to spare memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final, get_args

from averaging.models.llama.config import LlamaConfig
from peer.training.plan.card_plan import CardPlan, Checkpointing, Precision
from protocol.run.training_sections import InnerSection
from tests.benchmarks.results import Row
from tests.oracles.counted_memory import counted_bytes, expected

BENCH: Final = "memory_plan"
NEAR: Final = 0.1
INNER: Final = InnerSection(learning_rate=1e-3, batch_tokens=1 << 16)
SPARED: Final[tuple[Mapping[str, str], ...]] = (
    *({"checkpointing": kind} for kind in get_args(Checkpointing)),
    {"checkpointing": "full", "offload": "all"},
)
PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "bf16")
MODELS: Final = {
    "136M": (
        LlamaConfig(
            vocab_size=32768, dim=768, num_layers=16, num_heads=12, num_kv_heads=4, ffn_dim=2112, context_tokens=1024
        ),
        4,
    ),
    "1B": (
        LlamaConfig(
            vocab_size=32768, dim=2048, num_layers=20, num_heads=16, num_kv_heads=4, ffn_dim=5632, context_tokens=2048
        ),
        1,
    ),
}
"""Each with its sequences at a time."""


def _words(spared: Mapping[str, str]) -> str:
    away = ", parameters and moments away" if "offload" in spared else ""
    return f"checkpointing {spared['checkpointing']}{away}"


def rows() -> Iterator[Row]:
    """One row a model and plan: the bytes expected, beside those counted."""
    for name, (model, micro_batch) in MODELS.items():
        for precision in PRECISIONS:
            for spared in SPARED:
                plan = CardPlan.model_validate({"precision": precision, **spared})
                need = expected(model, INNER, micro_batch, plan).total
                counted = counted_bytes(model, INNER, micro_batch, plan)
                ratio = need / counted
                yield Row(
                    BENCH,
                    f"{name}, {precision}, {_words(spared)}: bytes expected of a step on the card",
                    need,
                    "bytes",
                    baseline=counted,
                    ratio=round(ratio, 3),
                    target=f"within {NEAR:.0%}",
                    met=abs(ratio - 1.0) <= NEAR,
                    trials=1,
                    settings={
                        "model": name,
                        "micro_batch": micro_batch,
                        "precision": precision,
                        **spared,
                    },
                )


def main() -> None:
    """Print the rows, each as soon as it is counted."""
    for row in rows():
        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
