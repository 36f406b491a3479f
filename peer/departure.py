"""How a running peer is asked to leave: everything ends at once, except while it takes part in rounds, where it first says goodbye."""

from __future__ import annotations

import trio


class Departure:
    """One request to leave, which ends the part of the peer that was entered last."""

    def __init__(self) -> None:
        self._scope: trio.CancelScope | None = None

    def ends(self) -> trio.CancelScope:
        """For `with`: the part that a request ends from now on. What comes after it still runs, and no further request ends that: it
        has to be over within a time of its own.
        """
        self._scope = trio.CancelScope()
        return self._scope

    def order(self) -> None:
        """Leave. Without effect where nothing was entered."""
        if self._scope is not None:
            self._scope.cancel()
