"""When a helper is needed, how it is started, and when it is started again. Pure.

Rules: R7 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KEPT_FOR_S: Final = 600.0
"""A helper that is not needed any more runs on for this long: peers come and go, and it takes seconds to start."""

FIRST_PAUSE_S: Final = 5.0
MAX_PAUSE_S: Final = 300.0
"""Pause before a helper that ended is started again; it doubles each time."""

STEADY_S: Final = 600.0
"""A helper that ran for this long has recovered."""


def needs_helper(are_hidden: Sequence[bool]) -> bool:
    """Whether the peers at work, each hidden (nobody can connect to it) or not, lack reducers. Several peers of which fewer than half
    can be connected to do: then their leaders ask others to reduce (R7).
    """
    num_reachable = sum(not is_hidden for is_hidden in are_hidden)
    return len(are_hidden) > 1 and 2 * num_reachable < len(are_hidden)


@dataclass(frozen=True, slots=True)
class HelperPlan:
    """Since when the helper is needed, last was, and may be started; times of the monotonic clock."""

    needed_s: float | None = None
    not_before_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S

    def after_look(self, *, is_needed: bool, now_s: float) -> HelperPlan:
        """The plan after a look at the peers."""
        return HelperPlan(now_s, self.not_before_s, self.pause_s) if is_needed else self

    def after_end(self, *, ran_s: float, now_s: float) -> HelperPlan:
        """The plan after a helper ended by itself."""
        pause_s = FIRST_PAUSE_S if ran_s >= STEADY_S else self.pause_s
        return HelperPlan(self.needed_s, now_s + pause_s, min(MAX_PAUSE_S, 2 * pause_s))

    def is_to_run(self, now_s: float) -> bool:
        """Whether a helper should run now."""
        return self.needed_s is not None and now_s - self.needed_s <= KEPT_FOR_S and now_s >= self.not_before_s


def helper_arguments(
    folder: str, invite: str, *, listen_host: str, listen_port: int, announce_host: str
) -> tuple[str, ...]:
    """The arguments of `potluck` for a helper with its state in `folder`. `invite` is empty for one that was admitted before."""
    place = ("--state-dir", folder, "--listen-host", listen_host, "--listen-port", str(listen_port))
    announced = ("--announce-host", announce_host) if announce_host else ()
    return ("join", *((invite,) if invite else ()), "--reduce-only", "--screen", "plain", *place, *announced)
