"""When the rounds of several units are due, so that they do not coincide. Rounds of one unit are a whole round's work apart, and
those of different units a share of that (Streaming DiLoCo, 2501.18512, section 3.1).

The first round of unit p of P is due after (p + 1) / P of a round's work. Each later one is due a whole round's work after the
previous one *was due*. A late opening is taken off the next round, so that units do not drift towards each other.

When everybody starts at once all units are due at once, and each death takes different work from each of them. So the leader of a
round also looks at when the first unit's next round is due. It puts its own unit p / P of a round's work after that. Of these
places it takes the one at least half a round and less than one and a half away. After one round all units are evenly spread again.
All numbers are integers, and the next target goes into the commit record, so every peer has the same schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHORTEST: Final = 2
"""A round's work is never cut to less than 1 / SHORTEST of it: a peer that is far behind keeps its rate, and gets another place."""


@dataclass(frozen=True, slots=True)
class Stagger:
    """Unit number `place` of `num_units` whose rounds are spread over one round's work; 0 of 1 for units that are not staggered."""

    place: int = 0
    num_units: int = 1

    @property
    def first(self) -> Stagger:
        """The stagger of the first unit."""
        return Stagger(0, self.num_units)

    def due_at(self, target_tokens: int, index: int) -> int:
        """Ready tokens at which the round after commit `index` is due."""
        return target_tokens if index else max(1, target_tokens * (self.place + 1) // self.num_units)

    def interval_s(self, longest_interval_s: float, index: int) -> float:
        """Seconds after which that round is due at the latest."""
        return longest_interval_s if index else longest_interval_s * (self.place + 1) / self.num_units

    def next_target(self, target_tokens: int, due_at: int, offered_tokens: int, until_first: int | None = None) -> int:
        """The target of the round after one that was due at `due_at` ready tokens and was offered `offered_tokens`.

        Args:
            target_tokens: a whole round's work.
            until_first: tokens from the snapshots of this round until the first unit's next round is due, negative if overdue;
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
        """The least that a whole round's work is cut to."""
        return target_tokens if self.num_units == 1 else -(-target_tokens // SHORTEST)

    def longest(self, target_tokens: int) -> int:
        """The most that it becomes, so that a unit finds back to its place."""
        return target_tokens if self.num_units == 1 else self.shortest(target_tokens) + target_tokens - 1


UNSTAGGERED: Final = Stagger()
"""For a unit whose rounds are scheduled alone."""
