"""The one writer: every use of the ledger inside the daemon, one at a time, off the trio thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Offload
    from coordinator.ledger.ledger import Ledger

T = TypeVar("T")

_FSYNC_COST_S: Final = 0.004
"""What one durable write costs in virtual time: the measured fsync."""


class LedgerWriter:
    """Serialises calls on a `Ledger` and runs them through the `Offload` seam."""

    def __init__(self, ledger: Ledger, offload: Offload) -> None:
        self._ledger = ledger
        self._offload = offload
        self._turn = trio.Lock()

    async def run(self, use: Callable[[Ledger], T]) -> T:
        """Run `use` with the ledger to itself and return its result; durable when this returns.

        Raises:
            StorageError: as the ledger's methods.
        """
        async with self._turn:
            return await self._offload.run(lambda: use(self._ledger), cost_s=_FSYNC_COST_S)
