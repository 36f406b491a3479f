"""Which stage a joiner takes, and when moving a replica to another stage pays off. All peers decide alike from the shared view.

A pipeline is as fast as its slowest stage. So a joiner goes where the run lacks most, and a replica moves if that makes the
slowest stage faster for longer than the move takes. In Petals (2209.01188, section 3.2), servers move one by one when the swarm
is less than three quarters as fast as it could be, without counting the cost of a move. Here a move must gain more than its
download costs, and never leaves a stage with a single replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import LocalProtocolError
from protocol.ids import PeerId

SAFE_REPLICAS: Final = 2
"""With one replica only one peer has a stage's newest state."""


@dataclass(frozen=True, slots=True)
class Server:
    """A replica as other peers see it.

    Attributes:
        stage: that it serves, or is loading.
        speed: tokens/s through a stage of cost 1.
        download_bytes_per_s: measured.
        fits: stages that fit in its memory.
    """

    peer: PeerId
    stage: int
    speed: float
    download_bytes_per_s: float
    fits: frozenset[int]
    is_moving: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The stages of a run and their servers.

    Attributes:
        costs: of each stage per token, as in protocol/pipeline/placement/cutting.py.
        state_bytes: of each stage, parameters and moments, as a mover downloads them.
        warm_up_s: from the last byte to the first micro-batch.
        horizon_s: how long a placement is assumed to last; about the time in which one of ten replicas joins or leaves.
    """

    costs: tuple[float, ...]
    state_bytes: tuple[int, ...]
    servers: tuple[Server, ...]
    warm_up_s: float
    horizon_s: float

    def __post_init__(self) -> None:
        if len(self.costs) != len(self.state_bytes) or not self.costs or min(self.costs) <= 0:
            raise LocalProtocolError(
                f"costs {self.costs}, bytes {self.state_bytes}", "one of each a stage, costs above 0"
            )

    def rates(self, servers: Iterable[Server] | None = None) -> list[float]:
        """Tokens/s of each stage, all its replicas together."""
        rates = [0.0] * len(self.costs)
        for server in self.servers if servers is None else servers:
            rates[server.stage] += server.speed / self.costs[server.stage]
        return rates

    def replicas(self) -> list[int]:
        """Number of replicas of each stage."""
        counts = [0] * len(self.costs)
        for server in self.servers:
            counts[server.stage] += 1
        return counts


@dataclass(frozen=True, slots=True)
class StageMove:
    """A move. The replica keeps serving its stage until it has loaded the other one."""

    peer: PeerId
    stage: int
    takes_s: float
    reason: str


def stage_for_joiner(placement: Placement, fits: Iterable[int]) -> int:
    """The stage that the run lacks most, among those that fit: a stage without replicas, then one with a single replica, then the
    slowest.

    Raises:
        LocalProtocolError: no stage fits; protocol/pipeline/placement/cutting.py reports that earlier.
    """
    rates, counts = placement.rates(), placement.replicas()
    lacking = sorted(fits, key=lambda stage: (min(counts[stage], SAFE_REPLICAS), rates[stage], stage))
    if not lacking:
        raise LocalProtocolError("a joiner with room for no stage", "room for one")
    return lacking[0]


def next_move(placement: Placement) -> StageMove | None:
    """The move that gains most for its time, None if none pays off. Of two with equal gain, the shorter one."""
    rates, counts = placement.rates(), placement.replicas()
    best: tuple[tuple[float, float, PeerId], StageMove] | None = None
    # A move gains only if it makes the slowest stage faster, or a stage with fewer than two replicas safer.
    wanted = {stage for stage, rate in enumerate(rates) if rate == min(rates)}
    wanted |= {stage for stage, count in enumerate(counts) if count < SAFE_REPLICAS}
    for server in placement.servers:
        for stage in sorted(wanted & server.fits - {server.stage}):
            if server.is_moving or counts[server.stage] - 1 < min(SAFE_REPLICAS, counts[stage] + 1):
                continue
            takes_s = placement.state_bytes[stage] / server.download_bytes_per_s + placement.warm_up_s
            won_s = _won_s(placement, rates, server, stage)
            is_safer = counts[stage] < SAFE_REPLICAS
            if won_s <= takes_s and not is_safer:
                continue
            reason = f"stage {stage} has {counts[stage]} replicas" if is_safer else _worth(won_s, takes_s, placement)
            order = (-(won_s - takes_s) - (placement.horizon_s if is_safer else 0.0), takes_s, server.peer)
            if best is None or order < best[0]:
                best = (order, StageMove(server.peer, stage, takes_s, reason))
    return None if best is None else best[1]


def _worth(won_s: float, takes_s: float, placement: Placement) -> str:
    return f"{won_s:.0f} s are won in {placement.horizon_s:.0f} s, and moving takes {takes_s:.0f} s"


def _won_s(placement: Placement, rates: Sequence[float], server: Server, stage: int) -> float:
    """Seconds of the present run that are saved within the horizon; negative if the run becomes slower."""
    after = list(rates)
    after[server.stage] -= server.speed / placement.costs[server.stage]
    after[stage] += server.speed / placement.costs[stage]
    if min(rates) <= 0.0:
        empty = sum(rate <= 0.0 for rate in rates)
        return placement.horizon_s * (1 if sum(rate <= 0.0 for rate in after) < empty else -1)
    slowest = [sorted(rates), sorted(after)]
    gain = slowest[1][0] / slowest[0][0] - 1.0
    if gain == 0.0:
        # If two stages are equally slow, a move to one of them gains nothing alone, but half of what both moves gain together.
        num_slowest = sum(rate == slowest[0][0] for rate in rates)
        both = slowest[1][num_slowest - 1] / slowest[0][0] - 1.0 if num_slowest < len(rates) else 0.0
        gain = both / num_slowest
    return gain * placement.horizon_s
