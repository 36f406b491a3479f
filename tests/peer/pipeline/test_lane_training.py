"""The owner's controls reach a daemon's lanes, and a run's stage follows from its manifest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio

from peer.pipeline.lane_shares import StageShares
from peer.pipeline.lane_training import LaneControl, stage_run
from peer.pipeline.stage.stage_process import StageProcess, StageProcessDied
from peer.session.await_state import HELD_BECAUSE, FirstState
from peer.status.status_of import status_of
from peer.training import training_process
from peer.training.trainer import OWNER_HOLDS
from protocol.errors import LocalProtocolError
from protocol.ids import RunId, UnitName
from protocol.tensors.stage_schema import stage_unit
from tests.peer.lane_run_world import ROUND_TOKENS, LaneRun
from tests.peer.worker_world import Starts
from tests.protocol.run.test_pipeline_section import pipeline_run


@dataclass
class _Parts:
    """The few things that are looked at of a process, of rounds and of a first state."""

    is_ready: bool = True
    is_missing: bool = False
    held_because: str = "nothing was said"
    slowed: list[float] = field(default_factory=list)
    has_died: bool = False

    def hold(self, because: str) -> None:
        """As StageShares."""
        self.held_because = because

    async def ask(self, op: str, fields: dict[str, float]) -> None:
        """As StageProcess."""
        if self.has_died:
            raise StageProcessDied("the training process ended", "an answer")
        assert op == "slow"
        self.slowed.append(fields["factor"])


def _control(parts: _Parts) -> LaneControl:
    return LaneControl(cast(StageProcess, parts), cast(StageShares, parts), cast(FirstState, parts))


async def test_a_seat_is_taken_when_its_owner_allows_it_there_is_a_state_and_the_process_is_there() -> None:
    parts = _Parts()
    control = _control(parts)
    assert control.why_not() == ""
    parts.is_ready = False
    assert control.why_not() == "the training process is starting"
    parts.is_missing = True
    assert control.why_not() == HELD_BECAUSE
    await control.pause()
    assert control.why_not() == "its owner paused it"
    parts.is_ready, parts.is_missing = True, False
    await control.resume()
    assert control.why_not() == ""


async def test_the_owners_share_reaches_the_process_and_one_that_has_just_died_breaks_nothing() -> None:
    parts = _Parts()
    control = _control(parts)
    await control.set_slowdown(4.0)
    assert parts.slowed == [4.0]
    parts.has_died = True
    await control.set_slowdown(2.0)
    assert parts.slowed == [4.0]


def test_what_was_trained_is_held_back_in_the_owners_name_and_let_go() -> None:
    parts = _Parts()
    control = _control(parts)
    control.hold(True)
    assert parts.held_because == OWNER_HOLDS
    control.hold(False)
    assert parts.held_because == ""


def test_the_numbers_of_a_lane_are_those_of_the_manifest() -> None:
    config = pipeline_run()
    run = stage_run(config, stage_unit(1))
    assert (run.stage, run.form.num_stages, run.form.inner_steps) == (1, 3, 10)
    shape = run.shape(RunId(bytes(32)))
    sequences, context = shape.shape
    assert sequences * context * run.form.num_micro_batches == config.inner.batch_tokens == run.form.step_tokens


def test_a_run_without_stages_has_no_lanes() -> None:
    config = pipeline_run()
    whole = config.model_copy(update={"run": config.run.model_copy(update={"shards": "data"}), "pipeline": None})
    with pytest.raises(LocalProtocolError, match="lanes in a run of data shards"):
        stage_run(whole, UnitName("fragment-0"))


WITHIN_S = 300.0


@asynccontextmanager
async def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, total_tokens: int) -> AsyncIterator[LaneRun]:
    monkeypatch.setattr(training_process, "start_worker", Starts())
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            yield LaneRun(folder, nursery, total_tokens)
            nursery.cancel_scope.cancel()


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await trio.sleep(0.05)


async def test_two_peers_train_a_run_of_two_stages_to_its_end_in_lanes_and_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _run(tmp_path, monkeypatch, total_tokens=2 * ROUND_TOKENS) as run:
        peers = [await run.open(stage) for stage in range(2)]
        for one in peers:
            await one.over.wait()
    for one in peers:
        head = one.chain.head
        assert (head.index, head.total_tokens) == (2, 2 * ROUND_TOKENS)
        lanes = [
            part for link in one.chain.links if link.record for of in link.record.contributors for part in of.lanes
        ]
        assert [(part.round, part.tokens) for part in lanes] == [(0, ROUND_TOKENS), (1, ROUND_TOKENS)]
        assert status_of(one.joined.life.sources).state == "finished"
        assert one.joined.reporter.is_leaving
        assert len(one.controls.ordered) == 1
    first, second = (
        {part.lane for link in one.chain.links if link.record for of in link.record.contributors for part in of.lanes}
        for one in peers
    )
    assert first == second, "the same lane at both"


async def test_who_is_asked_to_leave_says_goodbye_comes_back_with_what_is_on_its_disk_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _run(tmp_path, monkeypatch, total_tokens=100 * ROUND_TOKENS) as run:
        peers = [await run.open(stage) for stage in range(2)]
        await _until(lambda: peers[1].chain.head.index >= 1)
        peers[1].joined.life.departure.order()
        await peers[1].over.wait()
        left_at = peers[1].chain.head.index
        assert peers[1].joined.reporter.is_leaving
        assert not peers[0].over.is_set()
        back = await run.open(1)
        assert back.chain.head.index >= left_at - 1 >= 0
        await _until(lambda: back.chain.head.index >= left_at + 1)
