"""Time and signs of life: ticks, heartbeats, live and dead peers, and whether a quorum is in reach (R4, R12 and R18).

Rules: R3, R4, R8, R12, R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId, UnitName, short
from protocol.rounds import attempt, following, leading, telling, voting
from protocol.rounds.events import PeerLost, PeersAnswered, PeersListed, RoundTicked
from protocol.rounds.expulsion import convict
from protocol.rounds.failure_probes import (
    do_watch,
    is_everybody_pinged,
    is_large,
    is_ours_to_ask,
    missed_by_others,
    missed_while_idle,
    silent_noted,
    whom_we_ping,
)
from protocol.rounds.lineage.chain import is_vote_on
from protocol.rounds.messages.messages import Heartbeat, Leave, UnitHead
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.orders import Action, DropMember, PrepareContribution, SendHeartbeat
from protocol.rounds.participants import DEADLINE_FACTOR, carriers, known_at_base
from protocol.rounds.peer_survey import surveyed, with_views
from protocol.rounds.queries import (
    GONE_PATIENCE_S,
    NUM_HEARTBEAT_PEERS,
    beat_peers,
    idle_patience_s,
    is_alive,
    is_due_or_open,
    is_gone,
    is_over,
    is_suspected,
    quorum_in_reach,
    silence_s,
    silent_members,
    thin_from_s,
)
from protocol.rounds.state import PeerView, RoundState, RoundStep, SignedLeave

BUSY_TICK_S: Final = 0.2
DUE_TICK_S: Final = 1.0
"""A peer that waits for the opener ticks this often: RANK_DELAY_S is as long."""

QUICK_HEARTBEAT_S: Final = 5.0
"""With heartbeats slower than this, the machine ticks once a heartbeat: rounds of such a run are long."""

NEVER_HEARD_S: Final = 1e6
"""Longer than any patience: that of a run with a hundred thousand peers is half as long."""

UNASKED_FACTOR: Final = 1.5
"""In ping intervals. A peer that waits for another to ask, and heard nothing for this long, asks by itself."""

PINGS_A_REPORT: Final = 2
"""While we miss a peer, every second ping goes to everybody and says so; a report stays valid for longer than that."""

MOST_ASKED: Final = 8
"""Participants that we ask at a time because others miss them. On an overloaded machine everybody may be missed by somebody, and
questions of all to all would keep it overloaded. The leader asks all.
"""

LEAVING_SOON_S: Final = 30.0
"""For so long a peer opens no attempt once it was asked to leave; it is gone before that."""

LONGER: Final = 1.25
"""An upload is announced again when it takes this many times as long as announced."""

LEAST_LAG_S: Final = 0.01
"""Ticks may always come this late. Forgiving so little would rewrite every peer's view at every tick and gain nothing."""


def next_tick_s(state: RoundState) -> float:
    """Seconds until the next tick is needed. Short while a round is open, longer while one is due and heartbeats are slow, and
    otherwise half a heartbeat, or a whole slow one.
    """
    opened, heartbeat_s = state.open, state.config.heartbeat_s
    is_awaited = bool(opened.asked) or state.pulse.report_at_s is not None
    if opened.proposal is not None or opened.leading is not None or is_awaited:
        return BUSY_TICK_S
    if opened.due_since_s is not None:
        return max(BUSY_TICK_S, min(DUE_TICK_S, heartbeat_s / 8))
    return heartbeat_s if heartbeat_s > QUICK_HEARTBEAT_S else max(BUSY_TICK_S, heartbeat_s / 2)


def awake(state: RoundState, now_s: float) -> RoundState:
    """Notice that a tick is overdue: our process slept, or is slow. Messages that waited are handled before that tick, and must not be
    judged as if all others had been silent.
    """
    lag_s = now_s - state.pulse.tick_due_s
    if not state.pulse.ticked_at_s or lag_s <= 0.0:
        return state
    if lag_s > state.config.suspect_after_s:
        state = _next_tick_after(_late(state, lag_s, now_s), now_s)
    return replace(state, pulse=replace(state.pulse, stepped_at_s=now_s))


def _late(state: RoundState, lag_s: float, now_s: float) -> RoundState:
    """Nobody was silent while our tick was late. If no step was taken for long either, our process slept."""
    state = _forgive(state, lag_s, now_s) if lag_s > LEAST_LAG_S else state
    asleep_s = min(lag_s, now_s - state.pulse.stepped_at_s)
    woke_at_s = now_s if asleep_s >= GONE_PATIENCE_S else state.pulse.woke_at_s
    return replace(state, pulse=replace(state.pulse, ticked_at_s=now_s, woke_at_s=woke_at_s))


def _next_tick_after(state: RoundState, now_s: float) -> RoundState:
    return replace(state, pulse=replace(state.pulse, tick_due_s=now_s + next_tick_s(state)))


def ticked(state: RoundState, event: RoundTicked, now_s: float) -> RoundStep:
    """Time passed: heartbeats, suspicions, waiting questions, and the opener's own deadlines."""
    state = _late(
        state, min(event.lag_s, now_s - state.pulse.ticked_at_s), now_s
    )  # the rest was noticed without a tick
    if event.bringing:
        state = known_at_base(with_views(state, _bringing(state, event.bringing, now_s)), event.bringing)
    state = _watch_quorum(surveyed(state, now_s - idle_patience_s(state)), now_s)
    state, heartbeats = _heartbeats(state, now_s)
    state, reports = telling.late_report(state, now_s)
    answered = voting.answer_pre_votes(state, now_s)
    drops = _drop_suspects(answered.state, now_s)
    announced = _announce_late_upload(answered.state, now_s)
    given = attempt.give_time(announced.state)
    led = leading.tick(given.state, now_s)
    asked = following.ask_ahead(led.state, now_s)
    beats = (*heartbeats, *reports)
    orders = (*beats, *answered.actions, *drops, *announced.actions, *given.actions, *led.actions, *asked.actions)
    reason = led.reason or given.reason or answered.reason or asked.reason
    return RoundStep(_next_tick_after(asked.state, now_s), orders, reason, waiting=led.waiting)


def _bringing(state: RoundState, peers: Sequence[PeerId], now_s: float) -> dict[PeerId, PeerView]:
    """Bytes that arrive on a stream are a sign of life: bulk on a full line may delay heartbeats for longer than a suspicion takes.
    A peer whose connection was reset stays lost, although its last bytes are still being read.
    """
    views = (state.peers.get(peer) for peer in peers)
    return {view.peer: _alive_at(view, now_s) for view in views if view is not None and not view.lost}


def _forgive(state: RoundState, lag_s: float, now_s: float) -> RoundState:
    """Our own process slept, so nobody else was silent in that time. Events handled since the wake-up are not moved past now."""

    def later(at_s: float) -> float:
        return max(at_s, min(now_s, at_s + lag_s))

    peers = {peer: replace(view, heard_at_s=later(view.heard_at_s)) for peer, view in state.peers.items()}
    opened = state.open
    lead = opened.leading
    return replace(
        state,
        peers=MappingProxyType(peers),
        proposed_at_s=later(state.proposed_at_s) if state.proposed_at_s else 0.0,
        snapshot_at_s=later(state.snapshot_at_s) if state.snapshot_at_s else 0.0,
        committed_at_s=later(state.committed_at_s),
        alone_since_s=None if state.alone_since_s is None else later(state.alone_since_s),
        open=replace(
            opened,
            proposal_at_s=later(opened.proposal_at_s),
            snapshot_at_s=later(opened.snapshot_at_s) if opened.snapshot_at_s else 0.0,
            due_since_s=None if opened.due_since_s is None else later(opened.due_since_s),
            leading=None
            if lead is None
            else replace(lead, deadline_s=lead.deadline_s + lag_s, settled_s=lead.settled_s + lag_s),
            asked=tuple(replace(question, asked_at_s=later(question.asked_at_s)) for question in opened.asked),
            asked_since=MappingProxyType({peer: later(since_s) for peer, since_s in opened.asked_since.items()}),
        ),
    )


def _watch_quorum(state: RoundState, now_s: float) -> RoundState:
    """Track since when no quorum is in reach. The time is cleared as soon as there is one."""
    are_voters_known = state.survey is not None and bool(state.survey.voters)
    if are_voters_known or quorum_in_reach(state, Ballot(LAST_ATTEMPT, state.config.me.peer), now_s):
        return state if state.alone_since_s is None else replace(state, alone_since_s=None)
    return state if state.alone_since_s is not None else replace(state, alone_since_s=now_s)


def _heartbeats(state: RoundState, now_s: float) -> tuple[RoundState, tuple[Action, ...]]:
    in_exchange = _is_in_exchange(state)
    state, missed = _ask_for_missed(state, now_s)
    passed_s = now_s - state.pulse.heartbeat_at_s + 1e-9
    if passed_s < (state.config.ping_s if in_exchange else state.config.heartbeat_s):
        return state, missed
    if not in_exchange and passed_s < telling.beat_interval_s(state, now_s):
        return state, missed
    targets = _members_to_ping(state, now_s) if in_exchange else _heartbeat_targets(state, now_s)
    pulse = replace(state.pulse, heartbeat_at_s=now_s, num_heartbeats=state.pulse.num_heartbeats + 1)
    state, reason = replace(state, pulse=pulse), "the next heartbeat is due"
    targets = tuple(dict.fromkeys((*(peer for each in missed for peer in each.to), *targets)))
    return state, (SendHeartbeat(targets, telling.own_heartbeat(state, now_s), reason=reason),) if targets else ()


def _is_in_exchange(state: RoundState) -> bool:
    return state.open.exchange is not None and state.open.proposal is not None


def _announce_late_upload(state: RoundState, now_s: float) -> RoundStep:
    """A peer that answers pings may still upload slowly. Announce an upload that exceeds the others' deadline to every participant."""
    opened, me = state.open, state.config.me.peer
    if opened.proposal is None or not _is_in_exchange(state):
        return RoundStep(state)
    # no announcement where slices wait long enough anyway and the upload does not allow us a longer silence
    allowed_s = min(opened.proposal.reduce_within_s / DEADLINE_FACTOR, thin_from_s(state))
    if state.exchange_s < LONGER * max(opened.told.upload_s, allowed_s):
        return RoundStep(state)
    others = tuple(peer for peer in opened.proposal.participants if peer != me and not is_gone(state, peer))
    state = replace(state, open=replace(opened, told=replace(opened.told, upload_s=state.exchange_s)))
    if not others:
        return RoundStep(state)
    reason = f"our upload takes {state.exchange_s:.0f} s, longer than others allow for"
    return RoundStep(state, (SendHeartbeat(others, telling.own_heartbeat(state, now_s), True, reason),))


def _heartbeat_targets(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """A few peers in turn, and the next opener."""
    opener = leading.expected_opener(state)
    in_turn = _in_turn(state, state.pulse.num_heartbeats)
    is_opener_informed = in_turn and opener in state.peers and telling.is_reported_to_opener(state)
    return tuple(dict.fromkeys([opener, *in_turn] if is_opener_informed else in_turn))


def _members_to_ping(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """In a running exchange: the peers that we watch and that do not ping us. A peer that misses another tells all that it watches,
    and everybody where others cannot find out by themselves.
    """
    proposal, me = state.open.proposal, state.config.me.peer
    if proposal is None:
        return ()
    others = [peer for peer in proposal.participants if peer != me and not is_gone(state, peer)]
    missed = silent_members(state, now_s)
    pinged = whom_we_ping(state, others)
    if any(peer != proposal.ballot.peer and do_watch(state, me, peer) for peer in missed):
        return tuple(others if state.pulse.num_heartbeats % PINGS_A_REPORT == 0 else pinged)
    if not missed:
        unasked_s = UNASKED_FACTOR * state.config.ping_s
        pinged = [peer for peer in pinged if is_ours_to_ask(state, peer) or silence_s(state, peer, now_s) > unasked_s]
    return tuple(dict.fromkeys((*pinged, *_heartbeats_in_turn(state))))


def _ask_for_missed(state: RoundState, now_s: float) -> tuple[RoundState, tuple[SendHeartbeat, ...]]:
    """If another member reports a peer as silent, probe that peer ourselves, now and with our pings, until nobody reports it. So does
    each of many peers while nothing is open.
    """
    known = state.open.asked_since
    named = missed_by_others(state, now_s) if _is_in_exchange(state) else missed_while_idle(state, now_s)
    missed = _first_missed(state, named, now_s)
    if len(missed) == len(known) and all(peer in known for peer in missed):
        return state, ()
    asked_since = MappingProxyType({peer: known.get(peer, now_s) for peer in missed})
    state = replace(state, open=replace(state.open, asked_since=asked_since))
    new = tuple(peer for peer in missed if peer not in known and not is_gone(state, peer))
    reason = "others miss it"
    return state, (SendHeartbeat(new, telling.own_heartbeat(state, now_s), reason=reason),) if new else ()


def _first_missed(state: RoundState, missed: Sequence[PeerId], now_s: float) -> tuple[PeerId, ...]:
    """At most MOST_ASKED of them. Peers that we asked just now come last, then those heard longest ago come first. So each has its
    turn even if somebody claims to miss everybody, and a peer that does not answer is asked again.
    """
    if len(missed) <= MOST_ASKED:
        return tuple(missed)
    asked, views = state.open.asked_since, state.peers
    others = [peer for peer in missed if not is_gone(state, peer)]

    def rank(peer: PeerId) -> tuple[bool, float]:
        has_had_its_turn = now_s - asked.get(peer, -math.inf) >= state.config.ping_s
        return has_had_its_turn, views[peer].heard_at_s if peer in views else -math.inf

    return tuple(sorted(others, key=rank)[:MOST_ASKED])


def _heartbeats_in_turn(state: RoundState) -> tuple[PeerId, ...]:
    """In a large round not all members ping each other. They also send heartbeats to a few in turn, or a long exchange would look
    like the loss of a quorum.
    """
    config = state.config
    if is_everybody_pinged(state):
        return ()
    pings_a_beat = max(1, round(config.heartbeat_s / config.ping_s))
    turn, rest = divmod(state.pulse.num_heartbeats, pings_a_beat)
    return _in_turn(state, turn) if rest == 0 else ()


def _in_turn(state: RoundState, turn: int) -> tuple[PeerId, ...]:
    others = beat_peers(state)
    begin = turn * NUM_HEARTBEAT_PEERS % max(1, len(others))
    here = (peer for peer in (*others[begin:], *others[:begin]) if not state.peers[peer].left)
    return tuple(itertools.islice(here, NUM_HEARTBEAT_PEERS))


def _drop_suspects(state: RoundState, now_s: float) -> tuple[Action, ...]:
    proposal = state.open.proposal
    if proposal is None or state.open.exchange is None:
        return ()
    return tuple(
        DropMember(peer, "lost" if is_gone(state, peer) else "silent")
        for peer in [member.peer for member in proposal.members]
        if is_suspected(state, peer, now_s)
    )


def heard(state: RoundState, peer: PeerId, now_s: float) -> RoundState:
    """Record a sign of life of a peer."""
    view = state.peers.get(peer)
    if view is None:
        return state if peer == state.config.me.peer else with_view(state, PeerView(peer, now_s))
    return with_view(state, _alive_at(view, now_s))


def _alive_at(view: PeerView, at_s: float) -> PeerView:
    """The view after a sign of life. A process that said goodbye gives none: whatever else it says, its silence began then."""
    return view if view.left else replace(view, heard_at_s=max(view.heard_at_s, at_s), lost=False)


def can_wait(state: RoundState, heartbeat: Heartbeat) -> bool:
    """Whether a heartbeat changes only what is known of its sender, so that it may be handled with the next event. Its sender has
    our head, was not taken for dead, and is the last heard process or a later one.
    """
    view = state.peers.get(heartbeat.member.peer)
    if view is None or view.lost:
        return False
    known, member = view.member, heartbeat.member
    if known is not None and known is not member and known != member and member.session <= known.session:
        return False
    head = _head_in(heartbeat, state.config.unit)
    return head is None or head.head == state.link.commit


def view_of(state: RoundState, heartbeat: Heartbeat, at_s: float) -> PeerView:
    """The view of a peer that follows from its heartbeat."""
    member = heartbeat.member
    known, spine = state.peers.get(member.peer) or PeerView(member.peer, at_s), state.config.spine
    has_left = known.left and known.member == member  # else it came back in another process
    spine_head = _head_in(heartbeat, spine) if spine is not None else None
    return replace(
        known,
        heard_at_s=known.heard_at_s if has_left else at_s,
        member=member,
        head=_head_in(heartbeat, state.config.unit),
        is_inbound_reachable=heartbeat.is_inbound_reachable,
        upload_bytes_per_s=heartbeat.upload_bytes_per_s,
        lost=known.lost and has_left,
        left=has_left,
        exchange_s=heartbeat.exchange_ms / 1000,
        silent=heartbeat.silent,
        reported_at_s=at_s,
        spine_head=None if spine_head is None else spine_head.head,
        spine_ready=0 if spine_head is None else spine_head.tokens_ready,
    )


def _head_in(heartbeat: Heartbeat, unit: UnitName) -> UnitHead | None:
    for head in heartbeat.heads:
        if head.unit == unit:
            return head
    return None


def answered(state: RoundState, event: PeersAnswered) -> RoundState:
    """Record signs of life of several peers at once."""
    views = {heartbeat.member.peer: view_of(state, heartbeat, at_s) for heartbeat, at_s in event.heartbeats}
    for peer, at_s in event.heard:
        view = views.get(peer) or state.peers.get(peer)
        if view is not None:
            views[peer] = _alive_at(view, at_s)
        elif peer != state.config.me.peer:
            views[peer] = PeerView(peer, at_s)
    return with_views(state, views)


def with_view(state: RoundState, view: PeerView) -> RoundState:
    """The state with the view of one peer replaced."""
    return with_views(state, {view.peer: view})


def peer_lost(state: RoundState, event: PeerLost, now_s: float) -> RoundStep:
    """A refused connection is a death at once, unless the peer was heard after it. So is silence among many peers, but in an exchange,
    where members watch each other (R12).
    """
    view = state.peers.get(event.peer)
    if event.is_silent:
        return _silent(state, event, now_s)
    if view is None or view.lost or view.heard_at_s > event.at_s:
        known = "is not known" if view is None else "is gone already" if view.lost else "was heard since"
        return RoundStep(state, remark=f"a connection to {short(event.peer)} was refused, but it {known}")
    return _gone(with_view(state, replace(view, lost=True)), event.peer, now_s, "is gone: connection refused")


def _silent(state: RoundState, event: PeerLost, now_s: float) -> RoundStep:
    view, proposal = state.peers.get(event.peer), state.open.proposal
    is_member = proposal is not None and event.peer in proposal.participants
    if view is None or view.heard_at_s > event.at_s or is_gone(state, event.peer) or is_member or not is_large(state):
        return RoundStep(state, remark=f"{short(event.peer)} did not answer; nothing follows from that now")
    state = silent_noted(with_view(state, replace(view, heard_at_s=now_s - NEVER_HEARD_S)), event.peer, now_s)
    told, gone = telling.silence_told(state, event.peer, now_s), _gone(state, event.peer, now_s, "does not answer")
    return RoundStep(gone.state, (*told, *gone.actions), gone.reason, waiting=gone.waiting)


def apart_noted(state: RoundState, is_apart: bool) -> RoundStep:
    """Others are at work, or may be, while we hear none of them; or they are heard again."""
    if is_apart == state.barred.is_apart:
        return RoundStep(
            state, remark=f"noted once more that we are {'' if is_apart else 'not '}apart; nothing changes"
        )
    reason = "others may be at work unheard: nothing is committed alone" if is_apart else "others are heard again"
    return RoundStep(replace(state, barred=replace(state.barred, is_apart=is_apart)), reason=reason)


def peer_left(state: RoundState, sender: PeerId, leave: Leave, raw: bytes, now_s: float) -> RoundStep:
    """A goodbye: nobody waits for the leaver, and it stops counting towards the quorum on this base (R3). The first goodbye on a
    base stands: a peer that came back and leaves again has not voted in between, and may know fewer of its earlier votes.
    """
    view, led = state.peers.get(sender), state.open.leading
    if view is None or leave.member.peer != sender:
        found = f"{short(sender)} said goodbye for {short(leave.member.peer)}"
        return RoundStep(state, remark=f"{found}; expected its own goodbye, from a known peer")
    if led is not None and sender in led.acks:
        convicted = convict(state, ((led.acks[sender], raw),))
        if convicted.actions:
            return convicted
    state = with_view(state, replace(view, left=True))
    is_first = sender in state.link.roster and sender not in state.open.leaves
    if is_first and leave.unit == state.config.unit and is_vote_on(leave, state.link) and raw:
        leaves = MappingProxyType({**state.open.leaves, sender: SignedLeave(leave, raw)})
        state = replace(state, open=replace(state.open, leaves=leaves))
    certified = attempt.certify(state)
    gone = _gone(certified.state, sender, now_s, "left")
    orders, reason = (*certified.actions, *gone.actions), certified.reason or gone.reason
    return RoundStep(gone.state, orders, reason, waiting=gone.waiting)


def leaving_soon(state: RoundState, now_s: float) -> RoundStep:
    """Our owner wants to go: take what is ready ahead of the round that would count it, and open none ourselves (R8)."""
    opened = state.open
    opened = replace(opened, quiet_until_s=max(opened.quiet_until_s, now_s + LEAVING_SOON_S))
    state = replace(state, open=opened)
    if opened.contribution is not None or opened.is_preparing:
        return RoundStep(state, remark="our contribution on this base is taken, or being taken, already")
    has_work = state.can_contribute and state.tokens_ready > 0 and not is_over(state)
    if not has_work or opened.committing is not None or state.is_leaving:
        return RoundStep(
            state, remark="nothing is taken before we leave: nothing is ready, or a commit is being applied"
        )
    if opened.proposal is None and not carriers(state, now_s):
        return RoundStep(state, remark="nothing is taken before we leave: nobody is here who could bring it")
    reason = f"we leave soon: {state.tokens_ready} ready tokens are taken now, for the round to come"
    state = replace(state, open=replace(opened, is_preparing=True))
    return RoundStep(state, (PrepareContribution(state.link.commit, reason),), reason)


def _gone(state: RoundState, peer: PeerId, now_s: float, what: str) -> RoundStep:
    proposal = state.open.proposal
    drops: tuple[Action, ...] = ()
    if proposal is not None and state.open.exchange is not None and proposal.member(peer) is not None:
        drops = (DropMember(peer, "left" if what == "left" else "lost"),)
    if not is_due_or_open(state) and peer != leading.expected_opener(state):
        # peers leave often in a large swarm, and whether the round is due concerns all views
        return RoundStep(state, drops, f"{short(peer)} {what}")
    led = leading.tick(state, now_s)
    return RoundStep(led.state, (*drops, *led.actions), led.reason or f"{short(peer)} {what}", waiting=led.waiting)


def peers_listed(state: RoundState, event: PeersListed, now_s: float) -> RoundStep:
    """Take the peers that the directory lists. A peer that was never heard starts as silent. A peer that is not listed, heard or
    needed is forgotten, since over weeks a run sees many more peers than it has.
    """
    listed = set(event.peers) - {state.config.me.peer}
    members = state.open.proposal.members if state.open.proposal is not None else ()
    needed = {*state.link.roster, *(member.peer for member in members)}
    patience_s = idle_patience_s(state)
    known = {
        peer: view
        for peer, view in state.peers.items()
        if peer in listed or peer in needed or is_alive(state, peer, now_s, patience_s)
    }
    for peer in event.peers:
        if peer in listed and peer not in known:
            # listed is not heard: a peer starts as silent, and its first heartbeat or answer makes it live
            known[peer] = PeerView(peer, now_s - NEVER_HEARD_S)
    # kept sorted, so that sorting them at each heartbeat is cheap
    return RoundStep(replace(state, peers=MappingProxyType(dict(sorted(known.items())))))
