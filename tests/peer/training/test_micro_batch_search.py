from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.machine.memory_core import MemoryUse
from peer.training import micro_batch_search
from peer.training.local_training import LocalTrainer
from peer.training.micro_batch_search import MicroBatchSearch, fitting_size, sizes_from
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.peer.pretended_card import PretendedCard
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan


def _times(monkeypatch: pytest.MonkeyPatch, time_of: Callable[[int], float]) -> None:
    monkeypatch.setattr(MicroBatchSearch, "time_s", lambda _search, size: time_of(size))


@pytest.mark.parametrize(("sequences", "most", "size"), [(24, 5, 4), (24, 24, 24), (24, 99, 24), (7, 6, 1), (7, 0, 1)])
def test_a_micro_batch_divides_the_sequences_of_a_step(sequences: int, most: int, size: int) -> None:
    assert fitting_size(sequences, most) == size


@pytest.mark.parametrize(
    ("sequences", "first", "sizes"), [(32, 4, [4, 8, 16, 32]), (24, 4, [4, 8, 24]), (7, 4, [1, 7]), (1, 4, [1])]
)
def test_the_search_tries_divisors_each_at_least_twice_the_one_before(
    sequences: int, first: int, sizes: list[int]
) -> None:
    assert list(sizes_from(sequences, first)) == sizes


def test_the_micro_batch_is_the_fastest_per_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = training_plan(tmp_path, inner=InnerSection(learning_rate=0.01, batch_tokens=16 * 32), micro_batch=0)
    trainer = LocalTrainer(plan)
    times_s = {4: 4.0, 8: 5.0, 16: 12.0, 32: 30.0}
    _times(monkeypatch, times_s.__getitem__)
    assert trainer.find_micro_batch() == trainer.micro_batch == 8


def test_a_micro_batch_that_is_hardly_faster_does_not_take_twice_the_memory_and_what_was_tried_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(micro_batch_search, "give_back_memory", lambda device: given.append(device.type))
    plan = training_plan(tmp_path, inner=InnerSection(learning_rate=0.01, batch_tokens=16 * 32), micro_batch=0)
    trainer = LocalTrainer(plan)
    times_s = {4: 4.0, 8: 7.8, 16: 15.3, 32: 30.0}
    _times(monkeypatch, times_s.__getitem__)
    assert trainer.find_micro_batch() == 32, "6% in all"
    _times(monkeypatch, {**times_s, 32: 30.5}.__getitem__)
    assert trainer.find_micro_batch() == 4
    assert given == ["cpu", "cpu"]


@pytest.mark.parametrize(("first_failure", "found"), [(4, 1), (8, 4), (64, 32)])
def test_what_does_not_fit_in_memory_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_failure: int, found: int
) -> None:
    plan = training_plan(tmp_path, inner=InnerSection(learning_rate=0.01, batch_tokens=16 * 32), micro_batch=0)
    trainer = LocalTrainer(plan)

    def time_of(size: int) -> float:
        if size >= first_failure:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
        return 1.0  # whatever the size

    _times(monkeypatch, time_of)
    assert trainer.find_micro_batch() == found


def test_sizes_are_tried_with_the_passes_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that keep whole layers hold whole gradients until the last pass of a step."""
    plan = training_plan(tmp_path, inner=InnerSection(learning_rate=0.01, batch_tokens=16 * 8), micro_batch=0)
    trainer = LocalTrainer(plan)
    passes: list[bool] = []
    monkeypatch.setattr(trainer.replica, "begin_pass", lambda *, is_last: passes.append(is_last))
    trainer.find_micro_batch()
    assert passes == [False, False, True, *(True,) * 3], "of 4 sequences, then of all 8 at once"


def test_the_owners_limit_counts_the_other_islands_that_search_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def may_double(_most: int, _later: int, _before: MemoryUse, _after: MemoryUse, *, num_processes: int) -> bool:
        told.append(num_processes)
        return False

    monkeypatch.setattr(micro_batch_search, "may_double", may_double)
    LocalTrainer(training_plan(tmp_path, micro_batch=0, max_memory_bytes=1 << 40, stride=3)).find_micro_batch()
    assert told == [3]


def test_another_error_in_the_search_is_not_taken_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = LocalTrainer(training_plan(tmp_path, micro_batch=0))

    def fail(_size: int) -> float:
        raise RuntimeError("shapes do not fit")

    _times(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="shapes"):
        trainer.find_micro_batch()


@pytest.mark.parametrize(("room_bytes", "found"), [(40, 1), (80, 2), (319, 4), (320, 8), (10_000, 16)])
def test_the_search_ends_before_a_size_that_would_pass_the_memory_its_owner_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int, found: int
) -> None:
    moments_bytes = 8 * model_schema(MODEL).num_elements
    plan = training_plan(tmp_path, inner=InnerSection(learning_rate=0.01, batch_tokens=16 * 16), micro_batch=0)
    trainer = LocalTrainer(plan.model_copy(update={"max_memory_bytes": 1000 + moments_bytes + room_bytes}))
    sizes: list[int] = []

    def time_of(size: int) -> float:
        sizes.append(size)
        return 1.0

    def use() -> MemoryUse:  # 40 bytes a sequence, of which the first pass is forgotten
        return MemoryUse(family_bytes=1000, own_bytes=300, own_peak_bytes=300 + 40 * sizes[-1] * (len(sizes) > 1))

    _times(monkeypatch, time_of)
    monkeypatch.setattr(micro_batch_search, "memory_use", use)
    trainer.find_micro_batch()
    assert sizes == [1, *(size for size in (1, 2, 4, 8, 16) if size <= found)]


def test_a_real_search_under_a_limit_that_is_used_up_already_trains_one_sequence_at_a_time(tmp_path: Path) -> None:
    trainer = LocalTrainer(training_plan(tmp_path, micro_batch=0, max_memory_bytes=1))
    assert trainer.find_micro_batch() == 1
    trainer = LocalTrainer(training_plan(tmp_path, micro_batch=0, max_memory_bytes=1 << 60))
    assert trainer.find_micro_batch() >= 1
    assert trainer.step().tokens_ready == BATCH_TOKENS


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_first_step_after_a_search_fits_where_the_search_fitted(tmp_path: Path, optimizer: str) -> None:
    inner = InnerSection(optimizer=optimizer, learning_rate=0.01, batch_tokens=16 * 32)
    plan = training_plan(tmp_path, inner=inner, micro_batch=0)
    with PretendedCard() as card:
        trainer = LocalTrainer(plan)
        base_bytes = card.live_bytes
        card.most_bytes = base_bytes * 6
        with card.searched():
            trainer.find_micro_batch()
        assert trainer.micro_batch < 32, "the card is too small for all of a step"
        trainer.step()
        assert card.peak_bytes <= card.most_bytes
