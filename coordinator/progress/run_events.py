"""The run's events in sentences, from the differences between two snapshots. No clock and no I/O in here."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from coordinator.audits.loss_gate_core import measures_of, rise_in
from coordinator.helper.reach_core import Reach
from coordinator.ledger.ledger import LossPoint
from coordinator.ledger.run_memory import MAX_EVENTS, EventRow, RunMemory
from coordinator.presence.presence import LIVE_S, PeerEntry, num_live
from coordinator.progress.heldout_core import WHOLE
from coordinator.progress.run_core import Phase
from coordinator.progress.run_view import RunPicture, TimedRound, hidden_peers
from protocol.identity.chosen_name import called
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.messages.requests import NO_PART

Kind = Literal["run", "peer", "round", "trouble", "checkpoint"]
_NOBODY: Final[Mapping[PeerId, float]] = MappingProxyType({})
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event.

    Attributes:
        number: counts up from 1 in the life of the run.
        unix_s: when the host noticed it.
        peer: the peer that it is about; empty for none.
    """

    number: int
    unix_s: int
    kind: Kind
    text: str
    peer: str = ""


@dataclass(frozen=True, slots=True)
class _NewEvent:
    kind: Kind
    text: str
    peer: str = ""


class EventBook:
    """The newest events. `note` compares each snapshot with the one before."""

    def __init__(self) -> None:
        self._events: deque[RunEvent] = deque(maxlen=MAX_EVENTS)
        self._number = 0
        self._before: RunPicture | None = None
        self._states: Mapping[PeerId, str] = {}
        self._began_s = 0.0
        self._reach = Reach()

    @property
    def reach(self) -> Reach:
        """Whether the peers could meet at the last snapshot."""
        return self._reach

    @property
    def states(self) -> Mapping[PeerId, str]:
        """The state of each peer that was ever heard: "here", "paused", "silent" or "left"."""
        return self._states

    def restore(self, memory: RunMemory) -> None:
        """Go on where an earlier process of the host ended."""
        self._events.extend(_event(row) for row in memory.events)
        self._number = memory.events[-1].number if memory.events else 0
        self._states = {row.peer: row.state for row in memory.heard}

    def note(
        self, picture: RunPicture, now_s: float, unix_s: int, helpers_until_s: Mapping[PeerId, float] = _NOBODY
    ) -> Sequence[RunEvent]:
        """Take a snapshot of the run, and until when its helpers count as live. Returns what happened since the one before. `now_s`
        is monotonic like the times in `picture`.
        """
        reach = self._reach.after_look(hidden_peers(picture, now_s), num_live(helpers_until_s, now_s), now_s)
        self._began_s = now_s if self._before is None else self._began_s
        heard = {peer: _state(entry, now_s) for peer, entry in picture.peers.items()}
        states = {**self._states, **heard}
        patience_s = max((entry.patience_s for entry in picture.peers.values()), default=LIVE_S)
        if now_s - self._began_s > patience_s:
            # After a restart a peer that was here has this long to report.
            states.update((p, "silent") for p, was in self._states.items() if p not in heard and was != "left")
        new: list[RunEvent] = []
        before, were = self._before, self._states
        chosen = {peer: entry.report.nickname for peer, entry in picture.peers.items()}
        peers = (*_peers(were, states, chosen), *_emptied(picture, were, states))
        run = _first(picture) if before is None else (*peers, *_between(before, picture))
        for event in (*run, *_reach(self._reach, reach)):
            self._number += 1
            new.append(RunEvent(self._number, unix_s, event.kind, event.text, event.peer))
        self._events.extend(new)
        self._before, self._states, self._reach = picture, states, reach
        return new

    def newest(self, most: int) -> Sequence[RunEvent]:
        """The newest events, oldest first."""
        return tuple(self._events)[-most:] if most > 0 else ()


def _event(row: EventRow) -> RunEvent:
    kind: Kind = next((each for each in _KINDS if each == row.kind), "run")
    return RunEvent(row.number, row.unix_s, kind, row.text, row.peer)


def event_row(event: RunEvent) -> EventRow:
    """The event for the ledger."""
    return EventRow(event.number, event.unix_s, event.kind, event.text, event.peer)


def _state(entry: PeerEntry, now_s: float) -> str:
    """The state shown for a peer. All working states share one name, or the list would show every download."""
    word = entry.report.state
    if word != "left" and not entry.is_live(now_s):
        return "silent"
    return word if word in ("left", "paused") else "here"


def _reach(before: Reach, after: Reach) -> Iterator[_NewEvent]:
    if after.warning and not before.warning:
        yield _NewEvent("trouble", after.warning)
    elif before.warning and not after.warning:
        yield _NewEvent(
            "run", "a helper is at work, or peers can be connected to: rounds can count them together again"
        )


def _emptied(picture: RunPicture, were: Mapping[PeerId, str], are: Mapping[PeerId, str]) -> Iterator[_NewEvent]:
    if picture.state.phase is Phase.TRAINING and _is_empty(are) and not _is_empty(were):
        yield _NewEvent("trouble", "no peer is here: the run waits until one comes back")


def _is_empty(states: Mapping[PeerId, str]) -> bool:
    return all(state in ("left", "silent") for state in states.values())


def _first(picture: RunPicture) -> Iterator[_NewEvent]:
    phase = picture.state.phase.value
    yield _NewEvent("run", f"the host {picture.restarted}" if picture.restarted else f"the host is up: {phase}")


def _between(before: RunPicture, after: RunPicture) -> Iterator[_NewEvent]:
    is_new_phase, is_over = after.state.phase is not before.state.phase, after.state.phase is Phase.FINISHED
    phase = _NewEvent("run", f"{after.state.phase.value}: {after.reason}")
    if is_new_phase and not is_over:
        yield phase
    if after.restarted and not before.restarted:
        yield _NewEvent("run", f"the host {after.restarted}")
    known = {timed.row.commit for timed in before.rounds}
    newest = before.state.index
    for timed in after.rounds:
        if timed.row.commit not in known and (timed.row.index > newest or before.rounds):
            yield _round(timed)
    if is_new_phase and is_over:  # its last round comes first
        yield phase
    if after.num_forks > before.num_forks:
        yield _NewEvent(
            "trouble", "the run goes on in two branches until they meet: some peers cannot reach the others"
        )
    elif after.num_forks < before.num_forks:
        yield _NewEvent("run", "one of the branches is not followed any more")
    rise, had_risen = (rise_in(measures_of(_followed_points(each), WHOLE)) for each in (after, before))
    if rise is not None and had_risen is None:
        yield _NewEvent("trouble", rise.words)
    elif had_risen is not None and rise is None:
        yield _NewEvent("run", "the held-out loss is no worse than noise explains again")
    frozen, was_frozen = ({u.unit: u.why_frozen for u in each.units if u.is_frozen} for each in (after, before))
    for unit in sorted(frozen.keys() - was_frozen.keys()):
        yield _NewEvent("trouble", f"{unit} is frozen: {frozen[unit]}")
    for unit in sorted(was_frozen.keys() - frozen.keys()):
        yield _NewEvent("run", f"{unit} has a holder again and goes on")
    for peer in sorted(after.banned - before.banned):
        yield _NewEvent("trouble", f"{peer_name(peer)} was banned", peer)
    before_checkpoints = {row.commit for row in before.checkpoints}
    for row in after.checkpoints:
        if row.commit not in before_checkpoints:
            yield _NewEvent("checkpoint", f"checkpoint of round {row.index} written and verified")
    if after.missing and not before.missing:
        yield _NewEvent("trouble", f"round {after.missing[0].index} is missing here; it is being asked for")
    elif before.missing and not after.missing:
        yield _NewEvent("run", "all rounds that were missing are here")


def _followed_points(picture: RunPicture) -> Iterator[LossPoint]:
    """The points of commits that are followed, as far as the shown rounds tell; all where none is shown."""
    places = {(timed.row.index, timed.total_tokens) for timed in picture.rounds}
    first = min((index for index, _ in places), default=math.inf)
    return (each for each in picture.loss_points if each.index < first or (each.index, each.tokens) in places)


_ARRIVAL: Final[Mapping[str, str]] = {
    "here": "came",
    "paused": "came, paused by its owner",
}
_CHANGE: Final[Mapping[tuple[str, str], str]] = {
    ("silent", "here"): "is heard again",
    ("left", "here"): "came back",
    ("paused", "here"): "goes on",
    ("silent", "paused"): "is heard again, paused by its owner",
    ("left", "paused"): "came back, paused by its owner",
    ("here", "paused"): "was paused by its owner",
}


def _peers(were: Mapping[PeerId, str], are: Mapping[PeerId, str], chosen: Mapping[PeerId, str]) -> Iterator[_NewEvent]:
    for peer in sorted(are):
        was, now = were.get(peer), are[peer]
        if was == now:
            continue
        name = called(peer_name(peer), chosen.get(peer, ""))
        if now == "silent":
            yield _NewEvent("trouble", f"{name} is not heard any more", peer)
        elif now == "left":
            if was is not None:
                yield _NewEvent("peer", f"{name} left", peer)
        else:
            what = _ARRIVAL[now] if was is None else _CHANGE.get((was, now), _ARRIVAL[now])
            yield _NewEvent("peer", f"{name} {what}", peer)


def _round(timed: TimedRound) -> _NewEvent:
    row = timed.row
    if row.is_rewind:
        return _NewEvent("trouble", f"the host took rounds back: the run goes on from round {row.index - 1}")
    number = len(row.members)
    text = f"round {row.index}: {number} counted" if number != 1 else f"round {row.index}: one counted"
    if row.coverage < 1.0:
        text += f", {row.coverage:.0%} covered"
    if row.lost:
        text += f", {row.lost:.1%} of the mean had no room"
    left_out = [f"{peer_name(peer)} ({reason})" for peer, reason in row.omitted if reason != NO_PART]
    if left_out:
        text += f"; left out: {', '.join(left_out)}"
    for each in row.disagreed:
        text += f"; {peer_name(each.peer)}: {each.words}"
    if row.is_lone:
        return _NewEvent("trouble", f"{text}; made by one peer alone")
    return _NewEvent("round", text)
