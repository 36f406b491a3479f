"""Swarms with error feedback, and that what they watch finds a broken rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from averaging.arithmetic.error_feedback import Feedback
from averaging.rounds.lineage import adoption
from averaging.rounds.lineage import trainer_updates as adopting
from averaging.rounds.lineage import unit_feedback as feedback
from averaging.rounds.lineage.adoption import Mixed
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from tests.simulation.beside import Beside, Play
from tests.simulation.collection import SCENARIOS
from tests.simulation.profiles import PROFILES
from tests.simulation.scenario import play
from tests.simulation.stories import simulate


def _play(profile: str, start: int, seeds: int, hash_seed: str) -> Play:
    stories = ("--start", str(start), "--seeds", str(seeds))
    return Play("tests.simulation.__main__", ("--json", "--profile", profile, *stories), hash_seed)


FED = [_play("feedback", start, 1, hash_seed) for start, hash_seed in ((1, "1"), (2, "2"))]
STREAMING = [_play("streaming-feedback", 10, 1, "2")]
PLAYS = [*FED, *STREAMING]


def test_no_residual_is_lost_or_applied_twice_whatever_befalls_a_swarm(beside: Beside) -> None:
    reported = [json.loads(printed) for printed in beside.output(*FED)]
    assert [totals["errors"] for totals in reported] == [{}, {}]
    assert sum(totals["reached"].get("event Switched", 0) for totals in reported) > 0


def test_of_commits_that_are_mixed_in_a_peer_owes_what_was_not_counted_whatever_befalls_its_fragments(
    beside: Beside,
) -> None:
    (printed,) = beside.output(*STREAMING)
    totals = json.loads(printed)
    assert totals["errors"] == {}
    assert totals["faults"]["mixed"] > 50
    assert totals["faults"]["switch"] > 0


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


def _forgets_what_the_codec_left_out(patch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = adoption._mix

    def mix(*args: Any) -> None:
        *rest, mixed = args
        real(*rest, Mixed(mixed.alpha, None))

    patch.setattr(adoption, "_mix", mix)


def _mixes_however_late(patch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = TrainerUpdater._mixed
    patch.setattr(TrainerUpdater, "_mixed", lambda self, contribution, ready: real(self, contribution, 0))


def _never_mixes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainerUpdater, "_mixed", lambda self, contribution, ready: None)


def _mixes_what_was_not_counted(patch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = adoption.adopt_commit

    def adopt(applied: Any, record: Any, me: Any, offered: Any, grid: Any, mixed: Any = None) -> Any:
        adopted = real(applied, record, me, offered, grid, mixed)
        return replace(adopted, kept=dict.fromkeys(range(grid.num_chunks), 0.5))

    patch.setattr(adopting, "adopt_commit", adopt)


@pytest.mark.parametrize(
    ("break_it", "reported"),
    [
        (_forgets_what_the_codec_left_out, "owes another sum"),
        (_mixes_however_late, "later than it may"),
        (_never_mixes, "does not mix in"),
        (_mixes_what_was_not_counted, "mixes away what was not counted"),
    ],
)
def test_a_commit_that_is_mixed_in_otherwise_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert reported in simulate(0, PROFILES["streaming-feedback"]).error
