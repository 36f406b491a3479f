"""The cards of a stage: alike, as many as divide its micro-batches, none that is too hot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.training.plan.layout import Mesh, WishedSplit
from peer.training.plan.stage_layout_core import stage_devices, stage_layout
from protocol.errors import ConfigError
from tests.peer.training.plan.test_layout_core import CPU, RTX_3060, RTX_3090, rig


@pytest.mark.parametrize(
    ("num_cards", "sequences", "num_used"),
    [(1, 3, 1), (2, 4, 2), (2, 1, 1), (3, 4, 2), (4, 6, 3), (4, 2, 2), (8, 8, 8), (3, 7, 1)],
)
def test_as_many_cards_hold_a_stage_as_divide_the_sequences_of_a_micro_batch(
    num_cards: int, sequences: int, num_used: int
) -> None:
    found = stage_layout(rig(*[RTX_3090] * num_cards), sequences)
    (world,) = found.layout.worlds
    assert world.devices == tuple(f"cuda:{number}" for number in range(num_used))
    assert world.mesh == Mesh(shard=num_used)
    words = f"{num_cards} cards cannot share micro-batches of {sequences} sequences evenly"
    assert [out.reason for out in found.left_out] == [words] * (num_cards - num_used)
    assert bool(found.layout.reason) == (num_used > 1)
    assert stage_devices(("cuda:5", "cuda:7"), sequences) == ("cuda:5", "cuda:7")[: 2 if sequences % 2 == 0 else 1]


def test_cards_of_another_kind_than_the_largest_and_hot_ones_are_left_out_with_the_reason() -> None:
    small, first, second, hot = rig(RTX_3060, RTX_3090, RTX_3090, RTX_3090)
    found = stage_layout((small, first, second, replace(hot, celsius=91.0)), 4, max_celsius=80.0)
    assert found.cards == ((first, second),)
    assert found.layout.reason == "2x RTX 3090, 24 GB: each holds the stage and a part of every micro-batch"
    assert [(out.card.number, out.reason) for out in found.left_out] == [
        (0, "a stage takes cards of one kind"),
        (3, "too hot: it is at 91 C"),
    ]
    alone = replace(first, celsius=99.0)
    assert stage_layout((alone,), 4, max_celsius=80.0).cards == ((alone,),), "the owner's pause holds it back"


@pytest.mark.parametrize("split", ["shard", "context", "tensor"])
def test_a_split_of_the_stage_itself_is_refused_in_a_line_and_says_nothing_of_one_card(split: WishedSplit) -> None:
    with pytest.raises(ConfigError, match=f"--split {split} in a run of stages; expected the whole stage on each card"):
        stage_layout(rig(RTX_3090, RTX_3090), 4, split)
    assert stage_layout(rig(RTX_3090), 4, split).layout.worlds[0].mesh == Mesh()
    assert stage_layout(rig(CPU, CPU), 4, "islands").layout.worlds[0].devices == ("cpu", "cpu")
