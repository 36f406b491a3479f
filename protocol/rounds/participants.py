"""The peers that take part in an attempt besides its leader and that may reduce in it, peers that are waited for before it, absent
peers whose contribution still counts, and voters that stay voters (R3, R5, R7 and R16). How long slices wait for members, and others
for a leader (R11).

Rules: R3, R5, R7, R8, R11, R16, R18, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.rounds.lineage.turns import by_turn, last_counted
from protocol.rounds.messages.bounds import MAX_SLICES
from protocol.rounds.messages.messages import Leave, Member, Proposal, SliceSpec, UnitHead
from protocol.rounds.messages.record import CommitRecord, OmissionCode
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import Action, SendHeartbeat
from protocol.rounds.peer_survey import with_views
from protocol.rounds.queries import (
    base_opener,
    caught_up,
    idle_patience_s,
    is_alive,
    is_gone,
    is_suspected,
    lenders,
    may_reduce,
    ready_at,
    standing_of,
)
from protocol.rounds.schedule.proposal import ReducerOffer, Voters
from protocol.rounds.state import NO_ROOT, Leading, PeerView, RoundState
from protocol.rounds.telling import own_heartbeat

NUM_ROUNDS_WITHOUT_SLICE: Final = 64
"""So many rounds a reducer that withheld a result, or signed a false one, gets no slice of us. A broken line may heal."""

NUM_ROUNDS_KEPT: Final = 64
"""So many rounds we keep voters whom we do not hear, after others did not ack a record of ours without them."""

CLOSE_BEHIND: Final = 2
"""In commits. A peer further behind is fetching many, or a whole state, and is not waited for."""

LEAST_FOLLOWER_S: Final = 5.0
"""Less time than this to apply a commit would measure the load of a machine."""

FETCH_FACTOR: Final = 2.0
"""A peer may take this many times as long to fetch the bytes of a commit as to upload its contribution."""

NUM_ROUNDS_IMPATIENT: Final = 64
"""Once in so many rounds a peer is waited for on its word alone. It may report any upload, and that it is behind, at every commit."""

MAX_BACKOFF_EXPONENT: Final = 16

DEADLINE_FACTOR: Final = 2.0
"""A slice waits twice as long as the slowest of the last uploads took (R11)."""

LEAST_REDUCE_S: Final = 5.0
"""A deadline below this would measure the load of a machine, not of its link."""

OVER_LONG: Final = 2.0
"""A leader whose attempt came to nothing after so many times the usual time is not believed for a while."""

FAR_ABOVE: Final = 4.0
"""An upload of so many times the median of the others' holds up everybody."""

NUM_ROUNDS_DOUBTED: Final = 64
"""So many rounds we do not believe the times of a peer that had them and brought nothing."""


def who_is_late(state: RoundState, now_s: float) -> PeerId | None:
    """A live peer, close behind, that has not yet reported that it applied the last commit; None if there is none.

    If rounds follow each other closely, opening without it would leave the roster to the fastest. A peer alone in the roster would
    run ahead of all others for ever. Waiting costs nothing: training goes on. If peers take turns a late one keeps its own, so a
    round that is full without it waits for voters alone.
    """
    waited_s = now_s - state.committed_at_s
    is_full = len(caught_up(state, now_s)) >= state.config.max_members - 1
    patience_s = idle_patience_s(state)
    for view in state.peers.values():
        head = view.head
        if head is None or head.head == state.link.commit or not is_alive(state, view.peer, now_s, patience_s):
            continue
        is_voter = view.peer in state.link.roster and waited_s < state.config.suspect_after_s
        is_close = 0 < state.link.index - head.index <= CLOSE_BEHIND and head.can_contribute
        is_behind = is_close and state.tree.path(head.head, state.link.commit) is not None
        if is_voter or (not is_full and is_behind and waited_s < _follower_patience_s(state, view)):
            return view.peer
    return None


def waiting_for(state: RoundState, late: PeerId | None, now_s: float) -> RoundState:
    """Remember that a peer is waited for on its word alone: not again for `NUM_ROUNDS_IMPATIENT` rounds."""
    barred, index = state.barred, state.link.index
    if late is None or barred.patient_at.get(late) == index or now_s - state.committed_at_s < _seen_s(state):
        return state
    return replace(state, barred=replace(barred, patient_at=MappingProxyType({**barred.patient_at, late: index})))


def _follower_patience_s(state: RoundState, view: PeerView) -> float:
    """How long a peer may take to fetch the bytes of a commit: twice its last upload, at most the longest interval. If that is longer
    than the exchange that we saw, it is a word that nothing shows.
    """
    told_s = min(state.config.longest_interval_s, max(LEAST_FOLLOWER_S, FETCH_FACTOR * view.exchange_s))
    return told_s if _may_wait(state, view.peer) else min(told_s, _seen_s(state))


def _seen_s(state: RoundState) -> float:
    """Time to fetch the bytes of our head, as its own exchange shows: all that were counted uploaded as many in it."""
    exchange_s = state.committed_at_s - state.proposed_at_s if state.proposed_at_s else 0.0
    return max(LEAST_FOLLOWER_S, FETCH_FACTOR * exchange_s)


def _may_wait(state: RoundState, peer: PeerId) -> bool:
    """Whether a peer is waited for on its word alone: in this round already, or not lately."""
    at, index = state.barred.patient_at.get(peer), state.link.index
    return at is None or at == index or at + NUM_ROUNDS_IMPATIENT <= index


def others_here(state: RoundState, led: Leading, now_s: float) -> tuple[PeerView, ...]:
    """Peers that are caught up and heard; in a lone attempt those that promised."""
    before = state.open.proposal
    others = tuple(
        view
        for view in caught_up(state, now_s)
        # a peer that fell silent in the last attempt would cost this one the same wait again
        if before is None or before.member(view.peer) != view.member or not is_suspected(state, view.peer, now_s)
    )
    if led.lone_voters:  # every member must ack, and only these promised
        others = tuple(view for view in others if view.peer in led.lone_voters)
    return _cohort(state, others)


def known_at_base(state: RoundState, peers: Iterable[PeerId]) -> RoundState:
    """Record that these peers stand on our head: they promised on it or sent bytes to a round on it, whatever their last heartbeat
    said.

    That heartbeat may be older than the commit, and a peer that pings another gets no heartbeat of it. Otherwise the next attempt
    would lack a quorum, or give a summed slice of a survivor to others. If a proposal is known, only its members count.
    """
    views = ((peer, _at_base(state, peer)) for peer in peers)
    known = {peer: view for peer, view in views if view is not None}
    return with_views(state, known) if known else state


def _at_base(state: RoundState, peer: PeerId) -> PeerView | None:
    """The view that follows for such a peer; None if nothing changes."""
    before, view, link = state.open.proposal, state.peers.get(peer), state.link
    if view is None:
        return None
    member, head = before.member(peer) if before is not None else view.member, view.head
    if member is None or view.member not in (None, member):
        return None
    if head is not None and head.index >= link.index:
        return None
    # its ready tokens are in its contribution's header; those in its heartbeat were before the commit
    proved = (head.state_commit, head.state_root) if head is not None else (link.commit, NO_ROOT)
    can_contribute = before is not None or head is None or head.can_contribute  # its leader found that members can
    now = UnitHead(state.config.unit, link.commit, link.index, link.total_tokens, 0, can_contribute, *proved)
    return replace(view, member=member, head=now)


def brought_before(state: RoundState, led: Leading, here: Mapping[PeerId, Member]) -> dict[PeerId, Member]:
    """Absent peers whose contribution others may have. A carrier took it when they left (R8). Or they were members of the last
    attempt, and our own result counts it, or they are gone and nobody waits for them. This keeps their work and the sums already
    made, and no result is sent twice to a member that has it or its first part. They are asked to do nothing. A slice that lacks
    their chunks leaves them out.
    """
    before = state.open.proposal
    if led.lone_voters:
        return {}
    ours = [header for header in state.open.results.values() if header.reducer == state.config.me.peer]
    counted = {entry.peer for header in ours for entry in header.included}
    members = before.members if before is not None else ()
    found = [m for m in members if m.peer in counted or is_gone(state, m.peer)]
    found = [m for m in (*_carried(state, here), *found) if m.peer not in here and m.peer not in state.barred.expelled]
    room = max(0, state.config.max_members - len(here))
    first: dict[PeerId, Member] = {}
    for member in found:
        first.setdefault(member.peer, member)  # a carrier has what the latest process of a leaver made
    return dict(list(first.items())[:room])


def _carried(state: RoundState, here: Mapping[PeerId, Member]) -> list[Member]:
    """The leavers whose contribution a member has that is here, in the process that took it (R8)."""
    leaves = state.open.departures.values()
    return [leave.member for leave in leaves if leave.carrier and here.get(leave.carrier.peer) == leave.carrier]


def carriers(state: RoundState, now_s: float) -> list[Member]:
    """The peers that may take our contribution for the round to come, the best first: the expected opener, which plans that round,
    then others in an order that differs from leaver to leaver. They must be reachable, and the surest ones have our head already.
    Nobody, if we are no voter: a record that counts a leaver relies on its goodbye, and goodbyes of voters alone are known to all.
    """
    if state.config.me.peer not in state.link.roster:
        return []
    patience_s, opener, me = idle_patience_s(state), base_opener(state), state.config.me.peer
    ready = {view.peer for view in caught_up(state, now_s)}
    able = [
        view
        for view in state.peers.values()
        if view.is_inbound_reachable and view.head is not None and is_alive(state, view.peer, now_s, patience_s)
        if standing_of(state, view.peer).may_reduce
    ]
    drawn = {peer: sha256(f"carrier {me} {peer}".encode()).digest() for peer in [view.peer for view in able]}
    able.sort(key=lambda view: (view.peer not in ready, view.peer != opener, drawn[view.peer]))
    return [view.member for view in able if view.member is not None]


def expected_tokens(state: RoundState, members: Iterable[PeerId]) -> list[int]:
    """The tokens that these members will claim: as signed on this base already, else as last reported. A contribution is taken once
    on a base, while the ready tokens grow on from attempt to attempt; a cap made from these would be far above what the claims allow.
    """
    expected: list[int] = []
    if state.open.num_failed and state.open.claimed:  # somebody may report tokens and never claim them
        members = [peer for peer in members if peer in state.open.claimed]
    for peer in members:
        view, is_own = state.peers.get(peer), peer == state.config.me.peer
        reported = state.tokens_ready if is_own else view.head.tokens_ready if view and view.head else 0
        if is_own and state.open.contribution is not None:
            reported = state.open.contribution.tokens
        expected.append(state.open.claimed.get(peer, reported))
    return [tokens for tokens in expected if tokens > 0]


def held_because(state: RoundState) -> str:
    """Why no round is opened or joined: the host holds the run, and its rewind has not come yet (R28). Empty if one may be. A round
    that has begun on this base goes on to its end.
    """
    hold, is_begun = state.barred.hold, state.open.proposal is not None or state.open.acked is not None
    if hold is None or is_begun or hold.unit != state.config.unit:
        return ""
    return "" if hold.is_followed(state.tree.behind(state.link.commit)) else hold.words


def reducer_offers(state: RoundState, members: Mapping[PeerId, Member], now_s: float) -> list[ReducerOffer]:
    """Offers to reduce: from reachable members that let no attempt of ours run out of time, and from ourselves. If these are fewer
    than half of the members, reachable peers that do not hold the unit fill up the number (R7). The leader has other bytes to send,
    the record and the certificate, so it offers nothing where others can take all slices.
    """
    config = state.config
    offers = [
        ReducerOffer(peer, state.peers[peer].upload_bytes_per_s)
        for peer in members
        if peer != config.me.peer and state.peers[peer].is_inbound_reachable and may_reduce(state, peer)
    ]
    if config.is_inbound_reachable and may_reduce(state, config.me.peer) and len(offers) < MAX_SLICES:
        offers.append(ReducerOffer(config.me.peer, state.upload_bytes_per_s))
    num_missing = -(-len(members) // 2) - len(offers)
    if num_missing > 0 and len(members) > 1:
        borrowed = lenders(state, now_s)[:num_missing]
        offers += [ReducerOffer(view.peer, view.upload_bytes_per_s) for view in borrowed]
    return offers or [ReducerOffer(config.me.peer, state.upload_bytes_per_s)]


def withholders(state: RoundState, lost: Iterable[SliceSpec], now_s: float) -> tuple[PeerId, ...]:
    """The reducers of these slices that are here, announced a result, and did not give its bytes."""
    announced = (part.reducer for part in lost if part.first_chunk in state.open.results)
    return tuple(peer for peer in announced if peer != state.config.me.peer and not is_suspected(state, peer, now_s))


def without_slices(state: RoundState, reducers: Iterable[PeerId]) -> RoundState:
    """Give these reducers no slice in the next rounds that we lead: they announced what they did not give, or what is not so. Each
    such result costs everybody its deadline.
    """
    until = dict.fromkeys(reducers, state.link.index + NUM_ROUNDS_WITHOUT_SLICE)
    if not until:
        return state
    barred = state.barred
    return replace(state, barred=replace(barred, no_slices_until=MappingProxyType({**barred.no_slices_until, **until})))


# --- the next voters ----------------------------------------------------------------------------------------------------------


def voters_at_hand(state: RoundState, alive: Iterable[PeerId], now_s: float) -> Voters:
    """The voters as a leader knows them when it settles; `alive` are the members that answer. Besides them it keeps voters that take
    no part and that others may hear as it does, and those without whom others did not ack a record of its own (R3).
    """
    link, until = state.link, state.barred.voters_until
    kept = [p for p in link.roster if _is_at_hand(state, p, now_s) or until.get(p, 0) > link.index]
    left = frozenset(state.open.leaves)
    return Voters(frozenset(alive), left, frozenset(kept) - left, state.config.max_members)


def with_voters(state: RoundState, led: Leading) -> RoundState:
    """Keep the voters whom this record of ours drops in the next ones: no quorum acked it, so others may hear them."""
    if led.settle is None or led.lone_voters:
        return state
    roster, barred = decode_record(led.settle.record).roster, state.barred
    dropped = [peer for peer in state.link.roster if peer not in roster and peer not in state.open.leaves]
    until = dict.fromkeys(dropped, state.link.index + NUM_ROUNDS_KEPT)
    return replace(state, barred=replace(barred, voters_until=MappingProxyType({**barred.voters_until, **until})))


def ask_left_out(state: RoundState, proposal: Proposal, now_s: float) -> tuple[Action, ...]:
    """Ask the voters whom a proposal leaves out whether they are there: no record may drop those that answer."""
    known = [member for member in proposal.members if member.peer in state.peers]
    if len(known) + 1 >= state.config.max_members:
        return ()  # there is room for no more
    out = [peer for peer in state.link.roster if proposal.member(peer) is None and _is_at_hand(state, peer, now_s)]
    why = f"attempt {proposal.ballot.attempt} leaves out these voters: are they there?"
    return (SendHeartbeat(tuple(out), own_heartbeat(state, now_s), True, why),) if out else ()


def takes_part(state: RoundState, proposal: Proposal | None, peer: PeerId, leave: Leave | None, now_s: float) -> bool:
    """Whether this voter is able to work and answers us. A goodbye ends that, but for a process that came back after it. A voter that
    `proposal` leaves out was asked (`ask_left_out`). Without the proposal its heartbeats tell: nobody may ack that it is dropped, for
    a take-over finishes what one voter acked.
    """
    if peer == state.config.me.peer:
        return state.can_contribute
    member = proposal.member(peer) if proposal is not None else None
    if member is not None:
        has_left = leave is not None and member.session <= leave.member.session
        return not has_left and not is_suspected(state, peer, now_s)
    is_late = proposal is not None and peer in state.peers and state.peers[peer].heard_at_s < state.open.proposal_at_s
    return leave is None and not is_late and _is_at_hand(state, peer, now_s)


def _is_at_hand(state: RoundState, peer: PeerId, now_s: float) -> bool:
    """Whether a voter is heard and able to work, and not known to be behind. A report from before our head does not tell that. Shortly
    after our start a voter that answers and has not reported yet counts as able to work.
    """
    view = state.peers.get(peer)
    if view is None or peer in state.barred.expelled:
        return False
    patience_s, head = idle_patience_s(state), view.head
    if head is None:  # we have just begun, and its first heartbeat is on its way
        is_awaited = not view.reported_at_s and now_s - state.pulse.started_at_s <= patience_s
        return is_awaited and is_alive(state, peer, now_s, patience_s)
    is_new = view.reported_at_s > state.committed_at_s + state.config.suspect_after_s
    if not head.can_contribute or (is_new and head.index < state.link.index):
        return False
    return is_alive(state, peer, now_s, patience_s)


def _cohort(state: RoundState, others: tuple[PeerView, ...]) -> tuple[PeerView, ...]:
    """At most as many peers as a round takes, those first that wait longest, by the commits that count them (R7)."""
    room = state.config.max_members - 1
    if len(others) <= room:
        return others
    ready = {view.peer: ready_at(view) for view in others}
    counted = last_counted(state.tree.behind(state.link.commit))
    chosen = frozenset(by_turn(ready, counted, state.link.index, room)[:room])
    return tuple(view for view in others if view.peer in chosen)


def handing_on(state: RoundState, members: frozenset[PeerId], now_s: float) -> frozenset[PeerId]:
    """The peers to which a record of these members may give the votes of the next round. If a round takes no more members, voters
    that are at hand and have no turn are among them: most of them vote on.
    """
    if len(members) < state.config.max_members:
        return members
    return members.union(peer for peer in state.link.roster if _is_at_hand(state, peer, now_s))


def lone_party(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """Everybody at hand for a lone attempt: all must agree, promise and ack (R18). Voters come first if a round does not take them
    all.
    """
    here = [view.peer for view in caught_up(state, now_s) if standing_of(state, view.peer).may_vote]
    voters_first = sorted(here, key=lambda peer: peer not in state.link.roster)[: state.config.max_members - 1]
    return tuple(sorted([*voters_first, state.config.me.peer]))


# --- how long they are waited for (R11) -----------------------------------------------------------------------------------------


def proposed_within_s(state: RoundState, others: tuple[PeerView, ...]) -> float:
    """How long slices of our next attempt wait: learned from every member's last upload, unfinished ones included; doubled at each
    failed attempt up to the longest interval.
    """
    return _within_s(state, others, state.open.num_failed)


def _within_s(state: RoundState, others: Iterable[PeerView], num_failed: int) -> float:
    config = state.config
    first_guess_s = config.sums.first_within_s
    uploads_s = _uploads_s(state, others)
    slowest_s = max(DEADLINE_FACTOR * upload_s if upload_s > 0 else first_guess_s for upload_s in uploads_s)
    doubled_s = max(LEAST_REDUCE_S, slowest_s) * 2.0 ** min(num_failed, MAX_BACKOFF_EXPONENT)
    return min(doubled_s, max(first_guess_s, config.longest_interval_s))


def _uploads_s(state: RoundState, others: Iterable[PeerView]) -> list[float]:
    """How long each last upload took, or the running one will take, in seconds; 0 where nothing is known."""
    return [state.exchange_s, *(view.exchange_s for view in others if not is_doubted(state, view.peer))]


def _views_of(state: RoundState, proposal: Proposal) -> list[PeerView]:
    return [view for view in state.peers.values() if proposal.member(view.peer) is not None]


def settle_within_s(state: RoundState) -> float:
    """How long a settled record waits for its acks. A peer that acks has fetched all results, as many bytes as contributions (R11).
    A line that became thin since the proposal shows in the running uploads, which the proposal's deadline did not know.
    """
    config, proposal = state.config, state.open.proposal
    if proposal is None:
        return config.settle_within_s
    return max(config.settle_within_s, proposal.reduce_within_s, _learned_s(state, _views_of(state, proposal)))


def _learned_s(state: RoundState, members: Iterable[PeerView]) -> float:
    """How long a slice may wait, by these members' last and running uploads; at most the longest interval (R11)."""
    return min(DEADLINE_FACTOR * max(_uploads_s(state, members)), state.config.longest_interval_s)


def reduce_within_s(state: RoundState) -> float:
    """How long slices of the running attempt wait for contributions: as proposed, or longer if a member has reported a longer
    upload since. Else a line that became thin would cost the round everything that is on its way over it.
    """
    proposal, since_s = state.open.proposal, state.open.proposal_at_s
    if proposal is None:
        return 0.0
    reporters = (view for view in _views_of(state, proposal) if view.reported_at_s > since_s)
    return max(proposal.reduce_within_s, _learned_s(state, reporters))


# --- how long others wait for a leader ------------------------------------------------------------------------------------------


def attempt_s(state: RoundState, proposal: Proposal) -> float:
    """Seconds from the proposal on after which its leader has had its time, unless it says that it gives the attempt more: every mend
    may have cost a deadline. A leader that is not believed has what the uploads ask for that we know of.
    """
    suspect_s, revision = state.config.suspect_after_s, state.open.revision
    if not is_doubted(state, proposal.ballot.peer):
        return (1 + revision) * (reduce_within_s(state) + suspect_s) + settle_within_s(state)
    return (1 + min(revision, 1)) * _usual_s(state, proposal)


def _usual_s(state: RoundState, proposal: Proposal) -> float:
    """How long an attempt of these members takes, by the uploads that we know of."""
    within_s = _within_s(state, _views_of(state, proposal), 0)
    return within_s + state.config.suspect_after_s + max(state.config.settle_within_s, within_s)


def most_left_s(state: RoundState, proposal: Proposal) -> float:
    """The longest time that an honest leader gives an attempt from any moment on, unless it mends it after that (R11)."""
    config = state.config
    longest_s = max(config.settle_within_s, proposal.reduce_within_s, config.longest_interval_s)
    return proposal.reduce_within_s + config.suspect_after_s + longest_s


def is_doubted(state: RoundState, peer: PeerId) -> bool:
    """Whether we do not believe how long this peer says that its upload, or an attempt that it leads, takes."""
    return state.barred.doubted_until.get(peer, 0) > state.link.index


# --- members that had their time ------------------------------------------------------------------------------------------------


def doubting(state: RoundState, record: CommitRecord | None, now_s: float) -> RoundState:
    """Believe the uploads no more of members that had the time they asked for, far more than others need, and of whom nothing came in
    time. One alone could let every round wait for the longest interval.
    """
    proposal, opened, config = state.open.proposal, state.open, state.config
    if proposal is None or record is None:
        return state
    waited_s, views = now_s - opened.proposal_at_s, _views_of(state, proposal)
    late = {entry.peer for part in record.slices for entry in part.omitted if entry.code == OmissionCode.LATE}
    found: list[PeerId] = []
    for view in views:
        usual = sorted([state.exchange_s, *(other.exchange_s for other in views if other is not view)])
        far_s = max(LEAST_REDUCE_S, FAR_ABOVE * usual[len(usual) // 2])
        had_time = waited_s >= min(view.exchange_s, config.longest_interval_s) > far_s
        if had_time and view.peer in late and record.contributor(view.peer) is None:
            found.append(view.peer)
    return _without_belief(state, found)


def doubting_leader(state: RoundState, successor: PeerId, now_s: float) -> RoundState:
    """Another leader proposes: believe the one before it no more if it had far more time than usual. It may lead later rounds, too."""
    proposal = state.open.proposal
    if proposal is None or proposal.ballot.peer in (successor, state.config.me.peer):
        return state
    is_over_long = now_s - state.open.proposal_at_s >= OVER_LONG * _usual_s(state, proposal)
    return _without_belief(state, [proposal.ballot.peer]) if is_over_long else state


def _without_belief(state: RoundState, peers: list[PeerId]) -> RoundState:
    if not peers:
        return state
    until, barred = dict.fromkeys(peers, state.link.index + NUM_ROUNDS_DOUBTED), state.barred
    return replace(state, barred=replace(barred, doubted_until=MappingProxyType({**barred.doubted_until, **until})))
