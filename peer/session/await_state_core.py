"""Whether a peer may begin to train: on verified state of the run, or at the run's start. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.tables import duration

PATIENCE_S: Final = 10.0
"""A short run is replayed within this time. The owner is told nothing earlier."""


@dataclass(frozen=True, slots=True)
class Found:
    """The state that training could begin on.

    Attributes:
        own_index: the round whose state is here; 0 is the start, which every peer can compute.
        reported_index: the newest round that the host or verified commits report, 0 if there is no report.
        is_next_at_hand: this peer acked a first round and knows of no commit. The bytes of that round are on its disk, and it may
            be the only peer that can finish it.
    """

    own_index: int
    reported_index: int
    is_next_at_hand: bool = False


def lacks_state(found: Found) -> bool:
    """Whether the run has progressed and no state of it is here. Training from the start would then create a separate run with one
    member. Older state is enough, because a run continues from the state that survives.
    """
    return found.own_index == 0 and found.reported_index > 0 and not found.is_next_at_hand


def waiting_sentence(reported_index: int, waited_s: float, *, is_outbound_only: bool) -> str:
    """The message to the owner; empty while there is nothing to say. The host's page shows the first 200 letters."""
    if waited_s < PATIENCE_S:
        return ""
    ourselves = "this is one of them" if is_outbound_only else "`potluck doctor` says whether others reach this one"
    return (
        f"waits for the state of round {reported_index}, for {duration(waited_s)} now: nobody who has it can be reached; "
        f"one volunteer must be reachable, --no-listen peers cannot connect to each other ({ourselves}); "
        "it goes on by itself as soon as one is; if nobody has the state any more, the host can begin a new run "
        "from a checkpoint: start_from in its run.toml"
    )
