"""The cards of one replica, as its processes report them and its daemon keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.plan.layout import World
from peer.training.supervision.ends_core import card_words

Without = Callable[[tuple[str, ...]], World | None]
"""The replica to go on with when a card is lost, for the devices that are left; None to try all of them again."""

_NOT_TAKEN: Final = "no place among the cards that train"
_NO_PLACE: Final = "no place in the replica without {lost}"


class ReplicaCards:
    """The cards of one replica, by rank. One that is lost keeps its place in what is told, and the ranks move up.

    Args:
        devices: torch's names, one for each rank.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        """Of the ranks that train now."""

        self._all = self.devices
        self._places = tuple(range(len(self.devices)))
        """Of each rank that trains now, where it was at first; none on a device that was not among them."""

        self._uuids: list[str | None] = [None] * len(self.devices)
        self._reports: list[CardReport | None] = [None] * len(self.devices)
        self._left_out = [""] * len(self.devices)

    def take(self, rank: int, uuid: str | None, report: CardReport | None) -> None:
        """A running process tells of its card; None for nothing new."""
        for place in self._places[rank : rank + 1]:
            self._uuids[place] = uuid if uuid is not None else self._uuids[place]
            self._reports[place] = report or self._reports[place]

    def go_on(self, lost: int, reason: str, choose: Without) -> World | None:
        """Leave the card of a rank out for this reason, and others that have no place without it. Returns the replica of those that
        are left; None if all are to be tried again, when nothing is changed.
        """
        world = choose(tuple(device for rank, device in enumerate(self.devices) if rank != lost))
        if world is None:
            return None
        free = [place for rank, place in enumerate(self._places) if rank != lost]
        taken: list[int] = []
        for device in world.devices:
            place = next((each for each in free if self._all[each] == device), None)
            if place is not None:
                free.remove(place)
                taken.append(place)
        for place in self._places[lost : lost + 1]:
            self._left_out[place] = reason
        for place in free:
            self._left_out[place] = _NO_PLACE.format(lost=card_words(self.devices[lost], lost))
        self.devices, self._places = world.devices, tuple(taken)
        return world

    def come_back(self, world: World) -> None:
        """The next processes are on these devices, also on some that were left out or are new."""
        free, taken = list(range(len(self._all))), list[int]()
        for device in world.devices:
            place = next((each for each in free if self._all[each] == device), None)
            if place is None:
                place = self._added(device)
            else:
                free.remove(place)
            self._left_out[place] = ""
            taken.append(place)
        for place in free:
            self._left_out[place] = self._left_out[place] or _NOT_TAKEN
        self.devices, self._places = world.devices, tuple(taken)

    def _added(self, device: str) -> int:
        self._all = (*self._all, device)
        self._uuids.append(None)
        self._reports.append(None)
        self._left_out.append("")
        return len(self._all) - 1

    def states(self, tokens_per_s: float, tokens_trained: int) -> tuple[CardState, ...]:
        """Each card by its first rank, with its share of what the replica does."""
        num_cards = len(self.devices)
        return tuple(
            CardState(
                device=device,
                uuid=self._uuids[place],
                rank=place,
                tokens_per_s=tokens_per_s / num_cards if place in self._places else 0.0,
                tokens_trained=tokens_trained / num_cards if place in self._places else 0.0,
                report=self._reports[place],
                left_out=self._left_out[place],
            )
            for place, device in enumerate(self._all)
        )

    def named(self, rank: int, reason: str) -> str:
        """The reason with the card that gave it, where there are several."""
        return f"{card_words(self.devices[rank], rank)}: {reason}" if len(self.devices) > 1 else reason
