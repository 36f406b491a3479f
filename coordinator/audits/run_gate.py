"""A run's loss gate, as its progress and its calls see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocol.host.host_statements import GateNews
    from protocol.ids import CommitId


class RunGate(Protocol):
    """The loss gate of a run: `coordinator/gate/loss_gate.py`."""

    words: str
    """Why the run is held, or might be, in a sentence; empty while all is well."""

    async def look(self) -> None:
        """Decide again. Call about once a second."""

    def news(self, head: CommitId) -> GateNews:
        """The newest hold, and the newest rewind that the chain of a peer with this head lacks."""
