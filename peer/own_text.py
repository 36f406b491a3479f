"""The text that this peer reads: of the data set that the run was opened with or, where the host has sent documents to experts anew
since, of the one that it signed last (protocol/reassignment.py).

What was signed is fetched and checked while training goes on, and read from its round on, or as soon as it is here. The entry is
kept on disk once all that it names is here, so a restart reads the same without the host. What does not match what was signed is
refused in one line of the log, and nothing changes. The text before stays here for some rounds: where the trunk goes over to a lineage
that is not that far, what its round read is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.data.expert_shards import check_each_expert, read_router
from averaging.data.shards import DatasetManifest, HashedFile, ShardCache, parse_dataset
from averaging.network.seams import Offload
from peer.membership_file import write_durably
from protocol.errors import ConfigError, PotluckError, RemoteProtocolError, StorageError, UnreachableError, VersionError
from protocol.identity import Ed25519Verifier
from protocol.manifest import RunManifest
from protocol.reassignment import Reassignment, open_reassignment

log = structlog.get_logger()

FILE_NAME: Final = "reassignment"
"""In the folder of a run: the signed entry whose data set is here."""

TRY_AGAIN_S: Final = 30.0

KEPT_ROUNDS: Final = 16
"""So many rounds of the trunk after the first of a text the one before is deleted: no lineage is left by more, but for long cuts."""

Fetch = Callable[[Sequence[HashedFile]], Awaitable[None]]
"""Bring files into the cache, each checked; raises UnreachableError where nobody has one."""

Files = Callable[[DatasetManifest, Sequence[int]], Sequence[HashedFile]]
"""What of a data set is fetched for these experts, or for this stage."""


@dataclass(frozen=True, slots=True)
class _Entry:
    sealed: bytes
    says: Reassignment


@dataclass(frozen=True, slots=True)
class _Read:
    """A text and from which round on it is read; the entry that named it, None for the one that the run was opened with."""

    entry: _Entry | None
    dataset: DatasetManifest

    @property
    def from_round(self) -> int:
        return self.entry.says.from_round if self.entry is not None else 0

    @property
    def names(self) -> frozenset[str]:
        """Of its files."""
        beside = [self.entry.says.manifest_sha256] if self.entry is not None else []
        return frozenset([*beside, *(file.sha256 for file in self.dataset.files)])


class OwnText:
    """What is read here, what was, and what comes; from round 0 on the data set of the manifest."""

    def __init__(
        self,
        folder: Path,
        manifest: RunManifest,
        first: DatasetManifest,
        cache: ShardCache,
        offload: Offload,
        files: Files = DatasetManifest.files_of,
    ) -> None:
        self._path = folder / FILE_NAME
        self._manifest = manifest
        self._first = first
        self._cache = cache
        self._offload = offload
        self._files = files
        self.heard_unix_s = 0
        """When the newest entry was signed that was heard of, whatever became of it."""

        self.heard = b""
        """That entry, for a host whose ledger has lost it."""

        self._now = _Read(None, first)
        self._before: _Read | None = None
        """What was read before, while it is here."""

        self._coming: _Entry | None = None
        self._ready: tuple[_Read, ...] = ()
        """What is here and whose round has not come, or has not come again, in the order of their rounds."""

        self._news = trio.Event()
        self._fetching = trio.CancelScope()

    @property
    def dataset(self) -> DatasetManifest:
        """What is read."""
        return self._now.dataset

    @property
    def from_round(self) -> int:
        """From which round of the trunk on."""
        return self._now.from_round

    async def restore(self) -> None:
        """Read what was read last, as far as it is on this disk; a damaged entry costs nothing for long: the host tells it again."""
        try:
            sealed = await self._offload.run(self._read)
            if sealed:
                entry = self._opened(sealed)
                self._take_up(_Read(entry, await self._offload.run(partial(self._dataset_of, entry.says))))
        except (PotluckError, OSError) as error:
            log.warning("reassignment_not_read", path=str(self._path), reason=str(error))

    def _read(self) -> bytes:
        return self._path.read_bytes() if self._path.exists() else b""

    def take(self, sealed: bytes) -> None:
        """Hear of an entry: fetched from now on if it is newer than what is known; one that the host did not sign is refused."""
        if not sealed:
            return
        try:
            entry = self._opened(sealed)
        except (RemoteProtocolError, VersionError) as error:
            log.warning("reassignment_refused", reason=error.one_line())
            return
        if entry.says.signed_unix_s > self.heard_unix_s:
            self._hear(entry)
            self._coming = entry
            self._news.set()
            self._fetching.cancel()

    def _opened(self, sealed: bytes) -> _Entry:
        manifest = self._manifest
        host_public_key = bytes.fromhex(manifest.host_public_key)
        says = open_reassignment(
            sealed, verifier=Ed25519Verifier(), run_id=manifest.run_id, host_public_key=host_public_key
        )
        return _Entry(sealed, says)

    async def begin(self, fetch: Fetch, experts: Sequence[int]) -> None:
        """Before training: bring what these experts read. Who comes when an entry was signed begins with it, whatever its round; where
        nobody has it, with what was read before.

        Raises:
            UnreachableError: nobody has a file of that either.
            ConfigError: its router is not the one of the manifest, or an expert has too little text.
        """
        if self._coming is not None and experts:
            try:
                await self._prepare(fetch, experts)
            except (UnreachableError, StorageError) as error:
                log.warning("reassigned_text_not_here", reason=error.one_line())
            self._take_up_ready()
        await fetch(self._files(self.dataset, experts))
        if self._manifest.config.experts is not None:
            await self._offload.run(partial(self._check_files, self.dataset))

    async def keep(self, fetch: Fetch, experts: Sequence[int]) -> None:
        """Bring what is signed while training goes on, until cancelled."""
        while True:
            if self._coming is None:
                await self._news.wait()
            try:
                # once there is a newer entry, what is fetched may be with nobody any more
                with trio.CancelScope() as self._fetching:
                    await self._prepare(fetch, experts)
            except (UnreachableError, StorageError) as error:
                log.warning("reassigned_text_not_here", reason=error.one_line())
                with trio.move_on_after(TRY_AGAIN_S):
                    await self._news.wait()

    async def _prepare(self, fetch: Fetch, experts: Sequence[int]) -> None:
        """Fetch and check what comes, and keep the entry; one that does not match what was signed is refused."""
        entry, self._news = self._coming, trio.Event()
        if entry is None:
            return
        try:
            await fetch([entry.says])
            dataset = await self._offload.run(partial(self._dataset_of, entry.says))
            await fetch(self._files(dataset, experts))
            await self._offload.run(partial(self._check_files, dataset))
            await self._offload.run(partial(write_durably, self._path, entry.sealed))
        except (ConfigError, RemoteProtocolError) as error:
            log.warning("reassignment_refused", number=entry.says.number, reason=error.one_line())
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}", "a folder with space") from error
        else:
            log.info("reassigned_text_here", number=entry.says.number, from_round=entry.says.from_round)
            self._ready = (*self._ready, _Read(entry, dataset))
        if self._coming is entry:
            self._coming = None

    def _dataset_of(self, entry: Reassignment) -> DatasetManifest:
        """The data set that an entry names. Blocks.

        Raises:
            RemoteProtocolError: it is none for this run, or another than what was signed.
            StorageError: its manifest is not here.
        """
        data = self._cache.read(entry.manifest_sha256)
        if data is None:
            raise StorageError(f"the manifest {entry.manifest_sha256[:8]} of a data set is not here", "its file")
        dataset, first = parse_dataset(data, entry.dataset_id), self._first
        root = dataset.router.root if dataset.router is not None else "none"
        if root != entry.router_root.hex():
            raise RemoteProtocolError(
                f"a data set with router {root[:16]}", f"{entry.router_root.hex()[:16]}, as signed"
            )
        for what, found, expected in (
            ("tokenizer", dataset.tokenizer, first.tokenizer),
            ("bytes of a token", dataset.token_bytes, first.token_bytes),
            ("sample", dataset.part("sample"), first.part("sample")),
            ("kept documents", dataset.num_tokens("heldout"), first.num_tokens("heldout")),
        ):
            if found != expected:
                raise RemoteProtocolError(f"a re-assigned data set with other {what}", "those of the run")
        return dataset

    def _check_files(self, dataset: DatasetManifest) -> None:
        """The router is of this run, and each expert has a window to read. Blocks; raises ConfigError."""
        config = self._manifest.config
        if config.experts is None:
            raise ConfigError("text for experts in a run without", 'a run with run.shards = "expert"')
        features = config.experts.router_features
        read_router(dataset, config.experts.num_experts, self._cache, features=features)
        check_each_expert(dataset, config.model.context_tokens + 1)

    async def follow(self, index: int, read: Callable[[DatasetManifest], Awaitable[None]]) -> int:
        """Where the trunk has come to the round of what is ready here, read it from now on; where it has gone back before that round,
        what was read before. Returns from which round on the text is that is read.

        Args:
            index: of the trunk's newest commit.
            read: tells the training process.
        """
        now, before = self._now, self._before
        due = [text for text in self._ready if text.from_round <= index]
        if due:
            await self._go_over(due[-1], index, read)
            self._ready, self._before = self._ready[len(due) :], now
            await self._forget(before, *due[:-1])
        elif before is not None and index < now.from_round:
            await self._go_over(before, index, read)
            self._ready, self._before = (now, *self._ready), None
        elif before is not None and index >= now.from_round + KEPT_ROUNDS:
            self._before = None
            await self._forget(before)
        return self.from_round

    async def _go_over(self, text: _Read, index: int, read: Callable[[DatasetManifest], Awaitable[None]]) -> None:
        await read(text.dataset)
        self._take_up(text)
        log.info("reassigned_text_read", from_round=self.from_round, index=index)

    async def _forget(self, *texts: _Read | None) -> None:
        """Delete what only these name."""
        others = [each.names for each in (self._now, self._before, *self._ready) if each is not None]
        names = {name for text in texts if text is not None for name in text.names}
        if names:
            await self._offload.run(partial(self._cache.drop, names.difference(*others)))

    def _take_up_ready(self) -> None:
        if self._ready:
            self._take_up(self._ready[-1])
            self._ready = ()

    def _take_up(self, text: _Read) -> None:
        self._now = text
        if text.entry is not None and text.entry.says.signed_unix_s > self.heard_unix_s:
            self._hear(text.entry)

    def _hear(self, entry: _Entry) -> None:
        self.heard_unix_s, self.heard = entry.says.signed_unix_s, entry.sealed
