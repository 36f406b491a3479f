"""Our contribution while it is being encoded: encoded chunks are sent at once."""

from __future__ import annotations

from collections.abc import Sequence

from averaging.rounds.lineage.round_context import Changes


class GrowingContribution:
    """All chunks, in grid order, each at its place in `data` from the beginning; its bytes are valid once it was encoded.

    It holds no header: chunks without one count nowhere.
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
        """No more will be encoded, and what was encoded will not be offered."""
        self._is_given_up = True
        self._changes.notify()

    async def wait(self, run: range) -> bool:
        """Wait until these chunks are encoded; False if the contribution was given up."""
        while not self._is_given_up:
            if all(self._is_encoded[run.start : run.stop]):
                return True
            await self._changes.wait()
        return False
