"""Turns to measure a commit's held-out loss: a pure order of the peers that can. The first is the evaluator, the next ones stand in.

The order is a hash of run, unit, index and peer. It leaves out the commit id: a leader could try records until it comes first itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from protocol.ids import PeerId, RunId, UnitName
from protocol.rounds.lineage.quorum import by_hash

NUM_EVALUATORS: Final = 3
"""Peers that measure each commit of a run with a loss gate: one of them may lie."""


def evaluator_order(run_id: RunId, unit: UnitName, index: int, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """These peers in the order of their turns at commit `index` of a unit, each once. Of the whole model the peers are the commit's
    roster, of an expert those of the spine's roster that hold it, with the expert's name as the unit.
    """
    prefix = b"evaluate" + run_id + unit.encode() + index.to_bytes(8, "big")
    return by_hash(prefix, frozenset(peers))


def is_turn_of(me: PeerId, order: Iterable[PeerId], is_here: Callable[[PeerId], bool], seats: int = 1) -> bool:
    """Whether this peer measures: it is in the order, and has one of the seats of those that are here."""
    return me in islice((peer for peer in order if peer == me or is_here(peer)), seats)
