"""Checks that the text fetched for this peer's experts belongs to the run."""

from __future__ import annotations

from averaging.data.packing.expert_shards import check_each_expert, read_router
from averaging.data.shards import DatasetManifest, ShardCache
from protocol.run.manifest import RunConfig


def check_expert_text(config: RunConfig, dataset: DatasetManifest, cache: ShardCache) -> None:
    """Reject a data set whose router is of another run, or in which an expert has too little text. A run without experts passes.
    Blocks.

    Raises:
        ConfigError: the router is missing or has other experts or features than `config`, or an expert has no window to read.
        StorageError: the router's file is not in the cache.
    """
    if config.experts is None:
        return
    read_router(dataset, config.experts.num_experts, cache, features=config.experts.router_features)
    check_each_expert(dataset, config.model.context_tokens + 1)
