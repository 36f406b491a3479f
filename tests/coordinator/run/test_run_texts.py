"""The data sets of a run on the host: which of them is read at a round, and what of them is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.ledger.ledger import open_ledger
from coordinator.run.run_files import RunFiles, open_run
from coordinator.run.run_texts import REASSIGNMENTS, SAMPLE_OWNERS, RunTexts, keep_text, read_owners, read_texts
from coordinator.run.run_texts_core import PackedText
from protocol.errors import RemoteProtocolError, StorageError
from protocol.host.reassignment import Reassignment, seal_reassignment
from protocol.host.reports import PeerReport, SampleLosses
from protocol.identity.revocation import join_entries
from protocol.ids import CommitId, Root, UnitName
from tests.coordinator.run.test_run_router import HOST, run_file

COMMIT = CommitId(b"c" * 32)


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    path = run_file(tmp_path, "reassign_every_rounds = 2")
    return open_run(path, tmp_path / "host", HOST, now_unix_s=1_700_000_000.0)


def _text(run: RunFiles, number: int, from_round: int) -> PackedText:
    """A data set of its own, which differs in its name alone; of a file of its own, too."""
    source = f"text {number}"
    dataset = run.dataset.model_copy(update={"source": source})
    data = dataset.canonical_bytes()
    name = f"{number:064x}"
    (run.folder / "data" / name).write_bytes(data)
    root = Root(bytes.fromhex(dataset.router.root if dataset.router else ""))
    entry = Reassignment(number, from_round, dataset.dataset_id, root, name, len(data), 1_700_000_000 + number)
    return PackedText(seal_reassignment(HOST, run.manifest.run_id, entry), entry, dataset)


def test_each_round_is_read_from_the_data_set_that_was_signed_for_it(run: RunFiles) -> None:
    texts = RunTexts(run, [_text(run, 1, 4), _text(run, 2, 9)])
    assert [texts.at(index)[0] for index in (0, 3, 4, 8, 9)] == [0, 0, 4, 4, 9]
    assert texts.at(3)[1] is run.dataset
    from_round, shares = texts.heldout_at(5)
    assert (from_round, sum(shares)) == (4, pytest.approx(1.0))


def test_a_peer_is_told_the_newest_entry_unless_it_has_heard_of_it(run: RunFiles) -> None:
    text = _text(run, 1, 4)
    texts = RunTexts(run, [text])
    assert texts.newer_than(0) == texts.newer_than(1_700_000_000) == text.sealed
    assert texts.newer_than(1_700_000_001) == b""
    assert RunTexts(run).newer_than(0) == b""


def test_the_newest_two_are_found_again_and_what_only_older_ones_name_is_deleted(run: RunFiles, tmp_path: Path) -> None:
    texts = [_text(run, number, 4 * number) for number in (1, 2, 3)]
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        assert read_texts(run.folder, run.manifest, ledger) == ()
        assert read_owners(run, ledger) == ()
        assert [text.entry.number for text in keep_text(run, ledger, texts)] == [2, 3]
        assert [text.entry for text in read_texts(run.folder, run.manifest, ledger)] == [
            text.entry for text in texts[1:]
        ]
    left = {path.name for path in (run.folder / "data").iterdir()}
    assert texts[0].entry.manifest_sha256 not in left
    assert left >= {file.sha256 for file in run.dataset.files} | {"dataset.json"}


def test_whose_documents_are_whose_is_what_the_newest_text_says_and_what_the_ledger_said_where_it_says_nothing(
    run: RunFiles, tmp_path: Path
) -> None:
    silent, count = _text(run, 1, 4), run.dataset.sample_windows
    assert run.dataset.router is not None
    router = run.dataset.router.model_copy(update={"sample_owners": [1] * count})
    told = replace(silent, dataset=run.dataset.model_copy(update={"router": router}))
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        ledger.put(SAMPLE_OWNERS, bytes(count))
        keep_text(run, ledger, [told, silent])
        assert read_owners(run, ledger) == (0,) * count
        keep_text(run, ledger, [silent, told])
        assert read_owners(run, ledger) == (1,) * count


def test_what_is_lost_or_not_the_hosts_own_is_said_at_the_start(run: RunFiles, tmp_path: Path) -> None:
    text = _text(run, 1, 4)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        keep_text(run, ledger, [text])
        (run.folder / "data" / text.entry.manifest_sha256).unlink()
        with pytest.raises(StorageError, match=r"the re-assigned data in .* is damaged.*restore a copy"):
            read_texts(run.folder, run.manifest, ledger)
        ledger.put(REASSIGNMENTS, join_entries([text.sealed[:-1] + b"?"]))
        with pytest.raises(StorageError, match="bad signature"):
            read_texts(run.folder, run.manifest, ledger)


def test_losses_of_no_sample_of_the_run_refuse_the_whole_report(run: RunFiles) -> None:
    texts, count = RunTexts(run), run.dataset.sample_windows
    fine = SampleLosses(COMMIT, 1, (1.0,) * count)
    report = PeerReport("training", "", UnitName("trunk"), sample_losses=(fine,))
    texts.check(report)
    texts.take(report, {})
    assert not texts.book.measured, "of a commit that the host does not know"
    texts.take(report, {COMMIT: 2})
    assert texts.book.measured[COMMIT].losses == {1: fine.nats}
    for wrong in (replace(fine, expert=2), replace(fine, nats=fine.nats[1:])):
        with pytest.raises(RemoteProtocolError, match=rf"experts below 2, {count} windows each"):
            texts.check(replace(report, sample_losses=(wrong,)))
