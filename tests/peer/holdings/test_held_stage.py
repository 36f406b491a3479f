"""Which stage a peer holds: what it held, what it began with, what the run lacks; and never one that it has no room for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from averaging.data.shards import DatasetManifest, ShardEntry, TokenizerEntry
from peer.holdings.held_stage import KnownStages, OwnStage, choose_stage, founded_stage, placement_of
from peer.holdings.verified_holders_core import everybody
from peer.settings.config import PeerConfig
from protocol.errors import MachineError
from protocol.ids import PeerId, Root
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.tensors.stage_schema import StageMap, stage_schema, stage_unit
from tests.protocol.run.test_pipeline_section import pipeline_run
from tests.virtual import InlineOffload

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


@pytest.mark.parametrize("fewest", ALL)
def test_a_joiner_takes_the_stage_with_the_fewest_replicas_whatever_each_costs(fewest: int) -> None:
    held: dict[PeerId, int | None] = {
        PeerId(f"p{stage}{number}"): stage for stage in ALL for number in range(2 if stage == fewest else 3)
    }
    assert choose_stage(KnownStages(STAGES, ALL, others=held))[0] == fewest


def test_a_joiner_of_a_run_decides_by_what_the_directory_lists(tmp_path: Path) -> None:
    members = {PeerId(f"p{stage}{number}"): (stage,) for stage in ALL for number in range(1 if stage == 1 else 2)}
    assert trio.run(partial(_own(tmp_path).settle, _start((A,), (B,), (C,)), D, everybody(members))) == (1,)


def test_all_peers_and_stages_count_alike() -> None:
    placed = placement_of(STAGES, {A: 0, B: 0, C: 1, D: 2})
    assert placed.rates() == [2.0, 1.0, 1.0]


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
    words = TokenizerEntry(sha256="c" * 64, num_bytes=8, vocab_size=9, end=8)
    dataset = DatasetManifest(source="text", num_documents=1, licence="none", shards=texts, tokenizer=words)
    own = _own(tmp_path)
    assert [list(own.files(dataset, held)) for held in ((), (1,))] == [[words], [words]]
    assert [list(own.files(dataset, held)) for held in ((0,), (2,))] == [list(dataset.files)] * 2


def test_of_the_weights_that_a_run_begins_with_a_stage_fetches_those_with_rows_of_its_own(tmp_path: Path) -> None:
    num_values = [stage_schema(STAGES, stage).num_elements for stage in ALL]
    within = [count // 2 for count in num_values]
    # one within each stage, and one across each border
    cuts = [within[0], num_values[0] - within[0] + within[1], num_values[1] - within[1] + within[2]]
    cuts.append(num_values[2] - within[2])
    weights = [
        ShardEntry(sha256=f"{number:064x}", num_tokens=2 * count, split="start") for number, count in enumerate(cuts)
    ]
    text = ShardEntry(sha256="a" * 64, num_tokens=8, split="train")
    dataset = DatasetManifest(source="text", num_documents=1, licence="none", shards=[text, *weights])
    own = _own(tmp_path)
    fetched = {
        held: [entry for entry in weights if entry in own.files(dataset, held)] for held in ((), (0,), (1,), (2,))
    }
    assert fetched == {(): [], (0,): weights[:2], (1,): weights[1:3], (2,): weights[2:]}
