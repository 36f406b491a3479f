"""An expert's share of the packed data, for its holders, and the router that selected it."""

from __future__ import annotations

from collections.abc import Sequence

from averaging.data.packing.document_router import DocumentRouter, router_from_bytes
from averaging.data.shards import DatasetManifest, ShardCache, ShardEntry
from averaging.data.sources.texts import Split
from averaging.data.tokenizer import Tokenizer
from protocol.errors import ConfigError, StorageError
from protocol.ids import Root
from protocol.run.experts_section import RouterFeatures


def expert_shards(dataset: DatasetManifest, expert: int, split: Split = "train") -> Sequence[ShardEntry]:
    """The shards of an expert's documents, in order. Its holders read their windows from them (averaging/data/assignment.py).

    Raises:
        ConfigError: the data set was not packed for this expert.
    """
    num_experts = dataset.router.num_experts if dataset.router else 0
    if not 0 <= expert < num_experts:
        expected = f"0 to {num_experts - 1}" if num_experts else "none: this data set was packed for no experts"
        raise ConfigError(f"data for expert {expert}", expected)
    return dataset.part(split, expert)


def check_each_expert(dataset: DatasetManifest, window_tokens: int) -> None:
    """Reject data in which an expert has less than a window for training or for evaluation.

    Raises:
        ConfigError: an expert has too little text.
    """
    num_experts = dataset.router.num_experts if dataset.router else 0
    splits: tuple[tuple[str, Split], ...] = (("training", "train"), ("held-out", "heldout"))
    for expert in range(num_experts):
        for part, split in splits:
            found = dataset.num_tokens(split, expert)
            if found < window_tokens:
                raise ConfigError(
                    f"data: the {part} text of expert {expert} has {found} tokens",
                    f"at least {window_tokens}, which is model.context_tokens and one more",
                    "add text, or take fewer experts",
                )


def read_router(
    dataset: DatasetManifest,
    num_experts: int,
    cache: ShardCache,
    *,
    features: RouterFeatures = "grams",
    tokenizer: Tokenizer | None = None,
) -> DocumentRouter:
    """The data set's router, for a run with this number of experts and these features. Blocks.

    Args:
        tokenizer: the run's, for a router of embeddings that will route documents; None if it is only checked.

    Raises:
        ConfigError: the data set has none, or one of another run.
        StorageError: its file is not in the cache.
    """
    entry = dataset.router
    if entry is None:
        raise ConfigError("a data set without a router", f"one that was packed for {num_experts} experts")
    data = cache.read(entry.sha256)
    if data is None:
        raise StorageError(
            f"the router {entry.sha256[:8]} is not in {cache.path(entry.sha256).parent}", "the run's file"
        )
    root = Root(bytes.fromhex(entry.root))
    return router_from_bytes(data, root, num_experts, features=features, tokenizer=tokenizer)
