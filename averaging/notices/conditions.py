"""Decides which notices are due: what is unusual or final, told once for each time that it begins. No clock in here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

AGAIN_AFTER_S: Final = 3600.0
"""At most one notice of a kind is sent in this time, in seconds."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Something about a daemon that its owner wants to know while away.

    Attributes:
        event: its kind, a word of letters and underscores.
        text: one sentence for people.
        mark: another number is another occurrence, even where the condition never ended.
        for_s: how long it must hold before it is told, in seconds.
    """

    event: str
    text: str
    mark: int = 0
    for_s: float = 0.0


class NoticeBook:
    """The conditions that hold and what was told of them.

    Args:
        told: when each kind was last told, in seconds since 1970, perhaps by an earlier process.
    """

    def __init__(self, told: Mapping[str, float]) -> None:
        self.told = dict(told)
        self._since: dict[tuple[str, int], float] = {}
        self._is_told: set[tuple[str, int]] = set()

    def due(self, conditions: Iterable[Condition], now_s: float, unix_s: float) -> list[Condition]:
        """The conditions to tell now, which count as told. `conditions` are all that hold; `now_s` is monotonic."""
        holding = {(each.event, each.mark): each for each in conditions}
        self._since = {key: self._since.get(key, now_s) for key in holding}
        self._is_told.intersection_update(holding)
        found = []
        for key, each in holding.items():
            is_new = key not in self._is_told and now_s - self._since[key] >= each.for_s
            if is_new and self.may_tell(each.event, unix_s):
                self._is_told.add(key)
                self.told[each.event] = unix_s
                found.append(each)
        return found

    def may_tell(self, event: str, unix_s: float) -> bool:
        """Whether no notice of this kind was sent lately. A clock that was set back does not silence it."""
        return not 0.0 <= unix_s - self.told.get(event, float("-inf")) < AGAIN_AFTER_S
