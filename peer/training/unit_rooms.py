"""The memory shared with a training process, unit by unit: where a unit's values lie, and which snapshots are not spent yet.

A snapshot is spent once its unit has moved. Other values of a unit take its place in the area `OUT` if no snapshot lies there, else in
`ASIDE`. So only a snapshot that is being read while values come, or one of several units, costs a second place. A shift may be made in
`OUT` from its beginning on; from then until it is spent it counts as a snapshot. `IN` is for anchors alone: a process that dies while
values are copied is restarted from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import trio

from averaging.network.seams.interfaces import NoPart
from peer.training.worker_channel import Area, SharedVectors


class UnitRooms:
    """The places of the units' values.

    Args:
        spans: begin and stop of each unit in an area, in values.
    """

    def __init__(self, vectors: SharedVectors, spans: Sequence[tuple[int, int]]) -> None:
        self._vectors, self._spans = vectors, tuple(spans)
        self._unspent = set[int]()
        self._offered = set[int]()
        self._read = set[int]()
        """Units of which the process reads values in `OUT` that are no snapshot."""

        self._shifted = set[int]()
        """Units of which a shift is made in `OUT`."""

        self._changed = trio.Event()

    # --- snapshots ---

    def snapshot(self, unit: int) -> torch.Tensor:
        """The place of the unit's theta, (N,) float32, for a process that is asked to write it there. It is kept until it is spent.

        Raises:
            NoPart: a shift is made there, so a commit is about to come.
        """
        if unit in self._shifted:
            raise NoPart("a commit that is being applied", "a snapshot after it")
        self._unspent.add(unit)
        return self._vectors.part(Area.OUT, self._spans[unit])

    def offer(self, unit: int) -> torch.Tensor:
        """As `snapshot`, but it stays until it is taken back, whatever the process does meanwhile."""
        self._offered.add(unit)
        return self.snapshot(unit)

    def take_back(self, unit: int) -> None:
        """Nobody reads the offer any more."""
        self._offered.discard(unit)
        self.spend(unit)

    def spend(self, unit: int) -> None:
        """Free the memory of the unit's snapshot, if it is not offered."""
        if unit in self._offered:
            return
        self._unspent.discard(unit)
        self._shifted.discard(unit)
        self._vectors.empty(Area.OUT, self._spans[unit])
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def spend_all(self) -> None:
        """The same for all units."""
        for unit in range(len(self._spans)):
            self.spend(unit)

    # --- values that the process uses ---

    def for_shift(self, unit: int) -> torch.Tensor | None:
        """The place of the unit's values, (N,) float32, for a shift that is to be made and then laid. It is kept until it is spent.
        None while something else lies there.
        """
        if unit in self._unspent or unit in self._read:
            return None
        self._unspent.add(unit)
        self._shifted.add(unit)
        return self._vectors.part(Area.OUT, self._spans[unit])

    def begin(self, unit: int, anchor_N: torch.Tensor) -> None:
        """Lay a unit's anchor, (N,) float32, where a starting process reads it."""
        self._vectors.part(Area.IN, self._spans[unit]).copy_(anchor_N)

    def has_begun(self) -> None:
        """The process has read the anchors."""
        self._vectors.empty(Area.IN)

    def lay(self, unit: int, values_N: torch.Tensor) -> Area:
        """The area in which the process finds a unit's values, (N,) float32. They are copied, unless they were written over the
        snapshot.
        """
        is_there = values_N.data_ptr() == self._vectors.part(Area.OUT, self._spans[unit]).data_ptr()
        area = Area.OUT if is_there or unit not in self._unspent else Area.ASIDE
        if not is_there:
            self._vectors.part(area, self._spans[unit]).copy_(values_N)
        if area is Area.OUT:
            self._read.add(unit)
        return area

    def used(self, unit: int) -> None:
        """The process has used the values that were laid for a unit. Its snapshot is spent with them."""
        self._read.discard(unit)
        self._vectors.empty(Area.ASIDE, self._spans[unit])
        self.spend(unit)

    async def free_used(self, unit: int) -> None:
        """As `used`. A thread frees the memory: that takes the longer, the larger the unit is. Nothing else comes there meanwhile."""
        areas = (Area.ASIDE,) if unit in self._offered else (Area.ASIDE, Area.OUT)
        await self._free([(area, self._spans[unit]) for area in areas])
        self.used(unit)

    # --- evaluations ---

    @property
    def has_room(self) -> bool:
        """Whether an evaluation costs no second place for the whole model."""
        return len(self._spans) > 1 or not self._unspent

    async def until_room(self) -> None:
        """Wait until there is room for an evaluation. Of several units one mostly holds a snapshot, and that is not waited for."""
        while not self.has_room:
            await self._changed.wait()

    def for_evaluation(self) -> tuple[tuple[Area, ...], list[torch.Tensor]]:
        """The area for each unit's values, and their places there, (N,) float32 each."""
        areas = tuple(Area.ASIDE if unit in self._unspent else Area.OUT for unit in range(len(self._spans)))
        self._read |= {unit for unit, area in enumerate(areas) if area is Area.OUT}
        return areas, [self._vectors.part(area, span) for area, span in zip(areas, self._spans, strict=True)]

    def evaluated(self, areas: Sequence[Area]) -> None:
        """Free the memory of an evaluation's values."""
        self._read -= {unit for unit, area in enumerate(areas) if area is Area.OUT}
        for area, span in zip(areas, self._spans, strict=True):
            self._vectors.empty(area, span)

    async def free_evaluated(self, areas: Sequence[Area]) -> None:
        """As `evaluated`. A thread frees the memory, as for `free_used`."""
        await self._free(list(zip(areas, self._spans, strict=True)))
        self.evaluated(areas)

    async def _free(self, parts: Sequence[tuple[Area, tuple[int, int]]]) -> None:
        def empty() -> None:
            for area, span in parts:
                self._vectors.empty(area, span)

        with trio.CancelScope(shield=True):  # what is not freed would count as in use
            await trio.to_thread.run_sync(empty)
