"""Who takes part in the demo, what it does and when: kill one peer half-way, start it again, end when the run has ended. Pure.

gathering --all peers counted or training--> training --half the tokens--> [kill] down
down --a round without the victim, or patience over--> [restart] rejoining --the victim counted--> rejoined
rejoining --most of the tokens, and the victim still starts--> [pause the others] --the victim trains--> [resume the others]
any of these --host finished, all peers gone--> [finish] ended
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from peer.demo.observation import HostStatus, Observation, RoundRow

NUM_PEERS: Final = 3
VICTIM: Final = 2
"""The number of the peer that is killed: one at full speed, so that its absence shows."""
SLOW_PEER: Final = 3
SLOWDOWN: Final = 3.0
DOWN_PATIENCE_S: Final = 20.0
"""A round without the victim normally commits within this; its return waits no longer."""
PAUSE_SHARE: Final = 0.7
"""Of the tokens: whoever was killed is back by then but where starting a process takes longer than three tenths of the run, as on a
busy machine. There the others wait for it: the run would end before it could be counted, and show nothing."""
START_SHARE: Final = 0.5
"""Of the limit, for the first round: whoever gives a slow machine more time gives it more for the start, too."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part.

    Attributes:
        num_peers: numbered from 1.
        experts: the one that each peer holds, in the order of their numbers; empty where everybody holds the whole model.
        num_stages: that the model is cut into, of which each peer holds one; 0 where it is not.
    """

    num_peers: int = NUM_PEERS
    experts: tuple[int, ...] = ()
    num_stages: int = 0

    @property
    def num_experts(self) -> int:
        """Of the run; 0 of one without."""
        return len(set(self.experts))

    @property
    def slow_peer(self) -> int | None:
        """Who is slowed; nobody in lanes, which are as fast as their slowest member."""
        return None if self.num_stages else SLOW_PEER

    def expert_of(self, number: int) -> int | None:
        """The expert of a peer."""
        return self.experts[number - 1] if self.experts else None


WHOLE_MODEL: Final = Cast()
EXPERTS: Final = Cast(num_peers=4, experts=(0, 1, 0, 1))
"""Two holders of each: the victim's expert goes on with the other one, who is at full speed."""
STAGES: Final = Cast(num_peers=6, num_stages=3)
"""Two replicas of each stage, in two lanes: the victim's ends, the other one goes on."""
CASTS: Final = {"data": WHOLE_MODEL, "expert": EXPERTS, "pipeline": STAGES}
"""By what the peers hold."""


class Stage(Enum):
    """Where the demo stands."""

    GATHERING = "gathering"
    TRAINING = "training"
    DOWN = "down"
    REJOINING = "rejoining"
    REJOINED = "rejoined"
    ENDED = "ended"


class Action(Enum):
    """Orders to the shell."""

    KILL_VICTIM = "kill victim"
    RESTART_VICTIM = "restart victim"
    PAUSE_OTHERS = "pause others"
    RESUME_OTHERS = "resume others"
    FINISH = "finish"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class DemoState:
    """The demo so far; times in seconds of the caller's monotonic clock.

    Attributes:
        started_s: when the demo began.
        limit_s: how long it may take altogether.
        killed_s: when the victim was killed, None before.
        index_at_kill: the last committed round then.
        index_at_restart: the last committed round when the victim was started again.
        paused_s: when the others were paused, None before.
        resumed_s: when they were to go on, None before.
        cast: who takes part.
    """

    started_s: float
    limit_s: float
    stage: Stage = Stage.GATHERING
    killed_s: float | None = None
    index_at_kill: int = 0
    index_at_restart: int = 0
    paused_s: float | None = None
    resumed_s: float | None = None
    cast: Cast = WHOLE_MODEL


Step = tuple[DemoState, tuple[Action, ...], str]


def step(state: DemoState, seen: Observation, now_s: float) -> Step:
    """Judge one look at the run: the next state, what to do, and a sentence saying why."""
    trouble = _trouble(state, seen, now_s)
    if trouble:
        return replace(state, stage=Stage.ENDED), (Action.GIVE_UP,), trouble
    host = seen.host
    if len(seen.exits) == state.cast.num_peers:
        return replace(state, stage=Stage.ENDED), (Action.FINISH,), "every peer has left: the run is over"
    if host is None:
        return state, (), "waiting for the host's status page"
    if state.stage is Stage.GATHERING:
        if host.index == 0:
            return state, (), host.reason or "waiting for the first round"
        return replace(state, stage=Stage.TRAINING), (), "the first round has committed"
    if state.stage is Stage.TRAINING:
        if 2 * host.total_tokens < host.target_total_tokens:
            return state, (), host.reason or "training"
        killed = replace(state, stage=Stage.DOWN, killed_s=now_s, index_at_kill=host.index)
        return killed, (Action.KILL_VICTIM,), f"half-way: peer {VICTIM} is killed without warning"
    if state.stage is Stage.DOWN:
        return _while_down(state, seen, now_s)
    if state.stage is Stage.REJOINING:
        return _while_rejoining(state, seen, host, now_s)
    return state, (), host.reason or "training"


def _trouble(state: DemoState, seen: Observation, now_s: float) -> str:
    """Why the demo cannot go on, or an empty string."""
    waited_s = now_s - state.started_s
    if waited_s > state.limit_s:
        return f"not finished within {state.limit_s:.0f} s; --limit-s gives a slow machine more"
    if state.stage is Stage.GATHERING and waited_s > START_SHARE * state.limit_s:
        return f"no round has committed within {START_SHARE * state.limit_s:.0f} s; --limit-s gives a slow machine more"
    for number, code in sorted(seen.exits.items()):
        was_killed = number == VICTIM and state.stage is Stage.DOWN
        if code != 0 and not was_killed:
            return f"peer {number} left with exit code {code}"
    return ""


def _while_down(state: DemoState, seen: Observation, now_s: float) -> Step:
    """The victim is dead: let the others commit without it first, so that its return is a real catching up."""
    victim = seen.peer_ids.get(VICTIM)
    newer = [row for index, row in seen.rounds.items() if index > state.index_at_kill]
    waited_s = now_s - (state.killed_s or now_s)
    # the host tells of the members of the first stage's rounds alone
    if any(victim not in row.members for row in newer) or (state.cast.num_stages and newer):
        reason = f"a round has committed without peer {VICTIM}: it comes back"
    elif waited_s > DOWN_PATIENCE_S:
        reason = f"peer {VICTIM} comes back after {waited_s:.0f} s"
    else:
        return state, (), f"peer {VICTIM} is dead; the others go on"
    last_index = max(seen.rounds, default=0)
    return replace(state, stage=Stage.REJOINING, index_at_restart=last_index), (Action.RESTART_VICTIM,), reason


def _while_rejoining(state: DemoState, seen: Observation, host: HostStatus, now_s: float) -> Step:
    """The victim starts: nothing is done for it while there is time enough, else the others pause until it trains."""
    is_paused = state.paused_s is not None and state.resumed_s is None
    is_counted, report = is_victim_counted(seen, state), seen.reports.get(VICTIM)
    if is_paused and (is_counted or (report is not None and report.worker_state == "training")):
        return replace(state, resumed_s=now_s), (Action.RESUME_OTHERS,), f"peer {VICTIM} trains: the others go on"
    if is_counted:
        return replace(state, stage=Stage.REJOINED), (), f"peer {VICTIM} is counted again"
    if is_paused:
        return state, (), f"the others wait until peer {VICTIM} trains"
    # in lanes the victim's replica has others behind and before it, which have to train for it to be counted
    is_late = host.total_tokens >= PAUSE_SHARE * host.target_total_tokens
    if is_late and state.paused_s is None and not state.cast.num_stages:
        paused = replace(state, paused_s=now_s)
        return paused, (Action.PAUSE_OTHERS,), f"starting takes long here: the others wait until peer {VICTIM} trains"
    return state, (), host.reason or "training"


def round_counting_victim(seen: Observation, after_index: int) -> RoundRow | None:
    """The first round later than `after_index` that has the victim among its members."""
    victim = seen.peer_ids.get(VICTIM)
    later = (row for index, row in sorted(seen.rounds.items()) if index > after_index)
    return next((row for row in later if victim in row.members), None)


def is_victim_counted(seen: Observation, state: DemoState) -> bool:
    """Whether a round has counted the victim since it was started again: by the host's rounds, or, of a stage, by its own word."""
    report = seen.reports.get(VICTIM)
    if state.cast.num_stages:
        return report is not None and report.rounds_counted > 0
    return round_counting_victim(seen, state.index_at_restart) is not None
