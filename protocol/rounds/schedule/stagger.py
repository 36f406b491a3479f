"""When the rounds of several units are due, so that they do not fall together: each unit's are a whole round's work apart, and those
of different units a share of that (Streaming DiLoCo, 2501.18512, section 3.1).

The first round of unit p of P is due after (p + 1) / P of a round's work, each later one a whole round's work after the one before it
*was due*: what a round was opened too late is taken off the next one, so that units do not drift towards each other.

A start of everybody makes all units due at once, and each death takes other work from each of them. So the leader of a round also
looks at when the first unit's next one is due: the unit's own is put p / P of a round's work after it, the nearest such place that is
at least a half and less than one and a half away. One round after whatever it was, all are evenly spread again. All here is on
integers, and the next target goes into the commit record, so every peer has the same schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHORTEST: Final = 2
"""A round's work is never cut to less than one part in so many: who is far behind keeps its pace, and gets another place."""


@dataclass(frozen=True, slots=True)
class Stagger:
    """Unit number `place` of `num_units` whose rounds are spread over one round's work; 0 of 1 for units that are not."""

    place: int = 0
    num_units: int = 1

    @property
    def first(self) -> Stagger:
        """That of the first unit."""
        return Stagger(0, self.num_units)

    def due_at(self, target_tokens: int, index: int) -> int:
        """Ready tokens at which the round after commit `index` is due."""
        return target_tokens if index else max(1, target_tokens * (self.place + 1) // self.num_units)

    def interval_s(self, longest_interval_s: float, index: int) -> float:
        """Seconds after which it is due at the latest."""
        return longest_interval_s if index else longest_interval_s * (self.place + 1) / self.num_units

    def next_target(self, target_tokens: int, due_at: int, offered_tokens: int, until_first: int | None = None) -> int:
        """The target of the round after one that was due at `due_at` ready tokens and was offered `offered_tokens`.

        Args:
            target_tokens: a whole round's work.
            until_first: tokens from the snapshots of this round until the first unit's next round is due, negative where that is over;
                None where it is not known, or this is the first unit.
        """
        if self.num_units == 1:
            return target_tokens
        if self.place and until_first is not None:
            place_tokens = until_first + target_tokens * self.place // self.num_units
            least = self.shortest(target_tokens)
            return least + (place_tokens - least) % target_tokens
        late_tokens = max(0, offered_tokens - due_at)
        return max(self.shortest(target_tokens), target_tokens - late_tokens)

    def shortest(self, target_tokens: int) -> int:
        """What a whole round's work is cut to at most."""
        return target_tokens if self.num_units == 1 else -(-target_tokens // SHORTEST)

    def longest(self, target_tokens: int) -> int:
        """What it becomes at most, so that a unit finds back to its place."""
        return target_tokens if self.num_units == 1 else self.shortest(target_tokens) + target_tokens - 1


UNSTAGGERED: Final = Stagger()
"""Of a unit whose rounds are nobody else's business."""
