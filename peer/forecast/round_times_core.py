"""How long the rounds of a run last, how much of the time they take from training, and the bytes that they move. Pure.

The bytes are those of protocol/run/traffic.py.

Rules: R5, R11 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from peer.forecast.crew_core import Link
from protocol.run.traffic import LinkNumbers, round_bytes, too_slow, update_bytes

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

AGREEMENT_S: Final = 1.0
"""Seconds of a round that no byte of a model takes: reports that make it due, a proposal, and the acks of a quorum."""

COPY_BYTES_PER_S: Final = 6e9
"""Rate of the two copies for which training stands still in a round: half of what a PCIe 3.0 slot of 16 lanes carries."""

_COPIED_BYTES: Final = 8
"""Of a value: its snapshot and its shift, in float32."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The members of a round.

    Attributes:
        members: that are there at a time, on average.
        tokens_per_s: of all of them together while they train.
        link: the slowest one, which every slice's mean waits for.
    """

    members: float
    tokens_per_s: float
    link: Link


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """An average round.

    Attributes:
        round_s: from one round to the next.
        due_s: of training, until a round is due.
        exchange_s: of its bytes and its agreement on the slowest link; 0 for one member alone.
        tokens: of all members in a round.
        local_steps: of each member in a round.
        up_bytes, down_bytes: of one member that takes inbound connections.
        lost_share: of the time that members do not train for its sake, 0 to 1.
        problem: why no round can end, in one line; empty if they can.
    """

    round_s: float
    due_s: float
    exchange_s: float
    tokens: float
    local_steps: float
    up_bytes: int
    down_bytes: int
    lost_share: float
    problem: str = ""


def round_times(run: RunConfig, pace: Pace) -> RoundTimes:
    """The average round of a run with these members. Their speed is above 0."""
    members = min(pace.members, run.run.max_members)
    up, down = _bytes(run, members)
    exchange_s = _exchange_s(up, down, pace.link) if up + down else 0.0
    due_s = _due_s(run, pace, exchange_s)
    stands_s = _COPIED_BYTES * run.held_elements / COPY_BYTES_PER_S if exchange_s else 0.0
    if run.round.mode == "blocking":
        trains_s, lost_s = due_s, exchange_s + stands_s
    else:
        trains_s, lost_s = max(due_s, exchange_s), stands_s
    tokens = pace.tokens_per_s * trains_s
    return RoundTimes(
        round_s=trains_s + lost_s,
        due_s=due_s,
        exchange_s=exchange_s,
        tokens=tokens,
        local_steps=tokens / max(1.0, pace.members) / run.inner.batch_tokens,
        up_bytes=up,
        down_bytes=down,
        lost_share=lost_s / (trains_s + lost_s),
        problem=_problem(run, max(up, down), pace.link),
    )


def _bytes(run: RunConfig, members: float) -> tuple[int, int]:
    """(up, down) of a member in a round; between two whole numbers of members the larger one."""
    held, chunk = run.held_elements, run.chunk_elements
    up, down = (update_bytes(codec, held, chunk) for codec in (run.round.codec, run.result_codec))
    return round_bytes(up, down, -int(-members // 1), reduces=True)


def _exchange_s(up_bytes: int, down_bytes: int, link: Link) -> float:
    return AGREEMENT_S + max(up_bytes / link.up, down_bytes / link.down) * 8 / 1e6


def _due_s(run: RunConfig, pace: Pace, exchange_s: float) -> float:
    """Seconds of training until a round is due: at its target tokens, or after the longest interval. With "auto" as short as its
    exchange allows; with a ramp, the average of the run.
    """
    target, members = run.round_target, max(1, round(pace.members))
    most_s = target.most_tokens / pace.tokens_per_s
    if target.exchange_share:
        due_s = min(most_s, max(target.least(members) / pace.tokens_per_s, exchange_s / target.exchange_share))
    else:
        due_s = run.run.total_tokens / target.num_rounds(run.run.total_tokens, members) / pace.tokens_per_s
        due_s = min(most_s, due_s)
    return min(due_s, run.round.longest_interval_s)


def _problem(run: RunConfig, each_way_bytes: int, link: Link) -> str:
    slowest = LinkNumbers(min(link.up, link.down), each_way_bytes, run.round.longest_interval_s)
    return too_slow(slowest).replace("round.link_mbit_per_s", "a link of", 1)
