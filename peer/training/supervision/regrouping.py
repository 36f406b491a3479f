"""A change of cards at the next commit: the processes of a replica end, and new ones begin on cards that include a returned one."""

from __future__ import annotations

import trio

from peer.training.plan.layout import World


class Regrouping:
    """Holds the cards that the next processes of a replica should have, and ends the present processes for them."""

    def __init__(self) -> None:
        self._wanted: World | None = None
        self._life = trio.CancelScope()

    def want(self, world: World) -> None:
        """Go on with these cards, once `end_life` is called."""
        self._wanted = world

    @property
    def is_wanted(self) -> bool:
        """Whether other cards than those of this life are waiting."""
        return self._wanted is not None

    def life(self) -> trio.CancelScope:
        """The scope of a new life. The processes end in an orderly way when it is cancelled, and keep the optimizer's moments."""
        self._life = trio.CancelScope()
        return self._life

    def end_life(self) -> bool:
        """End the life if other cards are wanted. Returns whether they are."""
        if self._wanted is not None:
            self._life.cancel()
        return self._wanted is not None

    def taken(self) -> World | None:
        """The cards for which the last life was ended; None if it ended for another reason."""
        if not self._life.cancelled_caught:
            return None
        world, self._wanted = self._wanted, None
        return world
