"""A re-assignment that an old copy of the ledger has not got: peers bring what was signed, and the data set that it names is fetched
from those who hold its experts, each file checked. Then it is in the ledger again, for newcomers, merging and held-out losses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.data.shard_exchange import SLOWEST_BYTES_PER_S, fetch_shard
from averaging.data.shards import HashedFile, ShardCache, parse_dataset
from coordinator.run.run_files import DATA_FOLDER, RunFiles
from coordinator.run.run_texts import RunTexts
from coordinator.run.run_texts_core import PackedText
from protocol.errors import PotluckError, UnreachableError
from protocol.host.reassignment import Reassignment

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Network, Offload
    from coordinator.ledger.ledger_writer import LedgerWriter
    from protocol.ids import PeerId

_log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
TRY_AGAIN_S: Final = 30.0
_BASE_S: Final = 30.0
"""For a file, beside what its bytes take on a slow line."""


@dataclass
class TextFinder:
    """Run `keep` as a task of the root nursery.

    Attributes:
        live_peers: who was heard of lately; `reach` makes known where they listen.
    """

    run: RunFiles
    texts: RunTexts
    ledger: LedgerWriter
    network: Network
    offload: Offload
    live_peers: Callable[[], Sequence[PeerId]]
    reach: Callable[[Sequence[PeerId]], Awaitable[None]]

    async def keep(self) -> None:
        """Until cancelled. What cannot be had is said, and tried again."""
        while True:
            lost = self.texts.lost
            try:
                if lost is not None:
                    await self._bring_back(*lost)
            except PotluckError as error:
                _log.warning("reassignment_not_brought_back", reason=error.one_line(), retry_in_s=TRY_AGAIN_S)
                await trio.sleep(TRY_AGAIN_S)
            await trio.sleep(LOOK_EVERY_S)

    async def _bring_back(self, sealed: bytes, entry: Reassignment) -> None:
        cache = ShardCache(self.run.folder / DATA_FOLDER)
        peers = self.live_peers()
        await self.reach(peers)
        await self._fetch(cache, peers, entry)
        data = await self.offload.run(lambda: cache.read(entry.manifest_sha256))
        dataset = parse_dataset(data or b"", entry.dataset_id)
        for file in dataset.files:
            await self._fetch(cache, peers, file)
        if not await self.texts.add(self.ledger, PackedText(sealed, entry, dataset)):
            return  # signed while this was fetched
        reason = f"documents lie as re-assignment {entry.number} says, from round {entry.from_round} on"
        _log.info("reassignment_brought_back", number=entry.number, from_round=entry.from_round, reason=reason)

    async def _fetch(self, cache: ShardCache, peers: Sequence[PeerId], file: HashedFile) -> None:
        """One file, of the first peer that has it.

        Raises:
            UnreachableError: none gives it.
        """
        if await self.offload.run(partial(cache.has, file)):
            return
        within_s = _BASE_S + file.num_bytes / SLOWEST_BYTES_PER_S
        for peer in peers:
            name = bytes.fromhex(file.sha256)
            try:
                data = await fetch_shard(self.network, peer, name, file.num_bytes, timeout_s=within_s)
            except PotluckError as error:
                _log.info("shard_not_given", peer=peer, reason=error.one_line())
                continue
            if data is not None:
                await self.offload.run(partial(cache.put, file, data))
                return
        raise UnreachableError(
            f"nobody who is there has {file.sha256[:8]} of the re-assigned data",
            "a holder of each expert",
            "wait for one",
        )
