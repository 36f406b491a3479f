"""Checks that the data of this peer belongs to the run: weights of its model, and the text of its experts."""

from __future__ import annotations

from typing import Final

from averaging.data.packing.expert_shards import check_each_expert, read_router
from averaging.data.shards import DatasetManifest, ShardCache
from protocol.errors import ConfigError
from protocol.run.manifest import RunConfig

_START_TOKENS: Final = 2
"""Length of a value of the initial weights, in tokens (averaging/data/shards.py)."""


def check_weights(config: RunConfig, dataset: DatasetManifest) -> None:
    """Reject a data set with weights of another model, before they are fetched: they take as much of the disk as they need.

    Raises:
        ConfigError: the base, or the initial weights, if there are any, have another number of values than the model.
    """
    found = dataset.num_tokens("base")
    if found != config.base_elements:
        raise ConfigError(f"a base of {found} values in the run's data", f"{config.base_elements}, as its model has")
    start = dataset.num_tokens("start") / _START_TOKENS
    if start not in (0, config.num_elements):
        found_words = f"initial weights of {start:g} values in the run's data"
        raise ConfigError(found_words, f"{config.num_elements}, as its model has")


def check_data(config: RunConfig, dataset: DatasetManifest, cache: ShardCache) -> None:
    """Reject a data set whose router is of another run, or in which an expert has too little text. Blocks.

    Raises:
        ConfigError: the router is missing or has other experts or features than `config`, or an expert has no window to read.
        StorageError: the router's file is not in the cache.
    """
    if config.experts is None:
        return
    read_router(dataset, config.experts.num_experts, cache, features=config.experts.router_features)
    check_each_expert(dataset, config.model.context_tokens + 1)
