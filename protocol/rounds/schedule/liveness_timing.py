"""How fast a silent peer is suspected: one number, and those that follow from it.

To suspect sooner or later change `SUSPECT_AFTER_S` alone (CONTRIBUTING.md, "Change how fast a silent peer is suspected").
"""

from __future__ import annotations

from typing import Final

SUSPECT_AFTER_S: Final = 2.0
"""Silence that makes a suspect of a member of an exchange. It has to be several times the 0.4 s between two signs of life."""

PROMISE_FACTOR: Final = 2.0
PROMISE_WITHIN_S: Final = PROMISE_FACTOR * SUSPECT_AFTER_S
"""How long a take-over waits for votes: a voter may have to wait for one suspicion first, and its answer has to travel."""

LANE_FACTOR: Final = 2.0
LANE_SUSPECT_AFTER_S: Final = LANE_FACTOR * SUSPECT_AFTER_S
"""Silence that makes a suspect of a member of a lane, which computes all the time. A process that is gone refuses connections, which
is known at once; one that shares its machine with others may be late.
"""

STREAM_FACTOR: Final = 1.5
STALLED_STREAM_S: Final = STREAM_FACTOR * SUSPECT_AFTER_S
"""How long a stream that has begun to bring something may stand still before that is asked for elsewhere. Longer than a suspicion
takes, so that a sender that is gone is known as such by then.
"""

SEAT_FACTOR: Final = 1.0
SEAT_WAIT_S: Final = SEAT_FACTOR * LANE_SUSPECT_AFTER_S
"""How long data of a lane may wait for the keeper's message that the lane begins. A keeper that is silent for longer is gone."""
