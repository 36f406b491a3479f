from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from averaging.models.llama.config import LlamaConfig
from peer.training.plan.card_memory_core import adapter_load, whole_load
from peer.training.plan.card_plan import Wishes
from peer.training.plan.cards_core import Card
from peer.training.plan.layout import Mesh, WishedSplit
from peer.training.plan.layout_core import Links, SplitRules, Task, choose_layout, one_world, settled
from peer.training.plan.owned_cards_core import OwnedCard
from peer.training.plan.plan_core import Limits
from protocol.errors import ConfigError
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig
from protocol.tensors.model_config import ModelConfig

GIB: Final = 1 << 30
GOLDEN: Final = Path(__file__).with_name("layouts.txt")
INNER: Final = InnerSection(learning_rate=1e-3, batch_tokens=1 << 16)


def _cuda(name: str, gib: float, capability: tuple[int, int]) -> Card:
    return Card("cuda", f"NVIDIA {name}", int(gib * GIB), capability)


RTX_3060, RTX_3090 = _cuda("GeForce RTX 3060", 11.8, (8, 6)), _cuda("GeForce RTX 3090", 23.7, (8, 6))
RTX_4090, H100 = _cuda("GeForce RTX 4090", 23.6, (8, 9)), _cuda("H100 80GB HBM3", 79.1, (9, 0))
P100, CPU = _cuda("Tesla P100-PCIE-16GB", 15.9, (6, 0)), Card("cpu", "", 16 * GIB)


def rig(*cards: Card) -> tuple[OwnedCard, ...]:
    return tuple(OwnedCard(number, card) for number, card in enumerate(cards))


def _all_joined(num_cards: int) -> frozenset[tuple[int, int]]:
    return frozenset((low, high) for high in range(num_cards) for low in range(high))


MACHINES: Final = {
    "3060": (rig(RTX_3060), Links()),
    "2x 3060": (rig(RTX_3060, RTX_3060), Links(apart=_all_joined(2))),
    "2x 3090": (rig(RTX_3090, RTX_3090), Links(apart=_all_joined(2))),
    "2x 3090, NVLink": (rig(RTX_3090, RTX_3090), Links(fast=_all_joined(2))),
    "4090 and 3060": (rig(RTX_4090, RTX_3060), Links()),
    "2x 3090 and 2x 3060": (rig(RTX_3090, RTX_3090, RTX_3060, RTX_3060), Links()),
    "8x H100": (rig(*[H100] * 8), Links(fast=_all_joined(8))),
    "3 processes on the CPU": (rig(CPU, CPU, CPU), Links()),
}


def _model(dim: int, layers: int, ffn: int, context: int, heads: int = 0, vocab: int = 32768) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        dim=dim,
        num_layers=layers,
        num_heads=heads or dim // 64,
        num_kv_heads=heads or dim // 256,
        ffn_dim=ffn,
        context_tokens=context,
    )


MODELS: Final = {
    "136M": _model(768, 16, 2112, 1024),
    "1B": _model(2560, 16, 8192, 2048),
    "12B": _model(8192, 16, 22016, 4096),
    "long context": _model(1024, 16, 4096, 65536),
}


def _why_no_context(model: ModelConfig, ranks: int) -> str:
    return "" if model.context_tokens % ranks == 0 else f"{ranks} ranks do not divide {model.context_tokens} tokens"


def _why_no_tensor(model: ModelConfig, ranks: int) -> str:
    heads = model.attention_dim // 64
    return "" if heads % ranks == 0 else f"{ranks} ranks do not divide {heads} heads"


def _task(model: ModelConfig, **changes: object) -> Task:
    rules = SplitRules(_why_no_context, _why_no_tensor)
    task = Task(whole_load(model), INNER, Wishes(), Limits(has_compiler=True), rules)
    return replace(task, **changes)  # type: ignore[arg-type]


def _table() -> str:
    lines = []
    for machine, (cards, links) in MACHINES.items():
        for name, model in MODELS.items():
            choice = choose_layout(cards, _task(model), "auto", links)
            worlds = " ".join("+".join(world.devices) for world in choice.layout.worlds)
            lines.append(f"{machine}, {name}: {worlds}: {choice.layout.reason or 'one card'}")
            lines += [f"    without {out.card.words}: {out.reason}" for out in choice.left_out]
            lines += [f"    or: {choice.rival.layout.reason}"] if choice.rival is not None else []
    return "\n".join(lines) + "\n"


def test_the_layouts_of_8_machines_for_4_models_and_their_reasons_stay() -> None:
    """If they change by intent, look at each and write the table anew: `python -m tests.peer.training.plan.test_layout_core`."""
    assert _table() == GOLDEN.read_text()


def test_one_replica_is_taken_from_four_fifths_of_the_islands_speed_on() -> None:
    cards, links = MACHINES["2x 3090"]
    choice = choose_layout(cards, _task(MODELS["136M"]), "auto", links)
    assert not choice.is_sharded
    assert choice.rival is not None
    near, far = settled(choice, 1000, 810), settled(choice, 1000, 790)
    assert (near.is_sharded, far.is_sharded) == (True, False)
    assert near.layout.reason.endswith("one replica trains at 81% of the islands' speed here")
    assert far.layout.reason.endswith("one replica trains at 79% of the islands' speed here")
    assert near.rival is far.rival is None


def test_a_layout_that_failed_when_tried_is_not_taken() -> None:
    cards, links = MACHINES["2x 3090, NVLink"]
    choice = choose_layout(cards, _task(MODELS["136M"]), "auto", links)
    assert choice.is_sharded
    found = settled(choice, 0, 500)
    assert not found.is_sharded
    assert found.layout.reason.endswith("one replica failed when tried")
    assert settled(choice, 400, 0).layout.reason.endswith("islands failed when tried")
    assert settled(choice, 0, 0).layout == choice.layout


def test_the_owners_split_is_kept_whatever_is_fast() -> None:
    cards, links = MACHINES["2x 3090"]
    task = _task(MODELS["136M"])
    meshes = {
        split: choose_layout(cards, task, split, links).layout.worlds[0].mesh
        for split in ("shard", "context", "tensor")
    }
    assert meshes["shard"] == Mesh(shard=2, keeps_parameters=True)
    assert meshes["context"] == Mesh(shard=2, context=2, keeps_parameters=True)
    assert meshes["tensor"] == Mesh(tensor=2, keeps_parameters=True)
    joined = choose_layout(MACHINES["8x H100"][0], task, "islands", MACHINES["8x H100"][1])
    assert len(joined.layout.worlds) == 8
    assert joined.rival is None


def test_tensor_parallel_takes_what_the_heads_allow_and_shares_rows_over_the_rest() -> None:
    six_heads = _model(384, 4, 1024, 512, heads=6)
    choice = choose_layout(rig(*[H100] * 4), _task(six_heads), "tensor")
    assert choice.layout.worlds[0].mesh == Mesh(shard=2, tensor=2, keeps_parameters=True)


@pytest.mark.parametrize(
    ("split", "num_cards", "found"),
    [
        ("tensor", 7, r"--split tensor over 7 cards: 7 ranks do not divide 12 heads"),
        ("context", 3, r"--split context over 3 cards: 3 ranks do not divide 1024 tokens"),
        ("shard", 3, r"--split shard: 3 cards for a step of 64 sequences"),
    ],
)
def test_a_split_that_divides_nothing_is_refused_in_a_line(split: str, num_cards: int, found: str) -> None:
    with pytest.raises(ConfigError, match=found) as caught:
        choose_layout(rig(*[H100] * num_cards), _task(MODELS["136M"]), split)  # type: ignore[arg-type]
    assert caught.value.exit_code == 3
    assert "--gpus" in caught.value.remedy


def test_cards_share_no_replica_of_a_run_with_an_adapter() -> None:
    model, cards = _model(512, 6, 1408, 512), rig(*[_cuda("NVIDIA GeForce RTX 4090", 24, (8, 9))] * 2)
    task = replace(_task(model), load=adapter_load(model, AdapterConfig(rank=8, alpha=16.0)))
    found = choose_layout(cards, task, "auto", Links(fast=_all_joined(2)))
    assert not found.is_sharded
    assert len(found.cards) == 2
    for split in ("shard", "context", "tensor"):
        with pytest.raises(ConfigError, match=f"--split {split} in a run with an adapter; expected a replica on each"):
            choose_layout(cards, task, split, Links())


def test_a_split_of_one_card_is_no_split_and_says_so() -> None:
    choice = choose_layout(rig(RTX_3060), _task(MODELS["136M"]), "shard")
    assert choice.layout.reason == "--split shard needs several cards, and there is one"
    assert choice.layout.worlds[0].mesh == Mesh()


def test_a_card_too_slow_or_too_hot_shares_no_replica_but_may_be_an_island() -> None:
    slow, hot = OwnedCard(1, P100), OwnedCard(2, H100, celsius=84.0)
    cards = (OwnedCard(0, H100), slow, hot, OwnedCard(3, H100, celsius=60.0))
    task = _task(MODELS["136M"], max_celsius=83.0)
    sharded = choose_layout(cards, task, "shard")
    assert [card.number for card in sharded.cards[0]] == [0, 3]
    assert [(out.card.number, out.reason) for out in sharded.left_out] == [
        (1, "too slow: 2% of the fastest card's peak"),
        (2, "too hot: it is at 84 C"),
    ]
    assert len(choose_layout(cards, task, "islands").cards) == 4


def test_different_cards_that_are_sharded_by_flag_work_and_the_reason_tells_the_price() -> None:
    cards, links = MACHINES["4090 and 3060"]
    forced = choose_layout(rig(RTX_3090, RTX_3060), _task(MODELS["1B"]), "shard", links)
    assert forced.is_sharded
    assert "each step waits for the slowest card" in forced.layout.reason
    assert choose_layout(cards, _task(MODELS["1B"]), "auto", links).rival is None, "never by itself"


def test_sequences_are_split_where_a_step_has_fewer_of_them_than_there_are_cards() -> None:
    cards, links = MACHINES["8x H100"]
    two_sequences = INNER.model_copy(update={"batch_tokens": 2 * 65536})
    choice = choose_layout(cards, _task(MODELS["long context"], inner=two_sequences), "auto", links)
    mesh = choice.layout.worlds[0].mesh
    assert (mesh.shard, mesh.context, mesh.readers) == (8, 4, 2)


@pytest.mark.parametrize(
    ("split", "mesh"), [("auto", Mesh(shard=3)), ("tensor", Mesh()), ("context", Mesh(shard=2, context=2))]
)
def test_cards_that_are_left_share_one_replica_if_they_can(split: WishedSplit, mesh: Mesh) -> None:
    cards, links = MACHINES["8x H100"]
    left = cards[: mesh.num_ranks] if split != "tensor" else cards[4:5]
    inner = INNER.model_copy(update={"batch_tokens": 3 << 16})
    world = one_world(left, _task(MODELS["1B"], inner=inner), split, links)
    assert world.devices == tuple(card.device for card in left)
    assert world.mesh.model_copy(update={"keeps_parameters": False}) == mesh


if __name__ == "__main__":
    GOLDEN.write_text(_table())
