"""The rules for what a reducer says of chunks that it left out of its means because they disagree with the others.

Whether they disagree only the contributions show. But an honest reducer never leaves out more than half of the members of a chunk, and
nobody where few take part; so a reducer cannot deny most members their credit. Only strangers may all be left out.

Rules: R10, R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from protocol.ids import PeerId, short
from protocol.kinds.robust_table import RobustFacts, most_left_out
from protocol.rounds.messages.messages import ResultHeader
from protocol.rounds.messages.record import Disagreement, SliceRecord


def disagreements(header: ResultHeader) -> tuple[Disagreement, ...]:
    """The contributions of which a result leaves chunks out, in the order in which it counts them."""
    return tuple(
        Disagreement(entry.peer, entry.num_left_out, entry.agreement_percent)
        for entry in header.included
        if entry.num_left_out
    )


def disagreement_problem(disagreeing: Sequence[Disagreement], counted: Mapping[PeerId, bool], num_chunks: int) -> str:
    """Why this cannot be what an honest reducer left out of a slice; empty where it can.

    Args:
        counted: the members that it summed, and of each whether it is a stranger.
        num_chunks: of the slice.
    """
    peers = [entry.peer for entry in disagreeing]
    if peers != sorted(set(peers)):
        return "a sum that names those with chunks left out twice or in another order; expected each once, in the order of peers"
    stranger = next((peer for peer in peers if peer not in counted), None)
    if stranger is not None:
        return f"a sum that leaves chunks of {short(stranger)} out, which it does not count"
    greedy = next((entry for entry in disagreeing if entry.num_chunks > num_chunks), None)
    if greedy is not None:
        return (
            f"a sum that leaves out {greedy.num_chunks} chunks of {short(greedy.peer)}; expected at most {num_chunks}"
        )
    trusted = [peer for peer, is_stranger in counted.items() if not is_stranger]
    most = most_left_out(len(trusted)) * num_chunks
    found = sum(entry.num_chunks for entry in disagreeing if not counted[entry.peer])
    if found > most:
        return f"a sum of {len(trusted)} members that leaves out {found} of their chunks; expected at most {most}"
    return ""


def guard_problem(disagreeing: Iterable[Disagreement], guard: RobustFacts) -> str:
    """Why this does not follow the run's rule for means; empty where it does."""
    first = next(iter(disagreeing), None)
    if first is None or guard.leaves_out:
        return ""
    return f'chunks of {short(first.peer)} are left out of a mean; expected none with robust = "{guard.name}"'


def all_disagreeing(slices: Iterable[SliceRecord]) -> tuple[Disagreement, ...]:
    """The disagreements of all of these slices."""
    return tuple(entry for part in slices for entry in part.disagreeing)
