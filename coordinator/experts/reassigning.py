"""Documents are sent to experts anew while the run goes on: packed again by where losses are lowest, signed, and read from a round on.

What goes wrong on the way changes nothing: the entry that peers go by is written last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog
import trio

from averaging.data.packing.document_routing import Routing, route_with
from averaging.data.packing.expert_shards import check_each_expert, read_router
from averaging.data.packing.packing import Packing, pack
from averaging.data.packing.routing_sample import RoutingSample
from averaging.data.shards import MANIFEST_NAME, DatasetManifest, ShardCache, TokenReader, write_whole
from averaging.data.sources.sources import Source, open_source
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import ByteTokenizer, Tokenizer
from averaging.data.vocabulary import FileTokenizer
from averaging.storage.file_storage import sync_folder
from coordinator.run.reassigning_core import Forget, Looked, PackAnew, SayUnmeasured, Watch, owners_after, step
from coordinator.run.routing_embeddings import refitted
from coordinator.run.run_files import CHECKPOINT_FOLDER, DATA_FOLDER, RunFiles, run_tokenizer
from coordinator.run.run_router import packed_texts, sample_of
from coordinator.run.run_texts import RunTexts
from coordinator.run.run_texts_core import PackedText
from protocol.errors import ConfigError, PotluckError, StorageError
from protocol.host.reassignment import LEAD_ROUNDS, Reassignment, seal_reassignment
from protocol.ids import Root

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock, Offload
    from coordinator.ledger.ledger_writer import LedgerWriter
    from protocol.identity.identity import Signer

_log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
_UNFINISHED: Final = "data.reassigned"
"""What is packed anew lies here until it is whole."""

Losses = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Repacked:
    """Whose the documents of the sample are from now on, D of them; the data set that was packed by it and lies with the others, None
    where the router sends none of them elsewhere; and how many it does.
    """

    owners_D: tuple[int, ...]
    dataset: DatasetManifest | None = None
    moved: int = 0


def packed_anew(
    run: RunFiles,
    base: Path,
    current: DatasetManifest,
    losses_DX: Losses,
    owners_D: tuple[int, ...] = (),
    checkpoint: Path | None = None,
) -> Repacked:
    """Send documents to the experts with the lowest losses, and pack the text again. Reads all text three times; blocks.

    A router follows some documents that change hands only when others like them do. So whose they are is remembered from one time to
    the next, also while it makes no difference yet.

    Args:
        run: the host's.
        base: the folder of run.toml, from which the text is read again.
        current: the data set that is read now.
        losses_DX: of each window of its sample with each expert.
        owners_D: whose each document of the sample is; by the router where that is not known.
        checkpoint: the newest one, where there is any, of whose trunk embeddings may be taken.

    Raises:
        ConfigError: the text is another than when the run was opened, or an expert would have too little.
        StorageError: a shard of the sample is lost or damaged, or the folder cannot be written.
    """
    config, cache = run.manifest.config, ShardCache(run.folder / DATA_FOLDER)
    experts = config.experts
    if experts is None:
        raise ConfigError("a re-assignment in a run without experts", 'one with run.shards = "expert"')
    tokenizer = _tokenizer(run)
    read = packed_texts(config, source := open_source(config.data, base))
    sample = sample_of(config, read, tokenizer)
    if sample is None or not _is_same(sample, current, cache):
        raise _other_text()
    features = experts.router_features
    router = read_router(current, experts.num_experts, cache, features=features, tokenizer=tokenizer)
    owners = owners_after(losses_DX, owners_D or tuple(router.nearest(text)[0] for text in sample.prefixes))
    anew = refitted(router, sample.prefixes, owners, checkpoint)
    moved = sum(router.nearest(text) != anew.nearest(text) for text in sample.prefixes)
    if not moved:
        return Repacked(owners)
    routing = route_with(anew, read, least_documents=experts.min_documents)
    return Repacked(owners, _packed(run, source, read(), tokenizer, routing, replace(sample, owners=owners)), moved)


def _packed(
    run: RunFiles, source: Source, texts: Iterable[Text], tokenizer: Tokenizer, routing: Routing, sample: RoutingSample
) -> DatasetManifest:
    """The text by this routing, with the run's other data sets. Raises as `packed_anew`."""
    data, unfinished = run.manifest.config.data, run.folder / _UNFINISHED
    packing = Packing(data.shard_bytes, data.source, source.licence, routing=routing, sample=sample)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        dataset = pack(texts, tokenizer, unfinished, packing)
        if _documents(dataset) != _documents(run.dataset):
            raise _other_text()
        check_each_expert(dataset, run.manifest.config.model.context_tokens + 1)
        _bring_in(unfinished, run.folder / DATA_FOLDER, dataset)
    except OSError as error:
        raise StorageError(f"{unfinished} cannot be written ({error.strerror})", "a writable folder") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return dataset


def _tokenizer(run: RunFiles) -> Tokenizer:
    kept = run_tokenizer(run)
    return ByteTokenizer() if kept is None else FileTokenizer(kept.data, "the run's tokenizer", kept.end)


def _is_same(sample: RoutingSample, current: DatasetManifest, cache: ShardCache) -> bool:
    """Whether the windows are those that peers have. Raises StorageError where these are lost or damaged."""
    reader = TokenReader([cache.whole(entry) for entry in current.part("sample")], current.token_bytes)
    windows = np.concatenate(list(sample.windows))
    return reader.num_tokens == len(windows) and bool((reader.read(0, len(windows)) == windows).all())


def _documents(dataset: DatasetManifest) -> tuple[int, int]:
    """What does not depend on where documents go: how many there are, and how much of them is kept for evaluation."""
    return dataset.num_documents, dataset.num_tokens("heldout")


def _other_text() -> ConfigError:
    return ConfigError(
        "data: the text is another than when the run was opened",
        "the same documents, to send them to experts anew",
        "put them back as they were; the run goes on with the text as it is packed",
    )


def _bring_in(unfinished: Path, folder: Path, dataset: DatasetManifest) -> None:
    """Put the files beside those of the other data sets, the manifest last, by the name of its hash."""
    for file in dataset.files:
        path = unfinished / file.sha256
        if path.exists():  # two shards may have the same bytes
            os.replace(path, folder / file.sha256)
    (unfinished / MANIFEST_NAME).unlink()
    data = dataset.canonical_bytes()
    write_whole(folder / sha256(data).hexdigest(), data)
    sync_folder(folder)


@dataclass
class Reassigner:
    """Packs anew as soon as all experts were measured at one commit, and brings it to the ledger; one at a time.

    Attributes:
        head_index: the trunk's newest round.
    """

    run: RunFiles
    base: Path
    texts: RunTexts
    ledger: LedgerWriter
    signer: Signer
    clock: Clock
    offload: Offload
    head_index: Callable[[], int]
    _watch: Watch = field(default_factory=Watch)

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await trio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Pack anew where there is a reason to. What cannot be done is said, and tried again with the next losses."""
        newest = self.texts.newest_entry
        event = Looked(self.texts.book, self.head_index(), newest.from_round if newest is not None else 0)
        self._watch, actions, reason = step(self._watch, event)
        for action in actions:
            if isinstance(action, Forget):
                self.texts.book = action.book
            elif isinstance(action, SayUnmeasured):
                _log.warning("documents_not_reassigned", index=action.index, reason=reason)
            else:
                await self._try_to_reassign(action)

    async def _try_to_reassign(self, pack: PackAnew) -> None:
        try:
            await self._reassign(pack.index, pack.losses_DX)
        except PotluckError as error:
            _log.warning("documents_not_reassigned", index=pack.index, reason=error.one_line())

    async def _reassign(self, index: int, losses_DX: Losses) -> None:
        newest, packed_after = self.texts.newest, self.texts.num_added
        current = newest.dataset if newest is not None else self.run.dataset
        rows = await self.ledger.run(lambda ledger: ledger.checkpoints())
        checkpoint = self.run.folder / CHECKPOINT_FOLDER / rows[-1].path if rows else None
        pack_text = partial(packed_anew, self.run, self.base, current, losses_DX, self.texts.owners, checkpoint)
        packed = await self.offload.run(pack_text)
        if packed.dataset is None:
            if not await self.texts.remember(self.ledger, packed.owners_D, packed_after):
                return
            _log.info("documents_stay", index=index, reason="the router would send none of the sample elsewhere")
            return
        entry = self._entry(packed.dataset, self.texts.newest_entry)
        sealed = seal_reassignment(self.signer, self.run.manifest.run_id, entry)
        if not await self.texts.add(self.ledger, PackedText(sealed, entry, packed.dataset), packed_after):
            return  # one that was lost came back while this was packed: the next losses decide
        windows = self.texts.book.num_windows
        _log.info(
            "documents_reassigned",
            number=entry.number,
            from_round=entry.from_round,
            reason=f"{packed.moved} of {windows} documents of the sample go to another expert",
        )

    def _entry(self, dataset: DatasetManifest, before: Reassignment | None) -> Reassignment:
        data, now_unix_s = dataset.canonical_bytes(), int(self.clock.unix_s())
        return Reassignment(
            number=before.number + 1 if before is not None else 1,
            from_round=self.head_index() + LEAD_ROUNDS,
            dataset_id=dataset.dataset_id,
            router_root=Root(bytes.fromhex(dataset.router.root if dataset.router is not None else "")),
            manifest_sha256=sha256(data).hexdigest(),
            manifest_bytes=len(data),
            signed_unix_s=max(now_unix_s, before.signed_unix_s + 1 if before is not None else 1),
        )
