"""The memory of a unit's state for the state that comes in its place, while no rounds go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.state import UnitState, absent_state, is_absent
from protocol.errors import PotluckError
from protocol.ids import CommitId


class StateAside:
    """A state that was set aside."""

    def __init__(self, state: UnitState) -> None:
        self._state: UnitState | None = None if is_absent(state) else state

    def take(self, commit: CommitId) -> UnitState | None:
        """The state, whose memory is the caller's from now on; None if it is of another commit. In either case it is gone here."""
        state, self._state = self._state, None
        return state if state is not None and state.head == commit else None

    def drop(self) -> None:
        """Free its memory."""
        self._state = None


@asynccontextmanager
async def set_aside(chain: UnitChain) -> AsyncIterator[StateAside]:
    """Give the memory of the chain's state to the one that comes. If none comes, the state is read from the disk again, as at the
    start. A state that others read, or that is of no use, is not given.
    """
    absent, held = absent_state(chain.state.header, chain.tools.grid.num_elements), chain.held
    is_given = chain.is_sound and not held.is_torn and not held.is_read
    aside = StateAside(chain.state if is_given else absent)
    chain.held.stand_at(absent)
    chain.held.is_torn = True
    try:
        yield aside
    finally:
        if chain.state is absent:
            with trio.CancelScope(shield=True):  # without its values the state must not be used
                await _read_again(chain)


async def _read_again(chain: UnitChain) -> None:
    try:
        await chain.restore_state()
    except PotluckError:
        chain.doubt()
        raise
