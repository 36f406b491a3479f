"""The single writer: every use of the ledger inside the daemon, one at a time, off the trio thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Offload
    from coordinator.ledger.ledger import Ledger

T = TypeVar("T")

_FSYNC_COST_S: Final = 0.004
"""Virtual time of one durable write, in seconds: an fsync."""


class LedgerWriter:
    """Serialises calls on a `Ledger` and runs them through the `Offload` seam."""

    def __init__(self, ledger: Ledger, offload: Offload) -> None:
        self._ledger = ledger
        self._offload = offload
        self._turn = trio.Lock()

    async def run(self, use: Callable[[Ledger], T]) -> T:
        """Run `use` with exclusive access to the ledger and return its result. Its writes are durable when this returns.

        Raises:
            StorageError: as the ledger's methods.
        """
        async with self._turn:
            return await self._offload.run(lambda: use(self._ledger), cost_s=_FSYNC_COST_S)
