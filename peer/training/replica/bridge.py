"""Moves parameters between a card and the memory shared with the daemon, beside training.

A snapshot is copied on the card at a step boundary. A thread then writes the copy to the shared memory while training goes on. Values
that arrive are brought to the card while a step is computed, and are applied at its end. On the CPU both are plain copies, since
nothing would be faster beside training.

Shapes: N values of a unit, of all its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import torch

from peer.machine.device import is_on_card, is_out_of_memory

PIECE_BYTES: Final = 1 << 26
"""Of a copy between the two memories. A copy from plain memory blocks its thread, and a small one blocks it for a short time."""


class Bridge:
    """Copies beside training for one device.

    Args:
        is_beside: whether copies go beside training; by default on cards only.
    """

    def __init__(self, device: torch.device, *, is_beside: bool | None = None) -> None:
        self._device = device
        self._is_beside = is_on_card(device) if is_beside is None else is_beside
        self._threads: ThreadPoolExecutor | None = None
        self._leaving: Future[None] | None = None
        self._brought: Future[list[torch.Tensor]] | None = None

    # --- out ---

    def send(self, parts: Sequence[tuple[torch.Tensor, torch.Tensor]], *, at_once: bool = False) -> None:
        """Write parameters into parts of the shared memory, each of the same shape: all as they are now. `wait_sent` returns when
        it is done. On a card without memory for a copy, or with `at_once`, they are written before this returns, and so are values
        that lie in the machine's memory already.
        """
        is_beside = self._is_beside and not at_once
        beside = [pair for pair in parts if is_beside and pair[0].device.type == self._device.type]
        now = [pair for pair in parts if not is_beside or pair[0].device.type != self._device.type]
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            copies = [(room, parameter.detach().clone()) for parameter, room in beside]
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            now = list(parts)
        for parameter, room in now:
            room.copy_(parameter.detach())
        if copies:
            self._leaving = self._pool().submit(self._write, copies, self._reached())

    def wait_sent(self, timeout_s: float | None = None) -> None:
        """Wait until the snapshot is written. Raises what its copy raised, TimeoutError after `timeout_s`."""
        if self._leaving is not None:
            self._leaving.result(timeout_s)
            self._leaving = None

    def when_sent(self, act: Callable[[BaseException | None], None]) -> None:
        """Once the snapshot is written, call this with what its copy raised, in this thread or in the one that writes."""
        if self._leaving is None:
            act(None)
        else:
            self._leaving.add_done_callback(lambda done: act(done.exception()))

    # --- in ---

    def bring(self, values: Sequence[torch.Tensor]) -> None:
        """Begin to bring these parts of the shared memory to the device. `brought` gives them."""
        if self._is_beside and self._brought is None:
            self._brought = self._pool().submit(self._read, list(values))

    def brought(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values on the device: those that `bring` began to bring, else brought now."""
        coming, self._brought = self._brought, None
        if coming is None:
            return [value.to(self._device) for value in values]
        return coming.result()

    # --- threads ---

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="bridge")
        return self._threads

    def _reached(self) -> torch.cuda.Event | None:
        """A mark in the card's queue after what was given to it until now."""
        if self._device.type != "cuda":
            return None
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self._device))
        return mark

    def _write(self, copies: list[tuple[torch.Tensor, torch.Tensor]], after: torch.cuda.Event | None) -> None:
        with torch.no_grad(), _side_stream(self._device, after):
            while copies:  # each copy's memory is free for training once it is written
                room, values = copies.pop(0)
                for out, part in _pieces(room, values):
                    out.copy_(part)

    def _read(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad(), _side_stream(self._device, None):
            return [value.to(self._device) for value in values]


def _pieces(room: torch.Tensor, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both in the same pieces. A room that is some columns of a matrix is cut by its rows."""
    size = PIECE_BYTES // values.element_size()
    if room.is_contiguous():
        room, values = room.view(-1), values.view(-1)
    else:
        size = max(1, size // values[0].numel())
    for begin in range(0, len(values), size):
        yield room[begin : begin + size], values[begin : begin + size]


@contextmanager
def _side_stream(device: torch.device, after: torch.cuda.Event | None) -> Iterator[None]:
    """On a CUDA card, another queue than training's, that begins after `after` and is done at the block's end."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        if after is not None:
            stream.wait_event(after)
        yield
        stream.synchronize()
