from __future__ import annotations

from pathlib import Path

import pytest

from peer.training.islands.open_trainer import plan_of_world
from peer.training.plan.layout import Layout, World
from tests.peer.training_world import training_plan

TWO = Layout(worlds=(World(devices=("cpu",)), World(devices=("cpu",))))


@pytest.mark.parametrize(("number", "name"), [(0, "moments.safetensors"), (1, "moments-1.safetensors")])
def test_each_island_keeps_its_moments_in_a_file_of_its_own(tmp_path: Path, number: int, name: str) -> None:
    plan = training_plan(tmp_path, moments_file=tmp_path / "moments.safetensors")
    assert plan_of_world(plan, TWO, number).moments_file == tmp_path / name


def test_islands_take_turns_in_the_data_of_their_peer(tmp_path: Path) -> None:
    plans = [plan_of_world(training_plan(tmp_path, first_step=6), TWO, number) for number in range(2)]
    assert [(plan.first_step, plan.stride) for plan in plans] == [(6, 2), (7, 2)]
