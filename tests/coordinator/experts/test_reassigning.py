"""Documents are sent to experts anew: packed by where losses are lowest, signed, remembered; or nothing changes at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from averaging.data.packing.document_features import Embeddings, fit_embeddings
from averaging.data.packing.document_router import fit_router, refit_router
from averaging.data.packing.expert_shards import expert_shards, read_router
from averaging.data.shards import DatasetManifest, ShardCache, TokenReader
from averaging.data.sources.sources import open_source
from averaging.data.tokenizer import ByteTokenizer, decode_tokens
from averaging.data.vocabulary import FileTokenizer
from averaging.network.seams.clocks import VirtualClock
from averaging.network.seams.offload import InlineOffload
from coordinator.experts.reassigning import Reassigner, Repacked
from coordinator.ledger.ledger import CheckpointRow, open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.run.run_files import CHECKPOINT_FOLDER, RunFiles, open_run, run_tokenizer
from coordinator.run.run_router import packed_texts, sample_of
from coordinator.run.run_texts import RunTexts, read_owners, read_texts
from coordinator.run.run_texts_core import PackedText
from protocol.errors import StorageError
from protocol.host.reassignment import LEAD_ROUNDS, Reassignment, seal_reassignment
from protocol.host.reports import PeerReport, SampleLosses
from protocol.ids import CommitId, Root, UnitName
from protocol.run.experts_section import RouterFeatures
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of_experts, decoder
from tests.coordinator.run.test_run_router import HOST, run_file

T = TypeVar("T")


@dataclass
class _World:
    run: RunFiles
    texts: RunTexts
    reassigner: Reassigner
    index: int = 0

    def measured(self, index: int, losses: dict[int, list[float]]) -> None:
        """Holders measure at this round of the trunk, which is the newest."""
        self.index = index
        commit = CommitId(bytes([index]) * 32)
        samples = tuple(SampleLosses(commit, expert, tuple(nats)) for expert, nats in losses.items())
        self.texts.take(PeerReport("training", "", UnitName("trunk"), sample_losses=samples), {commit: index})

    def kinds(self) -> list[str]:
        """Of each document of the sample, "code" or "prose"."""
        config = self.run.manifest.config
        read = packed_texts(config, open_source(config.data, self.run.folder.parent))
        kept = run_tokenizer(self.run)
        sample = sample_of(config, read, FileTokenizer(kept.data, "it", kept.end) if kept else ByteTokenizer())
        return ["code" if text.startswith(b"def") else "prose" for text in (sample.prefixes if sample else ())]

    def by_kind(self) -> dict[int, list[float]]:
        """Losses as of experts that know one kind of text each."""
        kinds = self.kinds()
        return {expert: [1.0 if kind == own else 3.0 for kind in kinds] for expert, own in enumerate(("code", "prose"))}


def _of_digits(documents: Sequence[bytes]) -> Embeddings:
    """They tell the numbers that are in both kinds of text, and little else."""
    values_VD = np.zeros((ByteTokenizer.vocab_size, 4))
    values_VD[ord("0") : ord("9") + 1] = np.random.default_rng(1).standard_normal((10, 4))
    return fit_embeddings(values_VD, "seed 1", documents, ByteTokenizer())


@contextmanager
def _world(folder: Path, tokenizer: str = "bytes", features: RouterFeatures = "grams") -> Iterator[_World]:
    """A run whose first router mixes two kinds of text; one of embeddings goes by digits."""
    lines = "reassign_every_rounds = 2", 'router = "router"', f'router_features = "{features}"'
    path = run_file(folder, *lines)
    path.write_text(path.read_text().replace("[data]", f'[data]\ntokenizer = "{tokenizer}"'))
    documents = [file.read_bytes() for file in sorted((folder / "texts").iterdir())]
    known_by = _of_digits(documents) if features == "embeddings" else None
    fitted = fit_router(documents, 2, embeddings=known_by)
    mixing = refit_router(fitted, documents, [number % 2 for number in range(len(documents))])
    (folder / "router").write_bytes(mixing.to_bytes())
    run = open_run(path, folder / "host", HOST, now_unix_s=1_700_000_000.0)
    with open_ledger(folder / "host" / "ledger.sqlite3") as ledger:
        texts, offload = (
            RunTexts(run, read_texts(run.folder, run.manifest, ledger), read_owners(run, ledger)),
            InlineOffload(),
        )
        writer = LedgerWriter(ledger, offload)
        reassigner = Reassigner(run, folder, texts, writer, HOST, VirtualClock(), offload, lambda: 0)
        world = _World(run, texts, reassigner)
        reassigner.head_index = lambda: world.index
        yield world


def _code_share(world: _World, dataset: DatasetManifest, expert: int) -> float:
    """How much of an expert's training documents is code."""
    paths = [world.run.folder / "data" / entry.sha256 for entry in expert_shards(dataset, expert)]
    reader = TokenReader(paths)
    text = decode_tokens(np.asarray(reader.read(0, reader.num_tokens)))
    return text.count("def f") / (text.count("def f") + text.count("In chapter"))


async def test_documents_go_where_their_loss_is_lowest_and_a_start_finds_it_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    with _world(tmp_path) as world:
        first = world.run.dataset
        assert all(0.1 < _code_share(world, first, expert) < 0.9 for expert in range(2))
        await world.reassigner.look()
        assert world.texts.newest is None, "nothing was measured"
        entries = []
        for index in range(2, 40, 2):
            world.measured(index, world.by_kind())
            await world.reassigner.look()
            if world.texts.newest is not None and world.texts.newest.entry not in entries:
                entries.append(world.texts.newest.entry)
                assert entries[-1].from_round == index + LEAD_ROUNDS
        newest = world.texts.newest
        assert newest is not None
        assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
        assert len({entry.signed_unix_s for entry in entries}) == len(entries) >= 1
        after = [_code_share(world, newest.dataset, expert) for expert in range(2)]
        before = [_code_share(world, first, expert) for expert in range(2)]
        assert after[0] - after[1] > before[0] - before[1] + 0.3
        cache = ShardCache(world.run.folder / "data")
        assert read_router(newest.dataset, 2, cache).root == newest.entry.router_root
        assert all(cache.has(file) for file in newest.dataset.files)
        assert newest.dataset.part("sample") == first.part("sample")
        assert newest.dataset.num_documents == first.num_documents
        taken, owners = world.texts.taken, world.texts.owners
    with _world_again(tmp_path) as again:
        assert (again.taken, again.owners) == (taken, owners)


async def test_text_of_a_tokenizer_is_packed_with_the_runs_own(tmp_path: Path, autojump_clock: object) -> None:
    with _world(tmp_path, "bpe") as world:
        index = 0
        while world.texts.newest is None:
            index += 2
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        first, anew = world.run.dataset, world.texts.newest.dataset
        assert anew.tokenizer == first.tokenizer is not None
        assert anew.dataset_id != first.dataset_id
        assert anew.text_bytes is not None
        assert first.text_bytes is not None
        assert anew.text_bytes.heldout == first.text_bytes.heldout


async def test_documents_that_are_known_by_embeddings_come_to_be_known_by_those_of_the_newest_checkpoint(
    tmp_path: Path, autojump_clock: object
) -> None:
    with _world(tmp_path, features="embeddings") as world:
        path = checkpoint_of_experts(world.run.folder / CHECKPOINT_FOLDER, decoder(vocab_size=257))
        row = CheckpointRow(CommitId(b"c" * 32), UnitName("trunk"), 3, 600, Root(bytes(32)), path.name, 7)
        await world.reassigner.ledger.run(lambda ledger: ledger.add_checkpoint(row))
        for index in range(2, 40, 2):
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        newest, cache = world.texts.newest, ShardCache(world.run.folder / "data")
        assert newest is not None
        router = read_router(newest.dataset, 2, cache, features="embeddings", tokenizer=ByteTokenizer())
        assert router.root == newest.entry.router_root
        assert router.embeddings is not None
        assert router.embeddings.origin == "round 3"
        assert _code_share(world, newest.dataset, 0) > _code_share(world, newest.dataset, 1) + 0.3


async def test_a_ledger_that_refuses_leaves_everything_as_it_was_and_the_next_losses_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], autojump_clock: object
) -> None:
    class Full:
        async def run(self, _: object) -> None:
            raise StorageError("the ledger could not be used (disk full)", "space", "free some")

    with _world(tmp_path) as world:
        ledger, world.reassigner.ledger = world.reassigner.ledger, Full()  # type: ignore[assignment]
        for index in (2, 4, 6):
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        assert world.texts.newest is None
        assert world.texts.owners == ()
        assert "documents_not_reassigned" in capsys.readouterr().out
        world.reassigner.ledger = ledger
        for index in range(8, 30, 2):
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        assert world.texts.newest is not None


@contextmanager
def _world_again(folder: Path) -> Iterator[RunTexts]:
    run = open_run(folder / "run.toml", folder / "host", HOST, now_unix_s=1_700_000_000.0)
    with open_ledger(folder / "host" / "ledger.sqlite3") as ledger:
        yield RunTexts(run, read_texts(run.folder, run.manifest, ledger), read_owners(run, ledger))


async def test_what_was_signed_is_read_before_anything_is_signed_again(tmp_path: Path, autojump_clock: object) -> None:
    with _world(tmp_path) as world:
        index = 0
        while world.texts.newest is None:
            index += 2
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        entry = world.texts.newest.entry
        world.index = entry.from_round - 1
        world.texts.book = world.texts.book.with_losses(SampleLosses(CommitId(b"x" * 32), 0, (1.0,)), index)
        await world.reassigner.look()
        assert world.texts.newest.entry == entry


async def test_a_text_says_whose_the_documents_of_the_sample_are_for_a_ledger_that_loses_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    with _world(tmp_path) as world:
        index = 0
        while world.texts.newest is None:
            index += 2
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        assert world.texts.newest.dataset.sample_owners == world.texts.owners
        assert len(set(world.texts.owners)) == 2


def _brought_back(world: _World, from_round: int) -> PackedText:
    """What this host signed before its ledger was an old copy: the run's first text again, whose files are here."""
    name = "e" * 64
    dataset = world.run.dataset.model_copy(update={"source": "packed before"})
    data = dataset.canonical_bytes()
    (world.run.folder / "data" / name).write_bytes(data)
    root = Root(bytes.fromhex(dataset.router.root if dataset.router else ""))
    entry = Reassignment(7, from_round, dataset.dataset_id, root, name, len(data), 1_600_000_000)
    return PackedText(seal_reassignment(HOST, world.run.manifest.run_id, entry), entry, dataset)


async def test_what_comes_back_while_text_is_packed_stands_and_nothing_is_signed_whose_files_it_deleted(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The text that comes back deletes what neither it nor those before it name: also what has just been packed."""
    with _world(tmp_path) as world:
        lost = _brought_back(world, 3)
        offload, texts = world.reassigner.offload, world.texts

        class Slow(InlineOffload):
            async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
                found = await super().run(function, cost_s=cost_s)
                if isinstance(found, Repacked) and found.dataset is not None:
                    assert await texts.add(world.reassigner.ledger, lost)
                return found

        world.reassigner.offload = Slow()
        index = 0
        while texts.newest is None:
            index += 2
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        assert texts.taken == (lost,)
        world.reassigner.offload = offload
        while texts.newest == lost:
            index += 2
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        cache = ShardCache(world.run.folder / "data")
        assert all(cache.has(file) for file in texts.newest.dataset.files)
        taken = texts.taken
    with _world_again(tmp_path) as again:
        assert again.taken == taken, "a host whose text is not there does not start"


async def test_nothing_is_signed_before_the_round_of_what_an_old_ledger_has_lost(
    tmp_path: Path, autojump_clock: object
) -> None:
    with _world(tmp_path) as world:
        lost = _brought_back(world, 41)
        world.texts.take_back(lost.sealed)
        for index in range(2, 41, 2):
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        assert world.texts.newest is None
        for index in range(42, 82, 2):
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        assert world.texts.newest is not None
        assert world.texts.newest.entry.number > lost.entry.number


async def test_where_the_trunk_goes_back_losses_of_the_lineage_that_was_left_count_no_more_and_the_next_ones_do(
    tmp_path: Path, autojump_clock: object
) -> None:
    with _world(tmp_path) as world:
        alike = dict.fromkeys(range(2), [2.0] * world.run.dataset.sample_windows)
        world.measured(40, world.by_kind())
        world.index = 9
        await world.reassigner.look()
        assert world.texts.owners == (), "they are of another lineage"
        world.measured(40, alike)
        await world.reassigner.look()
        before = world.texts.owners
        world.index = 9
        await world.reassigner.look()
        world.measured(10, world.by_kind())
        await world.reassigner.look()
        assert world.texts.owners != before != (), "and not only once the trunk is as far again"


@pytest.mark.parametrize("harm", ["another text", "a text is gone", "one expert alone"])
async def test_what_cannot_be_done_changes_nothing_and_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], autojump_clock: object, harm: str
) -> None:
    with _world(tmp_path) as world:
        losses = world.by_kind()
        before = {path.name for path in (world.run.folder / "data").iterdir()}
        if harm == "another text":
            for file in (tmp_path / "texts").iterdir():
                file.write_text("In another text there is " + file.read_text())
        elif harm == "a text is gone":
            next((tmp_path / "texts").glob("prose*")).unlink()
        else:
            del losses[1]
        for index in range(2, 20, 2):
            world.measured(index, losses)
            await world.reassigner.look()
        assert world.texts.newest is None
        assert {path.name for path in (world.run.folder / "data").iterdir()} == before
        assert not (world.run.folder / "data.reassigned").exists()
        said = capsys.readouterr().out
        if harm == "one expert alone":
            assert said.count("nobody measured expert 1 at round 4") == 1
            assert "at round 18" not in said, "it may be told yet"
        else:
            assert "the text is another than when the run was opened" in said


@pytest.mark.parametrize("harm", ["missing", "empty", "one byte short"])
async def test_a_damaged_shard_of_the_sample_changes_nothing_and_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], autojump_clock: object, harm: str
) -> None:
    with _world(tmp_path) as world:
        path = world.run.folder / "data" / world.run.dataset.part("sample")[0].sha256
        losses, whole = world.by_kind(), path.read_bytes()
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes(b"" if harm == "empty" else whole[:-1])
        before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        world.measured(2, losses)
        await world.reassigner.look()
        assert (world.texts.newest, world.texts.owners) == (None, ())
        assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
        said = [line for line in capsys.readouterr().out.splitlines() if "documents_not_reassigned" in line]
        assert len(said) == 1
        assert f"{path.name} is lost or damaged" in said[0]
        path.write_bytes(whole)
        for index in range(4, 30, 2):
            world.measured(index, losses)
            await world.reassigner.look()
        assert world.texts.newest is not None


async def test_what_cannot_be_deleted_is_said_and_the_new_entry_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], autojump_clock: object
) -> None:
    with _world(tmp_path) as world:
        stuck = world.run.folder / "data" / ("f" * 64)
        stuck.mkdir()  # a folder is not deleted as a file is, whoever asks
        index = 0
        while world.texts.newest is None:
            index += 2
            world.measured(index, world.by_kind())
            await world.reassigner.look()
        taken, owners = world.texts.taken, world.texts.owners
        assert (len(taken), world.texts.num_added) == (1, 1)
        assert "old_text_not_deleted" in capsys.readouterr().out
    with _world_again(tmp_path) as again:
        assert (again.taken, again.owners) == (taken, owners)
