"""The curve of a run: one point for each round. Losses are in nats a byte."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Protocol


def _bits(nats: float | None) -> float | None:
    return None if nats is None else nats / log(2)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A round of the run; None for what is not known.

    Attributes:
        index: its number, from 1.
        unix_s: when it was first seen.
        total_tokens: tokens of the run up to it.
        num_members: peers whose work it counts.
        own_tokens: of these the tokens of this peer; None on a host.
        heldout_nats: loss on the held-out text; None where nobody measured it.
        train_nats: training loss: the mean of the members on a host, the own one on a peer.
    """

    index: int
    unix_s: float | None
    total_tokens: int
    num_members: int
    own_tokens: int | None = None
    heldout_nats: float | None = None
    train_nats: float | None = None

    def values(self) -> dict[str, float | int | None]:
        """By the names of the columns."""
        return {
            "round": self.index,
            "unix_s": self.unix_s,
            "heldout_loss_nats": self.heldout_nats,
            "heldout_bits_per_byte": _bits(self.heldout_nats),
            "train_loss_nats": self.train_nats,
            "train_bits_per_byte": _bits(self.train_nats),
            "tokens": self.total_tokens,
            "members": self.num_members,
            "own_tokens": self.own_tokens,
        }


COLUMNS = tuple(CurvePoint(0, None, 0, 0).values())


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a run, by ascending rounds. `run_id` is the beginning of its id in hexadecimal; empty if it is not known."""

    run: str
    run_id: str
    points: tuple[CurvePoint, ...]


class CurveSource(Protocol):
    """A daemon of this machine that keeps curves on its disk."""

    def read_curve(self, state_dir: Path | None, run: str, /) -> Curve | None:
        """The curve of that run, of the last one for ""; None if it keeps none. Blocks."""
        ...
