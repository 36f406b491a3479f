"""The lanes' parts that a contribution to a stage's round brings: a lane counts once in a round, whichever peer brings it. Pure.

A seat may change hands while its share is in an exchange already. Then its former holder and the new one bring the same share; so
do a dead member and the peer that was given its part. Each names its parts in its signed header, and reducers count one of them. A
result or a record that has a lane twice can neither be made nor read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId, short
from protocol.received import require
from protocol.rounds.messages.bounds import MAX_TOKENS, require_tokens

MAX_PARTS: Final = 64
"""Parts of one contribution: its own share, and those of ended lanes, which were given to its sender."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """One lane's part in one of its rounds, by one stage. Its content depends on lane and round alone: no stage brings anything
    before all hold that snapshot (protocol/pipeline/stage_machine.py). A peer that takes a seat brings the same snapshot.

    Attributes:
        lane: its number, 32 bits.
        round: as the lane counts them.
        tokens: of it alone.
    """

    lane: int
    round: int
    tokens: int

    def __post_init__(self) -> None:
        require(0 <= self.lane < 1 << 32, f"lane {self.lane}", "0 to 2^32")
        require(0 <= self.round < 1 << 32, f"round {self.round}", "0 to 2^32")
        require_tokens(self.tokens)

    @property
    def place(self) -> tuple[int, int]:
        """The key that may count only once."""
        return self.lane, self.round


def require_parts(parts: Sequence[LanePart], tokens: int) -> None:
    """Check the parts of one contribution: their tokens add up to `tokens`, and there are none outside of lanes."""
    if not parts:
        return
    require(len(parts) <= MAX_PARTS, f"{len(parts)} lanes' parts", f"at most {MAX_PARTS}")
    sum_tokens = min(MAX_TOKENS, sum(part.tokens for part in parts))
    require(sum_tokens == tokens, f"lanes' parts of {sum_tokens} tokens", f"the contribution's {tokens}")
    require_once([parts])


def require_once(brought: Iterable[Sequence[LanePart]]) -> None:
    """Check that no lane is twice among the contributions to one sum."""
    places = [part.place for parts in brought for part in parts]
    require(len(set(places)) == len(places), "a lane twice in one round", "each once, whoever brings it")


def brought_twice(brought: Mapping[PeerId, Sequence[LanePart]]) -> dict[PeerId, str]:
    """Contributions that are not summed because another brings one of their lanes, and why. The others have every lane at most
    once.

    A peer with more lanes comes first, so that a lane that it alone brings is not lost; then peers come by id.
    """
    by: dict[tuple[int, int], PeerId] = {}
    found: dict[PeerId, str] = {}
    for peer, parts in sorted(brought.items(), key=lambda item: (-len(item[1]), item[0])):
        twice = next((part for part in parts if part.place in by), None)
        if twice is None:
            by.update((part.place, peer) for part in parts)
        else:
            found[peer] = f"its part of lane {twice.lane} is brought by {short(by[twice.place])}"
    return found
