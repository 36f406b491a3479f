from __future__ import annotations

import os
from pathlib import Path

import pytest

from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.head_vector import VECTOR_LOG, HeadVector
from averaging.state.log_entries import LOG_NAME
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.membership.incarnation import remember_unit, take_incarnation
from peer.session.damaged_logs import has_begun_anew, set_aside
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.messages.record import Ballot

FIRST, SECOND = UnitName("fragment-0"), UnitName("fragment-1")
BASE = CommitId(b"b" * 32)


async def _voted(folder: Path) -> int:
    """Two units with three promises each; the disk's number."""
    number = take_incarnation(folder)
    for unit in (FIRST, SECOND):
        remember_unit(folder, unit)
        unit_log = UnitLog(FileStorage(folder / unit, ThreadOffload()))
        for attempt in (1, 2, 3):
            await unit_log.log_promise(BASE, Ballot(attempt, PeerId("somebody")))
    return number


def _flip(path: Path, place: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    return bytes(data)


async def test_a_log_damaged_before_its_end_is_kept_aside_and_the_disk_votes_under_another_number(
    tmp_path: Path,
) -> None:
    number = await _voted(tmp_path)
    path = tmp_path / SECOND / LOG_NAME
    data = _flip(path, 20)
    (sentence,) = set_aside(tmp_path)
    assert "fragment-1/rounds.log is damaged at byte 0 of" in sentence
    assert "it is kept as rounds.log.damaged-1" in sentence
    assert "\n" not in sentence
    assert (path.parent / "rounds.log.damaged-1").read_bytes() == data
    assert has_begun_anew(path.parent)
    assert not has_begun_anew(tmp_path / FIRST)
    other = take_incarnation(tmp_path)
    assert other != number
    assert take_incarnation(tmp_path) == other
    assert set_aside(tmp_path) == ()


async def test_a_sound_log_and_one_whose_last_record_is_cut_short_are_left_alone(tmp_path: Path) -> None:
    number = await _voted(tmp_path)
    path = tmp_path / FIRST / LOG_NAME
    path.write_bytes(path.read_bytes()[:-3])
    assert set_aside(tmp_path) == ()
    assert take_incarnation(tmp_path) == number
    assert len(list(path.parent.glob("rounds.log*"))) == 1


async def test_an_earlier_damaged_log_is_kept_beside_the_next_one(tmp_path: Path) -> None:
    for kept in (1, 2):
        await _voted(tmp_path)
        _flip(tmp_path / FIRST / LOG_NAME, 20)
        assert f"rounds.log.damaged-{kept}" in set_aside(tmp_path)[0]
    assert len(list((tmp_path / FIRST).glob("rounds.log.damaged-*"))) == 2


async def test_a_damaged_log_of_moves_is_kept_aside_and_costs_no_vote(tmp_path: Path) -> None:
    number = await _voted(tmp_path)
    storage = FileStorage(tmp_path, ThreadOffload())
    for record in (b"M" + bytes(40), b"D"):
        await storage.append(VECTOR_LOG, record)
    _flip(tmp_path / VECTOR_LOG, 20)
    (sentence,) = set_aside(tmp_path)
    assert sentence.endswith("it is kept as heads.log.damaged-1, its content is also in the logs of the units")
    assert take_incarnation(tmp_path) == number
    assert not has_begun_anew(tmp_path / FIRST)
    await HeadVector(FileStorage(tmp_path, ThreadOffload())).finish({})


async def test_a_crash_before_the_log_is_renamed_has_given_up_the_number_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = await _voted(tmp_path)
    _flip(tmp_path / FIRST / LOG_NAME, 20)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(StorageError, match="damaged and could not be renamed"):
            set_aside(tmp_path)
    assert take_incarnation(tmp_path) != number
    assert len(set_aside(tmp_path)) == 1
