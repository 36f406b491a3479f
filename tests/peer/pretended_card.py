"""A card with little memory, pretended on the CPU: it counts what torch allocates and runs out as a driver does."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PretendedCard(TorchDispatchMode):
    """In its block every tensor that torch creates takes the card's memory for as long as it lives.

    Attributes:
        most_bytes: the card's memory; 0 for any.
        live_bytes: of the tensors that are alive now.
        peak_bytes: the most there were since `forget_peak`.
    """

    def __init__(self, most_bytes: int = 0) -> None:
        super().__init__()
        self.most_bytes = most_bytes
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._know(leaf.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._take(leaf.untyped_storage())
        return result

    def forget_peak(self) -> None:
        self.peak_bytes = self.live_bytes

    @contextmanager
    def searched(self) -> Iterator[None]:
        """In the block, the search for the micro-batch takes the CPU's tensors for those of a card."""
        with mock.patch("peer.training.micro_batch_search.is_on_card", return_value=True):
            yield

    def _take(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        if storage._cdata in self._known:
            return
        if self.most_bytes and self.live_bytes + size > self.most_bytes:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
        self._know(storage, size)

    def _know(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage once, for as long as it lives. One from before the block counts 0."""
        key = storage._cdata
        if not storage.nbytes() or key in self._known:
            return
        self._known.add(key)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._give_back, key, size)

    def _give_back(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size
