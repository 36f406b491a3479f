"""Which stage a peer holds: what it held, what it began with, what the run lacks; and never one that it has no room for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from averaging.data.shards import DatasetManifest, ShardEntry
from averaging.network.seams.offload import InlineOffload
from peer.holdings.held_stage import KnownStages, OwnStage, choose_stage, founded_stage, placement_of
from peer.holdings.verified_holders_core import everybody
from peer.settings.config import PeerConfig
from protocol.errors import MachineError
from protocol.ids import PeerId, Root
from protocol.pipeline.placement.placement import next_move
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.tensors.stage_schema import StageMap, stage_unit
from tests.protocol.run.test_pipeline_section import pipeline_run

CONFIG = pipeline_run()
assert CONFIG.stages is not None
STAGES: StageMap = CONFIG.stages
ALL = (0, 1, 2)
A, B, C, D = (PeerId(name) for name in "abcd")


def _start(*rosters: tuple[PeerId, ...]) -> StartRecord:
    units = tuple(StartUnit(stage_unit(s), b"f" * 32, Root(bytes(32)), roster) for s, roster in enumerate(rosters))
    return StartRecord(b"r" * 32, units, (A, B, C), 1, 0)


def _own(folder: Path, **settings: float) -> OwnStage:
    return OwnStage(PeerConfig(state_dir=folder, **settings), CONFIG, STAGES, folder, InlineOffload())


def test_what_is_on_our_disk_comes_before_what_the_run_began_with_and_that_before_what_it_lacks() -> None:
    others: dict[PeerId, int | None] = {A: 0, B: 1}
    assert choose_stage(KnownStages(STAGES, ALL, 1, 0, others))[0] == 1
    assert choose_stage(KnownStages(STAGES, ALL, None, 0, others))[0] == 0
    assert choose_stage(KnownStages(STAGES, ALL, None, None, others))[0] == 2


def test_a_joiner_goes_where_replicas_lack_and_only_where_it_has_room() -> None:
    others: dict[PeerId, int | None] = {A: 0, B: 1, C: 2, D: 2}
    assert choose_stage(KnownStages(STAGES, ALL, others=others))[0] in (0, 1)
    stage, reason = choose_stage(KnownStages(STAGES, (2,), others=others))
    assert (stage, reason) == (2, "the run lacks it most: its stages have 1, 1, 2 holders")


def test_a_stage_whose_replicas_were_measured_to_be_slow_gets_one_and_by_what_it_costs_alone_it_would_not() -> None:
    held = {PeerId(f"p{stage}{number}"): stage for stage, count in enumerate((3, 2, 2)) for number in range(count)}
    costs = [placement_of(STAGES, held).costs[stage] for stage in range(3)]
    paces = {peer: (0.25 if stage == 1 else 1.0) * 1000.0 / costs[stage] for peer, stage in held.items()}
    move = next_move(placement_of(STAGES, held, paces=paces))
    assert move is not None
    assert (held[move.peer], move.stage) == (0, 1)
    alike = {peer: 1000.0 / costs[stage] for peer, stage in held.items()}
    by_cost, measured = placement_of(STAGES, held), placement_of(STAGES, held, paces=alike)
    assert [rate * 1000.0 for rate in by_cost.rates()] == pytest.approx(measured.rates())
    assert next_move(placement_of(STAGES, held, paces=paces, is_in_lanes=True)) is None


@pytest.mark.parametrize("slow", ALL)
def test_a_joiner_takes_the_stage_whose_replicas_were_measured_to_be_slow_and_in_lanes_the_one_with_the_fewest(
    slow: int,
) -> None:
    held: dict[PeerId, int | None] = {PeerId(f"p{stage}{number}"): stage for stage in ALL for number in range(2)}
    costs = placement_of(STAGES, {}).costs
    paces = {peer: (0.25 if stage == slow else 1.0) * 1000.0 / costs[stage or 0] for peer, stage in held.items()}
    assert choose_stage(KnownStages(STAGES, ALL, others=held, paces=paces))[0] == slow
    more: dict[PeerId, int | None] = {**held, A: slow, B: 1 if slow == 2 else 2}
    fewest = next(stage for stage in ALL if stage not in (more[A], more[B]))
    assert choose_stage(KnownStages(STAGES, ALL, others=more, paces=paces, is_in_lanes=True))[0] == fewest


def test_a_joiner_of_a_run_decides_by_its_mode_and_by_what_the_directory_lists(tmp_path: Path) -> None:
    members = {PeerId(f"p{stage}{number}"): (stage,) for stage in ALL for number in range(2)}
    costs = placement_of(STAGES, {}).costs
    paces = {peer: (0.25 if stage == 1 else 1.0) * 1000.0 / costs[stage] for peer, (stage,) in members.items()}
    start, seen = _start((A,), (B,), (C,)), everybody(members)
    for mode, expected in (("synced", 1), ("lanes", 0)):
        config = pipeline_run(pipeline={"mode": mode})
        own = OwnStage(PeerConfig(state_dir=tmp_path), config, STAGES, tmp_path / mode, InlineOffload())
        (tmp_path / mode).mkdir()
        assert trio.run(partial(own.settle, start, D, seen, paces)) == (expected,)


def test_who_has_shown_no_pace_is_taken_for_the_median_and_nobody_for_far_more() -> None:
    held = {A: 0, B: 0, C: 0, D: 0}
    placed = placement_of(STAGES, held, paces={A: 10.0, B: 20.0, C: 1e9})
    speeds = {server.peer: server.speed / placed.costs[0] for server in placed.servers}
    assert speeds == pytest.approx({A: 10.0, B: 20.0, C: 160.0, D: 20.0})


def test_a_founder_has_the_stage_that_the_start_record_gives_it() -> None:
    start = _start((A,), (B,), (C,))
    assert [founded_stage(start, peer, 3) for peer in (A, B, C, D)] == [0, 1, 2, None]


def test_a_stage_is_kept_over_restarts(tmp_path: Path) -> None:
    first = _own(tmp_path)
    assert first.wanted == ()
    assert trio.run(partial(first.settle, _start((A,), (B,), (C,)), D, everybody({A: (0,), B: (1,), C: ()}))) == (0,)
    again = _own(tmp_path)
    assert again.wanted == (0,)
    assert trio.run(partial(again.settle, _start((A,), (B,), (C,)), D, everybody({}))) == (0,)


def test_a_file_that_cannot_be_read_is_no_choice(tmp_path: Path) -> None:
    (tmp_path / "stage").write_text("7")
    assert _own(tmp_path).wanted == ()
    (tmp_path / "stage").write_text("none")
    assert _own(tmp_path).wanted == ()


def test_a_peer_with_room_for_no_stage_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="room for one stage"):
        _own(tmp_path, max_memory_gb=0.5)


def test_text_is_fetched_for_the_first_and_the_last_stage_alone_and_what_all_need_for_every_stage(
    tmp_path: Path,
) -> None:
    texts = [
        ShardEntry(sha256=hex_, num_tokens=8, split=split)
        for hex_, split in (("a" * 64, "train"), ("b" * 64, "heldout"))
    ]
    weights = ShardEntry(sha256="c" * 64, num_tokens=8, split="start")
    dataset = DatasetManifest(source="text", num_documents=1, licence="none", shards=[*texts, weights])
    own = _own(tmp_path)
    assert [own.files(dataset, held) for held in ((), (1,))] == [(weights,), (weights,)]
    assert [own.files(dataset, held) for held in ((0,), (2,))] == [dataset.files, dataset.files]
