from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import TrainerProgress
from peer.cards.layout_speeds import SPEEDS_FILE, LayoutSpeeds
from peer.cards.layout_trial import TRIAL_WITHIN_S, Trial, settle_by_trial
from peer.training.plan.layout import Layout
from peer.training.plan.layout_core import LayoutChoice, choose_layout
from protocol.errors import MachineError
from tests.peer.training.plan.test_layout_core import MACHINES, MODELS, _task
from tests.virtual import InlineOffload

STEP_TOKENS: Final = 1000
IMPORTS_S: Final = 20.0


@dataclass
class _Trainer:
    """Takes a step of STEP_TOKENS each `step_s` after its imports; none for 0."""

    step_s: float
    begun_s: float
    state: str = "training"

    def progress(self) -> TrainerProgress:
        trained_s = max(0.0, trio.current_time() - self.begun_s - IMPORTS_S)
        steps = int(trained_s / self.step_s) if self.step_s else 0
        tokens = steps * STEP_TOKENS
        return TrainerProgress(tokens, tokens, None, 0.0, 0, self.state, "no room")


class _Opener:
    """Opens trainers whose steps take so long by the number of replicas, and notes each. Each has a nursery, as real ones do."""

    def __init__(self, step_s: dict[int, float], state: str = "training") -> None:
        self.step_s, self.state = step_s, state
        self.opened: list[int] = []
        self.open_now = 0

    @asynccontextmanager
    async def __call__(self, layout: Layout) -> AsyncIterator[_Trainer]:
        number = len(layout.worlds)
        self.opened.append(number)
        if self.step_s[number] < 0:
            raise MachineError("no process could be started")
        self.open_now += 1
        assert self.open_now == 1, "one at a time: both need all cards"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                yield _Trainer(self.step_s[number], trio.current_time(), self.state)
                nursery.cancel_scope.cancel()
        finally:
            self.open_now -= 1


def _settled(
    opens: _Opener, folder: Path, may_compute: Callable[[], bool] = lambda: True, machine: str = "2x 3090"
) -> LayoutChoice:
    cards, links = MACHINES[machine]
    task = _task(MODELS["136M"])
    choice = choose_layout(cards, task, "auto", links)

    async def main() -> LayoutChoice:
        return await settle_by_trial(choice, task, Trial(opens, LayoutSpeeds(folder), may_compute, InlineOffload()))

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("replica_s", "is_sharded"), [(0.6, True), (0.7, False)])
def test_both_layouts_are_timed_after_their_first_step(tmp_path: Path, replica_s: float, is_sharded: bool) -> None:
    opens = _Opener({2: 0.5, 1: replica_s})
    found = _settled(opens, tmp_path)
    assert found.is_sharded == is_sharded
    assert found.rival is None
    assert opens.opened == [2, 1]


def test_speeds_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    first = _settled(_Opener({2: 0.5, 1: 0.6}), tmp_path)
    again = _Opener({2: 9.0, 1: 9.0})
    assert _settled(again, tmp_path).layout == first.layout
    assert again.opened == []
    other = _Opener({2: 0.5, 1: 0.6})
    _settled(other, tmp_path, machine="2x 3060")
    assert other.opened == [2, 1], "of other cards"


def test_a_damaged_file_of_speeds_costs_another_measurement(tmp_path: Path) -> None:
    (tmp_path / SPEEDS_FILE).write_text('{"speeds": {"a": -1}}')
    opens = _Opener({2: 0.5, 1: 0.6})
    _settled(opens, tmp_path)
    assert opens.opened == [2, 1]


@pytest.mark.parametrize("replica_s", [0.0, -1.0, TRIAL_WITHIN_S])
def test_a_layout_that_takes_no_step_in_time_has_failed_and_is_tried_again_next_time(
    tmp_path: Path, replica_s: float
) -> None:
    found = _settled(_Opener({2: 0.5, 1: replica_s}), tmp_path)
    assert not found.is_sharded
    assert found.layout.reason.endswith("one replica failed when tried")
    again = _Opener({2: 0.5, 1: 0.5})
    assert _settled(again, tmp_path).is_sharded
    assert again.opened == [1]


def test_a_model_that_does_not_fit_is_not_waited_for(tmp_path: Path) -> None:
    found = _settled(_Opener({2: 0.5, 1: 0.5}, state="held"), tmp_path)
    assert found.layout.reason.endswith("no fast link joins them"), "both failed: as it was expected"


def test_nothing_is_timed_while_the_owner_allows_no_training(tmp_path: Path) -> None:
    opens = _Opener({2: 0.5, 1: 0.1})
    found = _settled(opens, tmp_path, lambda: False)
    assert not found.is_sharded
    assert opens.opened == [2]
    assert not (tmp_path / SPEEDS_FILE).exists()


def test_a_choice_without_a_rival_is_not_timed(tmp_path: Path) -> None:
    opens = _Opener({})
    assert len(_settled(opens, tmp_path, machine="4090 and 3060").layout.worlds) == 2
    assert opens.opened == []
