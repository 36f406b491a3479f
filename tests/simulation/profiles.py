"""The faults that may befall a swarm, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from averaging.rounds.lineage.adoption import Mixing
from averaging.rounds.traffic.discovery import SETTLED_LIST_EVERY_S
from averaging.state.unit_log import LogLimits
from protocol.estimates.unit_disk import SMALL_STATE_BYTES
from protocol.rounds.schedule.sum_rules import DEFAULT_SUMS, SumRules
from tests.simulation.layouts import EXPERTS, FRAGMENTS, STAGES, WHOLE, Layout
from tests.simulation.trainer import MEASURED, Costs
from tests.simulation.transitions import (
    ANSWERING,
    AUDITING,
    FLIPPING,
    LEAVING,
    MENDING,
    ROUNDS,
    SPINE,
    SWITCHING,
    TAKING_OVER,
)
from tests.simulation.virtual_time import GRAIN_S

PROCESS_FAULTS = ("join", "leave", "crash", "restart", "freeze", "bit rot", "blackout", "disk rot", "bad donor", "ban")
HOLDERS_DIE = "holders die"
SLOW_LEAVE = "slow leave"
SECOND = "second process"
FULL_DISK = "full disk"
SEED_DEAD = "seed dead"
RENEWAL = "renewal"
LINK_FAULTS = ("two sides", "three sides", "one way", "pair", "coordinator", "slow link", "lossy link")
HOST_FAULTS = ("host restart", "host restored")
RESETS = "resets"
MESSAGE_FAULTS = ("duplicates", "reordering", RESETS)
SKEW = "clock skew"
FAULT_KINDS = (
    *PROCESS_FAULTS,
    HOLDERS_DIE,
    SLOW_LEAVE,
    SECOND,
    FULL_DISK,
    SEED_DEAD,
    *LINK_FAULTS,
    *HOST_FAULTS,
    *MESSAGE_FAULTS,
    SKEW,
)


@dataclass(frozen=True)
class Profile:
    """One kind of story.

    Attributes:
        weights: how often each kind of fault is drawn; "restart" follows each crash and is never drawn.
        beside: kinds of which each comes on top in some of the stories; whatever else a seed draws stays the same.
        num_faults: least and most faults of a story.
        num_peers: least and most peers at the start.
        fault_s: how long a fault lasts, least and most.
        spread_s: faults begin within the first so many seconds.
        turnover: share of the peers that may go, and as many come, between two rounds, for stories that last hours.
        hours: how long such a story lasts by default; 0 for stories of faults.
        converge_s: within this time after everything has healed all stand on one head.
        num_elements: of each unit; it has eight chunks.
        layout: which units there are, and who holds them.
        outbound: share of the peers whom nobody can reach from outside.
        replay_at_most: with more commits to catch up on, a whole state is downloaded.
        small_state_bytes: states that weigh more are written every few commits, not after each.
        codec, result_codec: of contributions, and of results where it is another one.
        costs: what a snapshot and a commit cost the training.
        codec: of contributions and results.
        mixing: how commits are mixed into theta, in stories whose units are staggered; None where neither is so.
        error_feedback: the share of what that left out which is offered again; 0 for none.
        has_liars: up to a third of the founders lie (liars.py), and at most one honest peer is away at a time.
        lies: the kinds of every liar; drawn where none is named.
        has_credentials: credentials end, within minutes, and are renewed.
        grain_s: what comes within so much virtual time comes at once, in any order.
        sums: how reducers sum slices.
        log_slack_bytes: a log may hold so much that says nothing any more before it is written anew.
        reaches: transitions of the round machine that a run of many seeds must have come through, beside those of every round.
    """

    name: str
    weights: dict[str, int] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    num_faults: tuple[int, int] = (3, 5)
    num_peers: tuple[int, int] = (4, 6)
    fault_s: tuple[float, float] = (1.0, 12.0)
    spread_s: float = 25.0
    min_rounds: int = 6
    tokens_per_s: float = 400.0
    round_s: float = 5.0
    longest_interval_s: float = 30.0
    heartbeat_s: float = 1.0
    list_every_s: float = 5.0
    settled_list_every_s: float = SETTLED_LIST_EVERY_S
    converge_s: float = 300.0
    turnover: float = 0.0
    hours: float = 0.0
    num_elements: int = 48
    layout: Layout = WHOLE
    outbound: float = 0.0
    replay_at_most: int = 16
    small_state_bytes: int = SMALL_STATE_BYTES
    codec: str = "int8"
    result_codec: str = ""
    costs: Costs = MEASURED
    reaches: tuple[str, ...] = ()
    mixing: Mixing | None = None
    error_feedback: float = 0.0
    has_credentials: bool = False
    has_liars: bool = False
    lies: tuple[str, ...] = ()
    log_slack_bytes: int = 0
    sums: SumRules = DEFAULT_SUMS
    grain_s: float = GRAIN_S

    @property
    def log_limits(self) -> LogLimits:
        """When a log is written anew: mostly whenever there is anything in it that says nothing any more."""
        return LogLimits(kept_bases=2, growth=1, slack_bytes=self.log_slack_bytes)

    @property
    def has_skew(self) -> bool:
        """Whether clocks are wrong."""
        return SKEW in self.weights

    @property
    def transitions(self) -> tuple[str, ...]:
        """The events that a run of many seeds must have met: rounds, a goodbye if any peer leaves, the spine's moves if there are
        other units, and the profile's own.
        """
        leaving = LEAVING if "leave" in self.weights or SLOW_LEAVE in self.weights else ()
        return (*ROUNDS, *leaving, *(SPINE if len(self.layout.units) > 1 else ()), *self.reaches)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fault that a run of many seeds must have seen."""
        drawn = [kind for kind in FAULT_KINDS if kind in self.weights or kind in self.beside]
        drawn += ["restart"] if "crash" in self.weights else []
        return tuple([*drawn, RENEWAL] if self.has_credentials else drawn)


_MIXED = {
    "join": 3,
    "leave": 2,
    "crash": 5,
    "freeze": 4,
    "two sides": 2,
    "three sides": 1,
    "one way": 2,
    "pair": 2,
    "coordinator": 1,
    "slow link": 2,
    "lossy link": 2,
    "duplicates": 2,
    "reordering": 2,
    SKEW: 1,
}
_MANY_FAULTS = (*TAKING_OVER, *MENDING)
_APART = (*_MANY_FAULTS, *SWITCHING, *ANSWERING)
_SIDES = {"two sides": 4, "three sides": 2, "one way": 2, "pair": 2, "coordinator": 1, "crash": 1, "join": 1}

_FEEDBACK = Profile(
    "feedback",
    {**_MIXED, **_SIDES, "crash": 6},
    beside=("blackout", "disk rot"),
    num_peers=(3, 6),
    num_faults=(4, 8),
    fault_s=(1.0, 110.0),
    spread_s=60.0,
    converge_s=600.0,
    codec="int4",
    error_feedback=0.95,
    reaches=SWITCHING,
)

_LIARS: Final = Profile(
    "liars",
    {"crash": 5, "freeze": 2, "join": 2, "pair": 2, "lossy link": 1, "duplicates": 1, "reordering": 1},
    num_peers=(4, 7),
    num_faults=(1, 2),
    fault_s=(1.0, 8.0),
    spread_s=10.0,
    min_rounds=3,
    round_s=4.0,
    longest_interval_s=12.0,
    num_elements=16,
    has_liars=True,
)

_FALSE_SUMS: Final = replace(
    _LIARS,
    name="false-sums",
    lies=("result wrong sum",),
    sums=SumRules(audit_share=1.0),
    min_rounds=8,
    reaches=AUDITING,
)
"""Each chunk is long beside the contribution, so it takes the whole share to look at about one a round."""

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("calm", {"join": 2, "leave": 1, "crash": 4}),
        Profile("default", _MIXED, beside=(*HOST_FAULTS, RESETS), reaches=_MANY_FAULTS),
        Profile("faults", _MIXED, num_faults=(7, 14), num_peers=(3, 7), fault_s=(0.5, 25.0), spread_s=60.0),
        Profile("partition", _SIDES, fault_s=(2.0, 45.0), spread_s=40.0),
        Profile(
            "long-partition",
            _SIDES,
            num_peers=(2, 8),
            fault_s=(50.0, 160.0),
            spread_s=60.0,
            converge_s=600.0,
            reaches=_APART,
        ),
        Profile("fragments", _MIXED, layout=FRAGMENTS),
        Profile(
            "streaming",
            {**_MIXED, **_SIDES},
            fault_s=(1.0, 110.0),
            spread_s=60.0,
            converge_s=600.0,
            layout=FRAGMENTS,
            mixing=Mixing(0.5, 500),
            reaches=_MANY_FAULTS,
        ),
        Profile("sparse", _MIXED, codec="topk", result_codec="top6", num_elements=8 * 130),
        Profile(
            "experts",
            {**_MIXED, **_SIDES, "join": 4, "leave": 3, HOLDERS_DIE: 8},
            num_peers=(6, 8),
            fault_s=(1.0, 40.0),
            layout=EXPERTS,
            outbound=0.4,
        ),
        Profile("stages", {**_MIXED, **_SIDES}, num_peers=(4, 8), fault_s=(1.0, 40.0), layout=STAGES),
        Profile(
            "units-apart",
            _SIDES,
            num_peers=(3, 7),
            fault_s=(50.0, 160.0),
            spread_s=60.0,
            converge_s=600.0,
            layout=FRAGMENTS,
            reaches=(*_APART, *FLIPPING),
        ),
        Profile(
            "experts-apart",
            _SIDES,
            num_peers=(6, 8),
            fault_s=(50.0, 160.0),
            spread_s=60.0,
            converge_s=600.0,
            layout=EXPERTS,
            reaches=(*_APART, *FLIPPING),
        ),
        _FEEDBACK,
        replace(_FEEDBACK, name="streaming-feedback", layout=FRAGMENTS, mixing=Mixing(0.5, 500)),
        _LIARS,
        _FALSE_SUMS,
        Profile("rot", {"bit rot": 4, "join": 1, "crash": 1}, num_faults=(3, 6)),
        Profile(
            "recovery",
            {
                "blackout": 3,
                "disk rot": 4,
                "bad donor": 4,
                "ban": 2,
                "crash": 3,
                "join": 3,
                "leave": 1,
                "slow link": 1,
                "bit rot": 1,
            },
            beside=(*HOST_FAULTS, SECOND, FULL_DISK, SEED_DEAD),
            has_credentials=True,
            num_faults=(4, 8),
            fault_s=(1.0, 50.0),
            spread_s=60.0,
            converge_s=600.0,
            replay_at_most=3,
            small_state_bytes=0,
        ),
        Profile("freeze", {"freeze": 5, "crash": 1, "join": 1}, num_faults=(3, 7), fault_s=(0.5, 40.0)),
        Profile(
            "lossy",
            {"lossy link": 4, "slow link": 2, "duplicates": 2, "reordering": 2, "crash": 1, SKEW: 1},
            beside=(RESETS,),
            fault_s=(5.0, 40.0),
        ),
        Profile(
            "slow-leave",
            {SLOW_LEAVE: 8, "slow link": 3, "crash": 1, "join": 2},
            num_peers=(4, 7),
            num_faults=(3, 6),
            spread_s=40.0,
            num_elements=8 * 2048,
        ),
        Profile(
            "churn",
            {"join": 1, "leave": 1, "crash": 1},
            num_peers=(8, 8),
            round_s=1800.0,
            longest_interval_s=1800.0,
            heartbeat_s=30.0,
            list_every_s=300.0,
            converge_s=4000.0,
            turnover=0.3,
            hours=4.0,
            grain_s=0.005,  # of its messages most are heartbeats, each to four peers and back within 50 ms
            log_slack_bytes=1 << 17,  # of 64 members twenty rounds, else each would hash all certificates of a day
        ),
    )
}
