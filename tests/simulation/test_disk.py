"""The bound on a simulated peer's disk holds, and is seen to be passed where production forgets to make room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from averaging.rounds.lineage import retention as keeping
from averaging.state.generations import Generations
from averaging.state.unit_log import UnitLog
from tests.simulation.profiles import PROFILES
from tests.simulation.stories import Options, simulate

STORY = replace(PROFILES["calm"], weights={"join": 1}, num_faults=(1, 1), spread_s=5.0, min_rounds=16)
THREE = Options(peers=3)


async def _nothing(*_args: object, **_named: object) -> None:
    """Instead of making room."""


def _keeps_generations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Generations, "keep_only", _nothing)


def _keeps_updates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnitLog, "drop_results", _nothing)
    patch.setattr(UnitLog, "keep_results", _nothing)


def _keeps_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnitLog, "tidy", _nothing)


@pytest.fixture(autouse=True)
def _few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few are kept that a short story fills the disk with them."""
    monkeypatch.setattr(keeping, "KEPT_UPDATE_SNAPSHOTS", 1)


def test_a_disk_stays_within_its_bound() -> None:
    assert simulate(3, STORY, THREE).error == ""


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        (_keeps_generations, "generations, it may hold"),
        (_keeps_updates, "bytes of updates, it may hold"),
        (_keeps_votes, "bytes of a log that was to be written anew"),
    ],
)
def test_a_disk_that_is_never_tidied_passes_its_bound(
    breaks: Callable[[pytest.MonkeyPatch], None], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    assert named in simulate(3, STORY, THREE).error
