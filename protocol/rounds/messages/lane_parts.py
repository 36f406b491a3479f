"""Whose parts a contribution to a stage's round brings, in a run of lanes: a lane counts once in a round, whoever brings it. Pure.

A seat may change hands while its share is in an exchange already: then its former holder and who took it bring the same, and so do a
member that died and who was given its part. Each says so in its signed header, reducers count one of them, and neither a result nor a
record that has a lane twice can be made or read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId, short
from protocol.received import require
from protocol.rounds.messages.bounds import MAX_TOKENS, require_tokens

MAX_PARTS: Final = 64
"""In one contribution: its own share, and those of lanes that ended, which were given to its sender."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """What a lane brings into one of its rounds, by one stage. Its content hangs on lane and round alone: stages bring nothing before
    all hold the snapshot that it is (protocol/pipeline/stage_machine.py), and who takes a seat brings that snapshot.

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
        """What is to count once."""
        return self.lane, self.round


def require_parts(parts: Sequence[LanePart], tokens: int) -> None:
    """The parts of one contribution of so many tokens, which none of them makes up otherwise; none outside of lanes."""
    if not parts:
        return
    require(len(parts) <= MAX_PARTS, f"{len(parts)} lanes' parts", f"at most {MAX_PARTS}")
    brought = min(MAX_TOKENS, sum(part.tokens for part in parts))
    require(brought == tokens, f"lanes' parts of {brought} tokens", f"the contribution's {tokens}")
    require_once([parts])


def require_once(brought: Iterable[Sequence[LanePart]]) -> None:
    """No lane is twice in what several bring into one sum."""
    places = [part.place for parts in brought for part in parts]
    require(len(set(places)) == len(places), "a lane twice in one round", "each once, whoever brings it")


def brought_twice(brought: Mapping[PeerId, Sequence[LanePart]]) -> dict[PeerId, str]:
    """Whose contributions are not summed because another has a lane of theirs, and why: all others have every lane at most once.

    Who brings most lanes is taken first, so that a lane that one alone brings is not lost with another; then by id.
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
