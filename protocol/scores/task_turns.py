"""The parts of a task and the peers that measure them. Pure.

A peer's place comes from a hash of run, task, index and peer, as for the held-out loss (protocol/rounds/lineage/evaluators.py). The
commit id is left out: a leader could try records until it comes first itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from protocol.ids import PeerId, RunId, UnitName
from protocol.rounds.lineage.evaluators import evaluator_order


def items_of_part(task: str, num_items: int, part: int, parts: int) -> tuple[int, ...]:
    """The items that one of the parts measures, ascending. All parts together have each item once, and sizes differ by one at most."""
    by_hash = sorted(range(num_items), key=lambda item: (sha256(b"item" + task.encode() + b"%d" % item).digest(), item))
    return tuple(sorted(by_hash[part::parts]))


def turn_order(
    run_id: RunId, unit: UnitName, task: str, index: int, part: int, peers: Iterable[PeerId]
) -> tuple[PeerId, ...]:
    """These peers in the order of their turns at a part of a task at commit `index` of the spine `unit`, each once. Neighbouring parts
    begin with different peers, as long as there are enough.
    """
    order: Sequence[PeerId] = evaluator_order(run_id, UnitName(f"{unit} task {task}"), index, peers)
    first = part % len(order) if order else 0
    return (*order[first:], *order[:first])
