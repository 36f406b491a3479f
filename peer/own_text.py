"""The text that this peer reads: of the data set that the run was opened with or, where the host has sent documents to experts anew
since, of the one that it signed last (protocol/reassignment.py).

What was signed is fetched and checked while training goes on, and read from its round on, or as soon as it is here. The entry is
kept on disk once all that it names is here, so a restart reads the same without the host. What does not match what was signed is
refused in one line of the log, and nothing changes.
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

Fetch = Callable[[Sequence[HashedFile]], Awaitable[None]]
"""Bring files into the cache, each checked; raises UnreachableError where nobody has one."""

Files = Callable[[DatasetManifest, Sequence[int]], Sequence[HashedFile]]
"""What of a data set is fetched for these experts, or for this stage."""


@dataclass(frozen=True, slots=True)
class _Entry:
    sealed: bytes
    says: Reassignment


class OwnText:
    """What is read here, and what comes. `dataset` and `from_round` are of what is read now, from round 0 on that of the manifest."""

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
        self.dataset = first
        self.from_round = 0
        self.heard_unix_s = 0
        """When the newest entry was signed that was heard of, whatever became of it."""

        self._names = frozenset(file.sha256 for file in first.files)
        """Files of the data set that is read."""

        self._coming: _Entry | None = None
        self._ready: tuple[_Entry, DatasetManifest] | None = None
        self._news = trio.Event()
        self._fetching = trio.CancelScope()

    async def restore(self) -> None:
        """Read what was read last, as far as it is on this disk; a damaged entry costs nothing for long: the host tells it again."""
        try:
            sealed = await self._offload.run(self._read)
            if sealed:
                entry = self._opened(sealed)
                self._take_up(entry, await self._offload.run(partial(self._dataset_of, entry.says)))
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
            self.heard_unix_s = entry.says.signed_unix_s
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
        """
        if self._coming is not None and experts:
            try:
                await self._prepare(fetch, experts)
            except (UnreachableError, StorageError) as error:
                log.warning("reassigned_text_not_here", reason=error.one_line())
            self._take_up_ready()
        await fetch(self._files(self.dataset, experts))

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
            self._ready = (entry, dataset)
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
        """Where the trunk has come to the round of what is ready here, read it from now on; from which round the text is that is read.

        Args:
            index: of the trunk's newest commit.
            read: tells the training process.
        """
        if self._ready is not None and index >= self._ready[0].says.from_round:
            before = self._names
            await read(self._ready[1])
            self._take_up_ready()
            log.info("reassigned_text_read", from_round=self.from_round, index=index)
            await self._offload.run(partial(self._cache.drop, before - self._names))
        return self.from_round

    def _take_up_ready(self) -> None:
        if self._ready is not None:
            self._take_up(*self._ready)
            self._ready = None

    def _take_up(self, entry: _Entry, dataset: DatasetManifest) -> None:
        self.dataset, self.from_round = dataset, entry.says.from_round
        self._names = frozenset((entry.says.manifest_sha256, *(file.sha256 for file in dataset.files)))
        self.heard_unix_s = max(self.heard_unix_s, entry.says.signed_unix_s)
