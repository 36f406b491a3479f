"""Text of a peer's experts and weights of a model: of another run, or too little of it, they are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from averaging.data.packing.document_routing import route_documents
from averaging.data.packing.packing import Packing, pack
from averaging.data.shards import DatasetManifest, ShardCache, ShardEntry, ShardPart
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import ByteTokenizer
from peer.holdings.training_text import check_data, check_weights
from protocol.errors import ConfigError, StorageError
from protocol.run.manifest import RunConfig, default_run_toml, parse_run_config
from tests.averaging.data.packing.test_document_routing import CODE, PROSE
from tests.protocol.run.test_experts_section import expert_toml

TEXTS = [
    Text(data * 40, "heldout" if n % 8 == 7 else "train")
    for n, pair in enumerate(zip(CODE, PROSE, strict=True))
    for data in pair
]


@dataclass
class _World:
    config: RunConfig
    dataset: DatasetManifest
    cache: ShardCache


@pytest.fixture
def world(tmp_path: Path) -> _World:
    routing = route_documents(lambda: TEXTS, 2)
    dataset = pack(TEXTS, ByteTokenizer(), tmp_path, Packing(65536, "text", "none", routing=routing))
    return _World(parse_run_config(expert_toml()), dataset, ShardCache(tmp_path))


def test_the_text_of_the_run_passes_and_so_does_a_run_without_experts(world: _World, tmp_path: Path) -> None:
    check_data(world.config, world.dataset, world.cache)
    check_data(parse_run_config(default_run_toml()), world.dataset, ShardCache(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("harm", "reported"),
    [
        ("root", "a router with root .* as the manifest says"),
        ("features", "a router file that begins .*4096.*; expected .*tokens"),
        ("experts", 'a router file that begins .*"experts": 2.*; expected .*"experts": 3'),
        ("too little", "the training text of expert 0 has 0 tokens"),
    ],
)
def test_a_data_set_that_does_not_match_the_manifest_is_refused_in_one_line(
    world: _World, harm: str, reported: str
) -> None:
    config, router = world.config, world.dataset.router
    assert config.experts is not None
    assert router is not None
    if harm == "root":
        world.dataset = world.dataset.model_copy(update={"router": router.model_copy(update={"root": "ab" * 32})})
    elif harm == "too little":
        short = [entry for entry in world.dataset.shards if entry.split != "train" or entry.expert != 0]
        world.dataset = world.dataset.model_copy(update={"shards": short})
    else:
        other = {"features": {"router_features": "embeddings"}, "experts": {"num_experts": 3}}[harm]
        config = config.model_copy(update={"experts": config.experts.model_copy(update=other)})
    with pytest.raises(ConfigError, match=reported) as caught:
        check_data(config, world.dataset, world.cache)
    assert "\n" not in caught.value.one_line()


def test_a_router_that_is_not_in_the_cache_is_said(world: _World, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"the router .* is not in"):
        check_data(world.config, world.dataset, ShardCache(tmp_path / "empty"))


BASE_TOML = default_run_toml().replace("[run]\n", '[run]\nstart_from = "base"\n', 1)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(("split", "section"), [("base", "\n[adapter]\nrank = 4\n"), ("start", "")])
def test_weights_of_another_model_than_the_runs_are_refused_and_need_not_be_fetched_for_it(
    world: _World, split: ShardPart, section: str, more: int
) -> None:
    config = parse_run_config(BASE_TOML + section)
    num_values = (config.base_elements or config.num_elements) + more
    entry = ShardEntry(sha256="ab" * 32, num_tokens=num_values * (2 if split == "start" else 1), split=split)
    dataset = world.dataset.model_copy(update={"router": None, "shards": [*world.dataset.shards, entry]})
    if not more:
        check_weights(config, dataset)
        return
    with pytest.raises(ConfigError, match=f" of {num_values} values in the run's data; expected {num_values - 1}"):
        check_weights(config, dataset)


def test_an_adapters_run_without_its_base_is_refused_and_a_run_without_weights_passes(world: _World) -> None:
    with pytest.raises(ConfigError, match="a base of 0 values"):
        check_weights(parse_run_config(BASE_TOML + "\n[adapter]\nrank = 4\n"), world.dataset)
    check_weights(parse_run_config(BASE_TOML), world.dataset)
