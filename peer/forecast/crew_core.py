"""The peers of a plan, from one line: `4xrtx3090,1x8xh100@1000/200,2x5.5tflops:90w`. Pure.

Each group is COUNTx[CARDSx]CARD, or COUNTx and a measured speed: tokens/s of the planned model, or sustained TFLOP/s. `:90w` gives its
power, and `@DOWN/UP` its link in Mbit/s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Final

from peer.forecast.known_cards_core import KnownCard, known_card
from protocol.errors import ConfigError

MOST_PEERS: Final = 1_000_000
MOST_CARDS: Final = 64
MOST_GROUPS: Final = 64
LEAST_MBIT_PER_S: Final = 1e-3
MOST_MBIT_PER_S: Final = 1e6
TOKENS_PER_S: Final = (1e-3, 1e12)
TFLOPS: Final = (1e-6, 1e6)
WATTS: Final = (1e-3, 1e6)
"""Measured speed and power of a peer that can be meant, the least and the most."""

_SHAPE: Final = "peers such as 4xrtx3090,1xh100"
_GROUP: Final = re.compile(r"(?:(-?\d+)x)?(?:(-?\d+)x)?([^:@]*?)(?::([^@]*?)w)?(?:@(.*))?", re.IGNORECASE)
_TOKENS: Final = re.compile(r"(.*?)(?:tok|tokens?)/s", re.IGNORECASE)
_TFLOPS: Final = re.compile(r"(.*?)tflops", re.IGNORECASE)
_MOST_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Link:
    """A link in Mbit/s: `down` to the peer and `up` from it."""

    down: float
    up: float


@dataclass(frozen=True, slots=True)
class Group:
    """Peers that are alike. Either `card` or one of the two speeds is given.

    Attributes:
        text: as it was written.
        count: peers.
        cards: of each peer.
        tokens_per_s: measured, of each peer and the planned model; 0 for none.
        flops_per_s: measured, sustained by each peer with any model; 0 for none.
        watts: of each peer's cards while they train; None where it is not known.
        link: None for that of all peers.
    """

    text: str
    count: int
    cards: int = 1
    card: KnownCard | None = None
    tokens_per_s: float = 0.0
    flops_per_s: float = 0.0
    watts: float | None = None
    link: Link | None = None


def parse_crew(text: str) -> tuple[Group, ...]:
    """The groups of a line.

    Raises:
        ConfigError: nobody at all, an unknown card, or a number out of range; says what would work.
    """
    parts = [part.strip() for part in text.split(",")]
    if not text.strip():
        raise ConfigError("no peers to plan for", _SHAPE)
    if not all(parts):
        raise ConfigError(f"--peers {text!r}", _SHAPE)
    if len(parts) > MOST_GROUPS:
        raise ConfigError(f"--peers with {len(parts)} groups", f"at most {MOST_GROUPS}", "join groups that are alike")
    return tuple(map(_group, parts))


def parse_link(text: str) -> Link:
    """A link: "100/20" is 100 Mbit/s down and 20 up; "100" is both.

    Raises:
        ConfigError: no two numbers from `LEAST_MBIT_PER_S` to `MOST_MBIT_PER_S`.
    """
    down, _, up = text.partition("/")
    try:
        speeds = [float(down), float(up or down)]
    except ValueError:
        speeds = []
    if len(speeds) != 2 or not all(LEAST_MBIT_PER_S <= speed <= MOST_MBIT_PER_S for speed in speeds):
        allowed = f"{LEAST_MBIT_PER_S:g} to {MOST_MBIT_PER_S:,.0f} Mbit/s, down and up, without a unit"
        raise ConfigError(f"link {text!r}", allowed, "such as 100/20")
    return Link(speeds[0], speeds[1])


def num_peers(crew: Sequence[Group]) -> int:
    """Peers of all groups."""
    return sum(group.count for group in crew)


def _group(text: str) -> Group:
    found = _GROUP.fullmatch(text)
    if found is None:
        raise ConfigError(f"--peers {text!r}", _SHAPE)
    count, cards = _counted(text, found[1]), _counted(text, found[2])
    if count > MOST_PEERS or cards > MOST_CARDS:
        raise ConfigError(f"--peers {text!r}", f"at most {MOST_PEERS:,} peers with {MOST_CARDS} cards each")
    watts = _number(text, found[4], "watts", WATTS) if found[4] is not None else None
    link = parse_link(found[5]) if found[5] is not None else None
    what = found[3].strip()
    if not what:
        raise ConfigError(f"--peers {text!r}: no card is named", _SHAPE)
    if measured := _TOKENS.fullmatch(what):
        speed = _number(text, measured[1], "tokens/s", TOKENS_PER_S)
        return Group(text, count, tokens_per_s=speed * cards, watts=watts, link=link)
    if measured := _TFLOPS.fullmatch(what):
        speed = _number(text, measured[1], "TFLOP/s", TFLOPS) * 1e12
        return Group(text, count, flops_per_s=speed * cards, watts=watts, link=link)
    card = known_card(what)
    return Group(text, count, cards, card, watts=card.watts * cards if watts is None else watts, link=link)


def _counted(text: str, digits: str | None) -> int:
    count = 1 if digits is None else int(digits[:_MOST_DIGITS])
    if count < 1:
        raise ConfigError(f"--peers {text!r}: nobody trains", "one peer or more", _SHAPE)
    return count


def _number(text: str, digits: str, unit: str, ends: tuple[float, float]) -> float:
    try:
        value = float(digits.replace("_", ""))
    except ValueError:
        value = nan
    if not ends[0] <= value <= ends[1]:
        raise ConfigError(f"--peers {text!r}: {digits!r} {unit}", f"a number from {ends[0]:g} to {ends[1]:g}")
    return value
