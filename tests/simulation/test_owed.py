"""Swarms with error feedback, and that what they watch finds a broken rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from averaging.error_feedback import Feedback
from averaging.rounds import feedback
from tests.simulation.beside import Beside, Play
from tests.simulation.collection import SCENARIOS
from tests.simulation.profiles import PROFILES
from tests.simulation.scenario import play
from tests.simulation.stories import simulate

PLAYS = [
    Play(("tests.simulation", "--json", "--profile", "feedback", "--start", str(start), "--seeds", "2"), str(start))
    for start in (0, 2)
]


@pytest.mark.timeout(300)
def test_no_residual_is_lost_or_applied_twice_whatever_befalls_a_swarm(beside: Beside) -> None:
    told = [json.loads(printed) for printed in beside.output(*PLAYS)]
    assert [totals["errors"] for totals in told] == [{}, {}]
    assert sum(totals["reached"].get("event Switched", 0) for totals in told) > 0


def _never_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Feedback, "after", lambda self, counts: self)


def _changes_when_it_is_offered(patch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = Feedback.offered

    def offered(self: Feedback, root: Any, fed: Any) -> Any:
        return real(self, root, fed).counted(root, range(self.grid.num_chunks))

    patch.setattr(Feedback, "offered", offered)


@pytest.mark.parametrize("break_it", [_never_changes, _changes_when_it_is_offered])
def test_a_residual_that_changes_at_another_time_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert "owes another sum" in simulate(0, PROFILES["feedback"]).error


def test_a_residual_that_a_restart_brings_back_although_it_was_counted_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feedback, "_followed", lambda state, *args: (state, set()))
    scenario = SCENARIOS["member-with-feedback-crashes-everywhere"]
    assert any("was applied twice" in play(scenario, seed).error for seed in range(4))
