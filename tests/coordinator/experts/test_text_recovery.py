"""A re-assignment that the ledger has lost comes back: the entry from any peer, its data set from those who hold its experts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
import trio

from averaging.data.shard_exchange import SHARD_CHANNEL, serve_shards
from averaging.data.shards import ShardCache
from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.offload import InlineOffload
from coordinator.experts.text_recovery import TRY_AGAIN_S, TextFinder
from coordinator.ledger.ledger import open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.run.run_files import RunFiles, open_run
from coordinator.run.run_texts import PackedText, RunTexts, read_owners, read_texts
from protocol.errors import RemoteProtocolError
from protocol.host.reassignment import Reassignment, seal_reassignment
from protocol.identity.identity import Identity
from protocol.ids import PeerId, Root
from tests.coordinator.run.test_run_router import HOST, run_file

HOLDERS = (PeerId("holder of 0"), PeerId("holder of 1"))


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    path = run_file(tmp_path, "reassign_every_rounds = 2")
    return open_run(path, tmp_path / "host", HOST, now_unix_s=1_700_000_000.0)


def _lost(run: RunFiles, folder: Path) -> PackedText:
    """A data set whose files lie with the peers, each expert's with its holder, and no more with the host."""
    owners = [number % 2 for number in range(run.dataset.sample_windows)]
    router = run.dataset.router.model_copy(update={"sample_owners": owners}) if run.dataset.router else None
    dataset = run.dataset.model_copy(update={"source": "packed anew", "router": router})
    data = dataset.canonical_bytes()
    root = Root(bytes.fromhex(dataset.router.root if dataset.router else ""))
    name = sha256(data).hexdigest()
    entry = Reassignment(3, 9, dataset.dataset_id, root, name, len(data), 1_700_000_003)
    for expert, holder in enumerate(HOLDERS):
        own = folder / holder
        own.mkdir()
        (own / name).write_bytes(data)
        for file in dataset.files_of([expert]):
            (own / file.sha256).write_bytes((run.folder / "data" / file.sha256).read_bytes())
    for file in dataset.part("train"):
        (run.folder / "data" / file.sha256).unlink(missing_ok=True)
    return PackedText(seal_reassignment(HOST, run.manifest.run_id, entry), entry, dataset)


@asynccontextmanager
async def _host(run: RunFiles, folder: Path, texts: RunTexts, holders: Sequence[PeerId]) -> AsyncIterator[MemorySwarm]:
    """It looks for what is lost, among these holders."""

    async def everybody(_: PeerId) -> bool:
        return True

    async def reach(_: Sequence[PeerId]) -> None:
        return

    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        for holder in HOLDERS:
            cache = ShardCache(folder / holder)

            async def read(name: bytes, cache: ShardCache = cache) -> bytes | None:
                return cache.read(name.hex())

            swarm.start(holder).serve_streams(SHARD_CHANNEL, serve_shards(read, everybody))
        with open_ledger(folder / "ledger.sqlite3") as ledger:
            offload = InlineOffload()
            writer = LedgerWriter(ledger, offload)
            finder = TextFinder(run, texts, writer, swarm.start(PeerId("host")), offload, lambda: holders, reach)
            nursery.start_soon(finder.keep)
            yield swarm
            nursery.cancel_scope.cancel()


async def test_what_peers_have_kept_is_in_the_ledger_again_with_its_data_set(
    run: RunFiles, tmp_path: Path, autojump_clock: object
) -> None:
    lost, texts = _lost(run, tmp_path), RunTexts(run, owners_D=(0,) * run.dataset.sample_windows)
    async with _host(run, tmp_path, texts, HOLDERS):
        assert texts.lacks(lost.entry.signed_unix_s)
        texts.take_back(lost.sealed)
        assert texts.newest_entry == lost.entry, "what is signed next comes after it"
        assert not texts.lacks(lost.entry.signed_unix_s), "it is not asked for again"
        await trio.sleep(10.0)
        assert (texts.taken, texts.lost) == ((lost,), None)
    assert all(ShardCache(run.folder / "data").has(file) for file in lost.dataset.files)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        assert read_texts(run.folder, run.manifest, ledger) == (lost,)
        assert read_owners(run, ledger) == texts.owners == lost.dataset.sample_owners, (
            "whose the sample's documents were"
        )


async def test_without_a_holder_of_each_expert_nothing_changes_and_it_is_tried_again(
    run: RunFiles, tmp_path: Path, autojump_clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, texts, there = _lost(run, tmp_path), RunTexts(run), list(HOLDERS[:1])
    async with _host(run, tmp_path, texts, there):
        texts.take_back(lost.sealed)
        await trio.sleep(TRY_AGAIN_S)
        assert texts.newest is None
        assert "nobody who is there has" in capsys.readouterr().out
        there.append(HOLDERS[1])
        await trio.sleep(2 * TRY_AGAIN_S)
        assert texts.taken == (lost,)


def test_an_entry_of_another_host_is_refused_and_an_older_one_changes_nothing(run: RunFiles, tmp_path: Path) -> None:
    lost = _lost(run, tmp_path)
    texts = RunTexts(run, [lost])
    sealed = partial(seal_reassignment, run_id=run.manifest.run_id)
    with pytest.raises(RemoteProtocolError, match="the host did not sign"):
        texts.take_back(sealed(Identity(b"s" * 32), entry=replace(lost.entry, signed_unix_s=1_800_000_000)))
    texts.take_back(sealed(HOST, entry=replace(lost.entry, signed_unix_s=1_600_000_000)))
    assert (texts.lost, texts.newest_entry) == (None, lost.entry)
