"""The text that this peer reads: of the data set that the run was opened with or, where the host has sent documents to experts anew
since, of the one that it signed last (protocol/host/reassignment.py).

What was signed is fetched and checked while training goes on, and read from its round on, or as soon as it is here. The entry is
kept on disk once all that it names is here, with that of the text before, so a restart reads the same without the host. What does not
match what was signed is refused in one line of the log, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.data.packing.expert_shards import check_each_expert, read_router
from averaging.data.shards import DatasetManifest, HashedFile, ShardCache, parse_dataset
from averaging.network.seams.interfaces import Offload
from peer.holdings.training_text_core import (
    Arrived,
    Begun,
    Event,
    HeldText,
    Holds,
    Named,
    Orders,
    Refused,
    TextState,
    TrunkMoved,
    WasTakenUp,
    kept_entries,
    step,
)
from peer.membership.saved_membership import write_durably
from protocol.errors import ConfigError, PotluckError, RemoteProtocolError, StorageError, UnreachableError, VersionError
from protocol.host.reassignment import Reassignment, open_reassignment
from protocol.identity.identity import Ed25519Verifier
from protocol.identity.revocation import join_entries, split_entries
from protocol.run.manifest import RunManifest

log = structlog.get_logger()

FILE_NAME: Final = "reassignments"
"""In the folder of a run: the signed entries whose data sets are here, in the order in which they were signed."""

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
    """What is read here, what was, and what comes; from round 0 on the data set of the manifest. What is read when, and what is
    deleted, is decided in own_text_core.py.
    """

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

        self._state = TextState(HeldText(first))
        self._restored: tuple[HeldText, ...] = ()
        """What was here when this process began, if its files still are."""

        self._coming: _Entry | None = None
        self._news = trio.Event()
        self._fetching = trio.CancelScope()
        self._writing = trio.Lock()
        self._written = b""
        """What is on the disk of this."""

    @property
    def dataset(self) -> DatasetManifest:
        """What is read."""
        return self._state.now.dataset

    @property
    def from_round(self) -> int:
        """From which round of the trunk on."""
        return self._state.now.from_round

    async def restore(self) -> None:
        """Find again what was signed, as far as it is on this disk; a damaged entry costs little: the host tells it again."""
        self._restored = (HeldText(self._first),)
        for sealed in await self._kept():
            try:
                entry = self._opened(sealed)
                dataset = await self._offload.run(partial(self._dataset_of, entry.says))
            except (PotluckError, OSError) as error:
                log.warning("reassignment_not_read", path=str(self._path), reason=str(error))
                continue
            self._restored = (*self._restored, HeldText(dataset, entry.says, sealed))
            self._hear(entry)
        self._state = TextState(self._restored[-1])

    async def _kept(self) -> tuple[bytes, ...]:
        try:
            self._written = await self._offload.run(self._read)
            return split_entries(self._written)
        except (RemoteProtocolError, OSError) as error:
            log.warning("reassignment_not_read", path=str(self._path), reason=str(error))
            return ()

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
        if self._hear(entry):
            self._coming = entry
            self._news.set()
            self._fetching.cancel()

    def _hear(self, entry: _Entry) -> bool:
        """Whether it is newer than what was heard of before."""
        is_newer = entry.says.signed_unix_s > self.heard_unix_s
        if is_newer:
            self.heard_unix_s, self.heard = entry.says.signed_unix_s, entry.sealed
        return is_newer

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
        if experts:
            self._holds(experts)
            await self._find_again(experts)
        if self._coming is not None and experts:
            try:
                await self._prepare(fetch, experts)
            except (UnreachableError, StorageError) as error:
                log.warning("reassigned_text_not_here", reason=error.one_line())
        self._decide(Begun())
        await fetch(self._files(self.dataset, experts))
        if self._manifest.config.experts is not None:
            await self._offload.run(partial(self._check_files, self.dataset))
        if experts:
            self._decide(Arrived(self._state.now))

    def _holds(self, experts: Sequence[int]) -> None:
        if self._manifest.config.experts is not None:  # a stage reads all text, or none
            self._decide(Holds(tuple(experts)))

    async def _find_again(self, experts: Sequence[int]) -> None:
        for text in self._restored:
            if await self._offload.run(partial(self._is_whole, text, experts)):
                self._decide(Arrived(text))

    def _is_whole(self, text: HeldText, experts: Sequence[int]) -> bool:
        return all(self._cache.has(file) for file in self._files(text.dataset, experts))

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
            await self._bring(entry, fetch, experts)
        except (ConfigError, RemoteProtocolError) as error:
            log.warning("reassignment_refused", number=entry.says.number, reason=error.one_line())
            await self._delete(self._decide(Refused(frozenset([entry.says.manifest_sha256]))))
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}", "a folder with space") from error
        if self._coming is entry:
            self._coming = None

    async def _bring(self, entry: _Entry, fetch: Fetch, experts: Sequence[int]) -> None:
        await fetch([entry.says])
        text = HeldText(await self._offload.run(partial(self._dataset_of, entry.says)), entry.says, entry.sealed)
        await self._delete(self._decide(Named(text)))
        await fetch(self._files(text.dataset, experts))
        await self._offload.run(partial(self._check_files, text.dataset))
        await self._write(text)
        self._decide(Arrived(text))
        log.info("reassigned_text_here", number=entry.says.number, from_round=entry.says.from_round)

    async def _write(self, *beside: HeldText) -> None:
        """Remember which texts are here, and these. Raises OSError."""
        async with self._writing:
            data = join_entries(kept_entries((*self._state.here, *beside)))
            if data != self._written:
                await self._offload.run(partial(write_durably, self._path, data))
                self._written = data

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
        """Read what is to be read at a round of the trunk. Returns from which round on the text is that is read.

        Args:
            index: of the trunk's newest commit.
            read: tells the training process.
        """
        orders = self._decide(TrunkMoved(index))
        if orders.take_up is not None:
            await read(orders.take_up.dataset)
            orders = self._decide(WasTakenUp(orders.take_up, index))
            log.info("reassigned_text_read", from_round=self.from_round, index=index)
        await self._delete(orders)
        return self.from_round

    def _decide(self, event: Event) -> Orders:
        self._state, orders, reason = step(self._state, event)
        if reason:
            log.debug("text_decided", heard=type(event).__name__, reason=reason)
        return orders

    async def _delete(self, orders: Orders) -> None:
        """Files first: of an entry that is kept without them a restart knows that they are gone."""
        if not orders.delete:
            return
        try:
            await self._offload.run(partial(self._cache.drop, orders.delete))
            await self._write()
        except OSError as error:
            log.warning("text_not_deleted", path=str(self._path.parent), reason=error.strerror)
