"""Moments of one number of cards are taken up by another, whole or cut, and only if nothing of them is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peer.training.plan.boxes import Box, box_of, whole_box
from peer.training.plan.layout import Mesh
from peer.training.replica.moments_file import Holding, OfNoUse, read_moments, write_moments

SHAPES = ((7, 4), (4, 6), (5,))
SPLIT = (None, 1, None)
OWNERS = (0, 0, 0, 1, 2)
"""As of AdamW for the first parameter, with a count of steps, and of Muon for the others."""

WHOLE = [
    torch.arange(28.0).view(7, 4).bfloat16(),
    torch.arange(28.0).view(7, 4).bfloat16() + 100,
    torch.tensor(9.0),
    torch.arange(24.0).view(4, 6).bfloat16(),
    torch.arange(5.0).bfloat16(),
]


def _holding(mesh: Mesh, rank: int, layout: str = "model") -> Holding:
    boxes = tuple(box_of(shape, mesh, rank, dim) for shape, dim in zip(SHAPES, SPLIT, strict=True))
    return Holding(layout, boxes, OWNERS)


def _path(folder: Path, mesh: Mesh, rank: int, base: str = "moments") -> Path:
    return folder / (f"{base}-{rank}-of-{mesh.num_ranks}.safetensors" if mesh.num_ranks > 1 else f"{base}.safetensors")


def _cut(mesh: Mesh, rank: int) -> list[torch.Tensor]:
    boxes = [_holding(mesh, rank).boxes[owner] for owner in OWNERS]
    return [
        moment[box.slices].contiguous() if moment.dim() else moment for moment, box in zip(WHOLE, boxes, strict=True)
    ]


def _save(folder: Path, mesh: Mesh, tokens: int = 10, base: str = "moments") -> None:
    for rank in range(mesh.num_ranks):
        write_moments(_path(folder, mesh, rank, base), _cut(mesh, rank), _holding(mesh, rank), tokens)


def _read(folder: Path, mesh: Mesh, rank: int, usable: range = range(50)) -> tuple[int, list[torch.Tensor]]:
    return read_moments(_path(folder, mesh, rank), _holding(mesh, rank), usable)


@pytest.mark.parametrize("before", [Mesh(), Mesh(shard=2), Mesh(shard=4), Mesh(shard=2, tensor=2), Mesh(tensor=2)])
@pytest.mark.parametrize("now", [Mesh(), Mesh(shard=3), Mesh(shard=2, tensor=2)])
def test_each_process_has_its_part_whatever_number_of_cards_saved_them(tmp_path: Path, before: Mesh, now: Mesh) -> None:
    _save(tmp_path, before)
    for rank in range(now.num_ranks):
        tokens, found = _read(tmp_path, now, rank)
        assert tokens == 10
        assert all(map(torch.equal, found, _cut(now, rank)))


def test_the_newest_are_taken_and_the_own_of_equal_ones(tmp_path: Path) -> None:
    _save(tmp_path, Mesh(), 10)
    _save(tmp_path, Mesh(shard=2), 20)
    assert _read(tmp_path, Mesh(), 0)[0] == 20
    assert _read(tmp_path, Mesh(), 0, range(15))[0] == 10, "later ones are of another state of the run"
    other = [moment + 1 for moment in WHOLE]
    write_moments(tmp_path / "moments-1.safetensors", other, _holding(Mesh(), 0), 20)
    found = read_moments(tmp_path / "moments-1.safetensors", _holding(Mesh(), 0), range(50))[1]
    assert torch.equal(found[0], other[0])


def test_a_set_without_one_of_its_files_is_none(tmp_path: Path) -> None:
    _save(tmp_path, Mesh(shard=2))
    _path(tmp_path, Mesh(shard=2), 1).unlink()
    with pytest.raises(FileNotFoundError):
        _read(tmp_path, Mesh(), 0)


def test_files_of_different_times_or_of_another_model_are_no_set(tmp_path: Path) -> None:
    mesh = Mesh(shard=2)
    _save(tmp_path, mesh)
    write_moments(_path(tmp_path, mesh, 1), _cut(mesh, 1), _holding(mesh, 1), 11)
    with pytest.raises(OfNoUse, match="of different times"):
        _read(tmp_path, mesh, 0)
    write_moments(_path(tmp_path, mesh, 1), _cut(mesh, 1), _holding(mesh, 1, "another"), 10)
    with pytest.raises(OfNoUse, match="of another model"):
        _read(tmp_path, Mesh(), 0)


def test_parts_that_do_not_cover_a_parameter_are_damage_and_older_ones_are_taken(tmp_path: Path) -> None:
    boxes = (Box((0, 0), (3, 4)), whole_box((4, 6)), whole_box((5,)))
    cut = [moment[:3] if moment.shape == (7, 4) else moment for moment in WHOLE]
    write_moments(tmp_path / "moments.safetensors", cut, Holding("model", boxes, OWNERS), 12)
    with pytest.raises(OfNoUse, match="damaged"):
        _read(tmp_path, Mesh(), 0)
    _save(tmp_path, Mesh(shard=2), 11)
    assert _read(tmp_path, Mesh(), 0)[0] == 11
