"""The cards of a stage: alike, as many as divide its micro-batches, none too hot; whole on each, or by rows where it is large."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.training.plan.card_memory_core import stage_load
from peer.training.plan.card_plan import Wishes
from peer.training.plan.layout import Mesh, WishedSplit
from peer.training.plan.layout_core import LayoutChoice, Links
from peer.training.plan.owned_cards_core import OwnedCard
from peer.training.plan.plan_core import Limits
from peer.training.plan.stage_layout_core import StageTask, stage_layout
from protocol.errors import ConfigError
from protocol.tensors.stage_schema import StageMap
from tests.peer.training.plan.test_layout_core import CPU, GIB, INNER, MODELS, RTX_3060, RTX_3090, rig


def stage_task(model: str = "136M", sequences: int = 4, max_celsius: float = 0.0, machine_gib: int = 64) -> StageTask:
    """One of two stages of a model of test_layout_core."""
    config = MODELS[model].model_copy(update={"is_tied": False})
    load = stage_load(StageMap(config, (6, 10)), 0, 2)
    limits = Limits(has_compiler=True, machine_bytes=machine_gib * GIB)
    return StageTask(load, INNER, Wishes(), limits, sequences, max_celsius)


def _layout(cards: tuple[OwnedCard, ...], task: StageTask, split: WishedSplit = "auto") -> LayoutChoice:
    return stage_layout(cards, task, split, Links())


@pytest.mark.parametrize(
    ("num_cards", "sequences", "num_used"),
    [(1, 3, 1), (2, 4, 2), (2, 1, 1), (3, 4, 2), (4, 6, 3), (4, 2, 2), (8, 8, 8), (3, 7, 1)],
)
def test_as_many_cards_hold_a_stage_as_divide_the_sequences_of_a_micro_batch(
    num_cards: int, sequences: int, num_used: int
) -> None:
    found = _layout(rig(*[RTX_3090] * num_cards), stage_task(sequences=sequences))
    (world,) = found.layout.worlds
    assert world.devices == tuple(f"cuda:{number}" for number in range(num_used))
    assert world.mesh == Mesh(copies=num_used)
    words = f"{num_cards} cards cannot share micro-batches of {sequences} sequences evenly"
    assert [out.reason for out in found.left_out] == [words] * (num_cards - num_used)
    assert bool(found.layout.reason) == (num_used > 1)


def test_cards_of_another_kind_than_the_largest_and_hot_ones_are_left_out_with_the_reason() -> None:
    small, first, second, hot = rig(RTX_3060, RTX_3090, RTX_3090, RTX_3090)
    found = _layout((small, first, second, replace(hot, celsius=91.0)), stage_task(max_celsius=80.0))
    assert found.cards == ((first, second),)
    assert found.layout.reason == "2x RTX 3090, 24 GB: each holds the stage and a part of every micro-batch"
    assert [(out.card.number, out.reason) for out in found.left_out] == [
        (0, "a stage takes cards of one kind"),
        (3, "too hot: it is at 91 C"),
    ]
    alone = replace(first, celsius=99.0)
    assert _layout((alone,), stage_task(max_celsius=80.0)).cards == ((alone,),), "the owner's pause holds it back"


@pytest.mark.parametrize("split", ["context", "tensor"])
def test_a_split_of_sequences_or_products_is_refused_with_what_works_and_says_nothing_of_one_card(
    split: WishedSplit,
) -> None:
    with pytest.raises(
        ConfigError, match=f"--split {split} in a run of stages; expected islands, .* or shard"
    ) as caught:
        _layout(rig(RTX_3090, RTX_3090), stage_task(), split)
    assert caught.value.exit_code == 3
    assert _layout(rig(RTX_3090), stage_task(), split).layout.worlds[0].mesh == Mesh()
    assert _layout(rig(CPU, CPU), stage_task(), "islands").layout.worlds[0].devices == ("cpu", "cpu")


@pytest.mark.parametrize("machine_gib", [16, 1024], ids=["little memory of the machine", "much of it"])
def test_a_stage_too_large_for_a_card_lies_in_rows_over_as_many_as_can_share_it(machine_gib: int) -> None:
    task = stage_task("12B", sequences=8, machine_gib=machine_gib)
    found = _layout(rig(*[RTX_3090] * 8), task)
    (world,), (plan,) = found.layout.worlds, found.plans
    assert world.mesh == Mesh(shard=8)
    assert not plan.missing_bytes
    alone = _layout(rig(RTX_3090), task).plans[0]
    assert alone.missing_bytes or alone.plan.offload == "all"
    why = "no card holds the stage alone" if alone.missing_bytes else "keeps more in the machine's memory"
    assert found.layout.reason.startswith("8x RTX 3090, 24 GB: one replica, parameters over 8; ")
    assert found.layout.reason.endswith(why)


def test_cards_that_hold_no_stage_together_either_say_what_is_missing_in_the_way_that_lacks_least() -> None:
    found = _layout(rig(RTX_3060, RTX_3060), stage_task("12B", sequences=8, machine_gib=8))
    assert found.layout.worlds[0].mesh == Mesh(shard=2)
    assert "the model is not expected to fit" in found.layout.reason


def test_the_owner_may_have_a_stage_in_rows_or_whole_on_each_card() -> None:
    small, large = stage_task(), stage_task("12B", sequences=8)
    by_rows = _layout(rig(RTX_3090, RTX_3090), small, "shard")
    assert by_rows.layout.worlds[0].mesh == Mesh(shard=2)
    assert by_rows.layout.reason.endswith("as --split shard asks")
    assert _layout(rig(*[RTX_3090] * 8), large, "islands").layout.worlds[0].mesh == Mesh(copies=8)
