from __future__ import annotations

from pathlib import Path

import pytest
import torch

from averaging.data.shards import TokenReader
from peer.training.replica.text_batches import Batches
from tests.peer.training_world import training_plan

WINDOW = 5
STARTS = (7, 0, 31, 2, 90, 11)


def _parts(starts: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [starts[begin : begin + size] for begin in range(0, len(starts), size)]


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_step_reads_its_windows_in_order_whatever_the_micro_batch(tmp_path: Path, is_ahead: bool, size: int) -> None:
    reader = TokenReader(training_plan(tmp_path).train_shards, 2)
    batches = Batches(torch.device("cpu"), WINDOW, is_ahead=is_ahead)
    found = list(batches.of_step(reader, _parts(STARTS, size)))
    assert [len(tokens_BT) for tokens_BT in found] == [size] * (len(STARTS) // size)
    assert torch.cat(found).tolist() == [reader.read(start, WINDOW).tolist() for start in STARTS]


def test_a_step_that_is_given_up_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    reader = TokenReader(training_plan(tmp_path).train_shards, 2)
    batches = Batches(torch.device("cpu"), WINDOW, is_ahead=True)
    next(batches.of_step(reader, _parts(STARTS, 2)))
    found = torch.cat(list(batches.of_step(reader, _parts(STARTS[::-1], 2))))
    assert found.tolist() == [reader.read(start, WINDOW).tolist() for start in STARTS[::-1]]
