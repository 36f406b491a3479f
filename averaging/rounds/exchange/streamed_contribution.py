"""Our contribution while it is being encoded: chunks that are encoded leave at once."""

from __future__ import annotations

from collections.abc import Sequence

from averaging.rounds.lineage.round_context import Changes


class GrowingContribution:
    """Of all chunks, in grid order, each in its place in `data` from the beginning; its bytes are there once it was encoded.

    It holds no header: chunks without one count for nothing anywhere.
    """

    def __init__(self, data: memoryview, chunks: Sequence[memoryview]) -> None:
        self.data = data
        self.chunks = chunks
        self._is_encoded = bytearray(len(chunks))
        self._is_given_up = False
        self._changes = Changes()

    def grew(self, runs: Sequence[range]) -> None:
        """These chunks are encoded."""
        for run in runs:
            self._is_encoded[run.start : run.stop] = b"\1" * len(run)
        self._changes.notify()

    def give_up(self) -> None:
        """No more will be encoded, and what was is offered by nobody."""
        self._is_given_up = True
        self._changes.notify()

    async def wait(self, run: range) -> bool:
        """Until these chunks are encoded; False once it was given up."""
        while not self._is_given_up:
            if all(self._is_encoded[run.start : run.stop]):
                return True
            await self._changes.wait()
        return False
