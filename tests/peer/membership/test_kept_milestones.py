from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio.testing
from structlog.testing import capture_logs

from peer.membership import kept_milestones
from peer.membership.kept_milestones import (
    FILE_NAME,
    KeptMilestones,
    add_milestones,
    read_milestones,
    write_milestones,
)
from protocol.identity.revocation import fingerprint
from protocol.rounds.lineage.milestones import MAX_HELD
from tests.averaging.rounds.round_world import UNIT, RoundWorld, open_world
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock


def _kept(world: RoundWorld, folder: Path) -> KeptMilestones:
    return KeptMilestones(folder, world.milestones(), InlineOffload())


async def test_milestones_are_there_again_after_a_restart(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_world() as world:
        sealed = [world.milestone_at(commit) for commit in world.commits(3)]
        kept = _kept(world, tmp_path)
        await kept.restore()
        assert (kept.held.sealed, kept.known) == ((), b"")
        await kept.take(sealed[:2], "the host")
        again = _kept(world, tmp_path)
        await again.restore()
        assert again.held.sealed == tuple(sealed[:2])
        assert again.known == fingerprint(sealed[1])
        assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


async def test_what_the_host_gave_at_admission_is_checked_once_the_start_is_known(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_world() as world:
        first, second = (world.milestone_at(commit) for commit in world.commits(2))
        forged = world.milestone_at(world.commits(3)[2], world.parties[0].signer)
        add_milestones(tmp_path, [second])
        add_milestones(tmp_path, [second, forged, first])
        assert read_milestones(tmp_path) == [second, forged, first]
        kept = _kept(world, tmp_path)
        with capture_logs() as logs:
            await kept.restore()
        assert [line["event"] for line in logs] == ["milestone_refused"]
        assert kept.held.sealed == (first, second)


async def test_an_older_milestone_that_is_replayed_after_a_restart_is_named_and_changes_neither_memory_nor_disk(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_world() as world:
        older, newer = (world.milestone_at(commit) for commit in world.commits(2))
        await _kept(world, tmp_path).take([newer], "the host")
        kept = _kept(world, tmp_path)
        await kept.restore()
        before = (tmp_path / FILE_NAME).read_bytes()
        with capture_logs() as logs:
            await kept.take([older], "the host")
        (line,) = logs
        assert (line["event"], line["source"]) == ("milestone_refused", "the host")
        assert "an older milestone, of round 1" in line["reason"]
        assert kept.held.sealed == (newer,)
        assert (tmp_path / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"\0\0", b"\0\0\0\x05abc", b"\xff\xff\xff\xff" + bytes(99)])
def test_of_a_damaged_file_the_entries_before_the_damage_are_read(tmp_path: Path, damage: bytes) -> None:
    write_milestones(tmp_path, [b"one", b"two"])
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(damage)
    assert read_milestones(tmp_path) == [b"one", b"two"]


async def test_a_disk_that_refuses_loses_nothing_in_memory_and_is_told(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world() as world:
        sealed, kept = world.milestone_at(world.commits(1)[0]), _kept(world, tmp_path)
        with _refusing(monkeypatch), capture_logs() as logs:
            await kept.take([sealed], "the host")
            add_milestones(tmp_path, [sealed])
        assert [line["event"] for line in logs] == ["milestones_not_kept"] * 2
        assert kept.held.sealed == (sealed,)
        await kept.take([], "the host")
        assert read_milestones(tmp_path) == [sealed], "the next answer writes it"
        (tmp_path / FILE_NAME).unlink()
        (tmp_path / FILE_NAME).mkdir()
        with capture_logs() as logs:
            await _kept(world, tmp_path).restore()
        assert [line["event"] for line in logs] == ["milestones_not_read"]


@contextmanager
def _refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kept_milestones, "write_durably", refuse)
        yield


async def test_a_host_with_an_old_ledger_is_brought_the_milestones_after_its_head(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_world() as world:
        sealed, kept = [world.milestone_at(commit) for commit in world.commits(8)], _kept(world, tmp_path)
        await kept.take(sealed, "the host")
        assert kept.to_bring(UNIT, 8) == ()
        assert kept.to_bring(UNIT, 6) == tuple(sealed[6:])
        assert kept.to_bring(UNIT, 0) == tuple(sealed[-4:])


async def test_of_very_many_the_newest_are_kept(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_world() as world:
        sealed, kept = [world.milestone_at(commit) for commit in world.commits(MAX_HELD + 2)], _kept(world, tmp_path)
        await kept.take(sealed, "the host")
        assert kept.held.sealed == tuple(sealed[2:])
