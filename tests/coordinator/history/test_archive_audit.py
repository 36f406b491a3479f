"""The archive of certificates is checked against the ledger: whole files are listed, others named with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio.testing

from coordinator.history.archive_audit import audited_files
from coordinator.history.certificate_archive import read_archive, write_archive
from coordinator.history.history_rows import past_blocks
from protocol.errors import StorageError
from tests.coordinator.chain_world import UNIT, Chain
from tests.coordinator.history.history_world import HistoryWorld, make_small, open_history
from tests.coordinator.progress.test_chain_log import grown

Clock = trio.testing.MockClock


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


async def _archived(world: HistoryWorld, chain: Chain) -> None:
    await world.history.restore()
    for raw in chain.certificates:
        world.take(chain, [raw])
        await world.look(2)


async def test_whole_files_are_listed_with_their_rounds_from_the_start_on(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    chain = grown(Chain(), 30)
    with open_history(tmp_path, chain) as world:
        assert not list(audited_files(world.ledger, tmp_path / "archive"))
        await _archived(world, chain)
        files = list(audited_files(world.ledger, tmp_path / "archive"))
        assert [(each.first_round, each.last_round) for each in files] == [(1, 3), (4, 7), (8, 11), (12, 15), (16, 19)]
        assert {each.unit for each in files} == {UNIT}
        assert sum(each.num_certificates for each in files) == 19
        assert all(each.num_bytes == (tmp_path / "archive" / each.file).stat().st_size for each in files)


async def test_a_file_with_commits_of_a_lineage_that_was_left_is_whole(tmp_path: Path, autojump_clock: Clock) -> None:
    trunk = grown(Chain(), 2)
    chain, left = grown(trunk.clone(), 20), grown(trunk.clone(), 2, tokens=1)
    with open_history(tmp_path, chain) as world:
        world.take(trunk)
        world.take(left, left.certificates[2:])
        world.take(chain, chain.certificates[2:])
        await world.history.restore()
        await world.look(9)
        first, *_ = audited_files(world.ledger, tmp_path / "archive")
        assert (first.first_round, first.last_round, first.num_certificates) == (1, 3, 4)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _turned(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (Path.unlink, "could not be read"),
        (_cut, "is damaged"),
        (_turned, "is damaged"),
        (lambda path: path.write_bytes(b""), "is damaged"),
    ],
)
async def test_a_file_that_is_not_as_it_was_written_is_named_with_the_remedy(
    tmp_path: Path, autojump_clock: Clock, damage: Callable[[Path], object], found: str
) -> None:
    chain = grown(Chain(), 30)
    with open_history(tmp_path, chain) as world:
        await _archived(world, chain)
        second = list(past_blocks(world.ledger, UNIT))[1]
        damage(tmp_path / "archive" / second.file)
        with pytest.raises(StorageError, match=f"{second.file} {found}") as refused:
            list(audited_files(world.ledger, tmp_path / "archive"))
        assert "expected" in refused.value.one_line()


@pytest.mark.parametrize(
    ("certificates", "found"),
    [
        (lambda raws: raws[:-1], "does not have the certificate of round 7"),
        (lambda raws: [*raws[:-1], b"no certificate"], "has a certificate that cannot be read"),
    ],
)
async def test_a_whole_file_with_other_rounds_than_the_ledger_names_is_refused(
    tmp_path: Path,
    autojump_clock: Clock,
    certificates: Callable[[list[bytes]], list[bytes]],
    found: str,
) -> None:
    chain = grown(Chain(), 30)
    with open_history(tmp_path, chain) as world:
        await _archived(world, chain)
        second, folder = list(past_blocks(world.ledger, UNIT))[1], tmp_path / "archive"
        digest = write_archive(folder, second.file, certificates(read_archive(folder / second.file, second.sha256)))
        with world.ledger.transaction() as db:
            db.execute("UPDATE history SET sha256 = ? WHERE file = ?", (digest, second.file))
        with pytest.raises(StorageError, match=found):
            list(audited_files(world.ledger, folder))
