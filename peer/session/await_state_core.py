"""Whether a peer may begin: on verified state of the run, or where the run itself is at its start. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.tables import duration

PATIENCE_S: Final = 10.0
"""A run of few rounds is replayed within this time: nothing is said to its owner before."""


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to begin on.

    Attributes:
        own_index: the round whose state is here; 0 is the start, which everybody can compute.
        told_index: the newest round that the host or verified commits tell of, 0 where nobody tells of any.
        is_next_at_hand: this peer acked a first round and knows of no commit: the bytes of that round are on its disk, and it may
            be the last one that can finish it.
    """

    own_index: int
    told_index: int
    is_next_at_hand: bool = False


def lacks_state(found: Found) -> bool:
    """Whether there is a run and nothing of it here. What is trained from the start then is another run, with nobody in it. Older
    state is enough: a run goes on from what survivors hold.
    """
    return found.own_index == 0 and found.told_index > 0 and not found.is_next_at_hand


def waiting_sentence(told_index: int, waited_s: float, *, is_outbound_only: bool) -> str:
    """What its owner is told; empty while there is nothing to say. The host's page shows the first 200 letters."""
    if waited_s < PATIENCE_S:
        return ""
    ourselves = "this is one of them" if is_outbound_only else "`potluck doctor` says whether others reach this one"
    return (
        f"waits for the state of round {told_index}, for {duration(waited_s)} now: nobody who has it can be reached; "
        f"one volunteer must be reachable, --no-listen peers cannot connect to each other ({ourselves}); "
        "it goes on by itself as soon as one is; where nobody has the state any more, the host can begin a new run "
        "from a checkpoint: start_from in its run.toml"
    )
