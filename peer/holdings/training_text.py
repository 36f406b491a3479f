"""Checks that the data fetched for this peer belongs to the run: the text of its experts, and the base of an adapter."""

from __future__ import annotations

from averaging.data.packing.expert_shards import check_each_expert, read_router
from averaging.data.shards import DatasetManifest, ShardCache
from protocol.errors import ConfigError
from protocol.run.manifest import RunConfig


def check_data(config: RunConfig, dataset: DatasetManifest, cache: ShardCache) -> None:
    """Reject a data set whose router is of another run, in which an expert has too little text, or whose base is of another model.
    Blocks.

    Raises:
        ConfigError: the base has another number of values than the model, the router is missing or has other experts or features
            than `config`, or an expert has no window to read.
        StorageError: the router's file is not in the cache.
    """
    found = dataset.num_tokens("base")
    if found != config.base_elements:
        raise ConfigError(f"a base of {found} values in the run's data", f"{config.base_elements}, as its model has")
    if config.experts is None:
        return
    read_router(dataset, config.experts.num_experts, cache, features=config.experts.router_features)
    check_each_expert(dataset, config.model.context_tokens + 1)
