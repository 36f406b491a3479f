"""How a running peer is asked to leave: everything ends at once, except while it takes part in rounds, where it first says goodbye.

A peer that takes up another part of the run leaves as well, and comes back at once.
"""

from __future__ import annotations

import trio


class Departure:
    """One request to leave, which ends the part of the peer that was entered last."""

    def __init__(self) -> None:
        self.comes_back = False
        """Whether the peer is to begin anew, with what is on its disk then."""

        self._scope: trio.CancelScope | None = None

    def ends(self) -> trio.CancelScope:
        """For `with`: the part that a request ends from now on. What comes after it still runs, and no further request ends that: it
        has to be over within a time of its own.
        """
        self._scope = trio.CancelScope()
        return self._scope

    def order(self) -> None:
        """Leave. Without effect where nothing was entered."""
        self.comes_back = False
        self._end()

    def begin_anew(self) -> None:
        """Leave as after `order`, and come back; not any more once `order` was given."""
        self.comes_back = True
        self._end()

    def _end(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
