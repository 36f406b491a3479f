"""Following the run's lineage: certificates as they come, the next commit, and the switch to a branch that is preferred.

Hints (heartbeats, messages about other bases) only make us ask; what is followed was verified here (R4, R22 and R24).

Rules: R4, R15, R22, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import RemoteProtocolError, VersionError
from protocol.frozen import replace
from protocol.ids import CommitId, PeerId, short
from protocol.rounds.events import (
    Applied,
    CommitsFetched,
    CommitStalled,
    FlipOrdered,
    SpineMoved,
    Switched,
    SwitchFailed,
    SwitchPrepared,
)
from protocol.rounds.lineage.chain import ChainLink, verify_certificate
from protocol.rounds.lineage.lineage import SpineView, TreeNode, best_head, known_commits
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.messages.messages import Certificate, Committed, UnitHead
from protocol.rounds.messages.wire import commit_id, decode_record
from protocol.rounds.orders import Action, CatchUp, Commit, EndExchange, PrepareSwitch, Send, SendHeartbeat, Switch
from protocol.rounds.queries import is_gone, is_suspected, may_hold, own_heartbeat
from protocol.rounds.state import Ahead, OpenRound, RoundState, RoundStep, Switching
from protocol.rounds.unavailable_commits import looked_for, passed_over, reviewed, without_found

NUM_SUCCESSORS: Final = 2
"""To whom a member says that it stands at a commit now (R15), in a heartbeat: a certificate grows with the members, and the leader
tells it to everybody it knows, before it applies it.
"""

LEADERS_WORD_S: Final = 2.0
"""So long after somebody stands at a commit its leader's word of it may take: as long as a call."""


def catch_up(state: RoundState, source: PeerId, reason: str) -> RoundStep:
    """Ask somebody who seems to know more."""
    return RoundStep(state, (CatchUp(source, known_commits(state.tree, state.link.commit), reason),), reason)


def passed_by(state: RoundState, sender: PeerId, head: UnitHead, now_s: float) -> RoundStep:
    """A peer stands at a commit that we do not know. Where that may be what our round led to, its leader is telling it to everybody:
    the first who say so are asked only where that word does not come, others then at once, for what is told of a head is a claim, and
    who makes it first may lie. That the leader itself says so first changes nothing: its word left before.
    """
    reason = f"{short(sender)} is at commit {head.index}, we are at {state.link.index}"
    ahead = state.open.ahead
    is_told_soon = head.index == state.link.index + 1 and _tells_leader(state, now_s)
    if not is_told_soon or (ahead is not None and ahead.were_asked):
        return catch_up(state, sender, reason)
    told = Ahead(now_s, (sender,)) if ahead is None else ahead.told_by(sender)
    return RoundStep(replace(state, open=replace(state.open, ahead=told)), remark=f"{reason}; its leader's word is due")


def ask_ahead(state: RoundState, now_s: float) -> RoundStep:
    """The leader's word did not come: ask those who told us first that they stand further."""
    ahead = state.open.ahead
    if ahead is None or ahead.were_asked:
        return RoundStep(state)
    if now_s - ahead.since_s < LEADERS_WORD_S and _tells_leader(state, now_s):
        return RoundStep(state)
    state = replace(state, open=replace(state.open, ahead=replace(ahead, were_asked=True)))
    if state.open.committing is not None:
        return RoundStep(state)
    known = known_commits(state.tree, state.link.commit)
    reason = f"{short(ahead.tellers[0])} is ahead of us, and word of that commit did not come"
    return RoundStep(state, tuple(CatchUp(source, known, reason) for source in ahead.tellers), reason)


def _tells_leader(state: RoundState, now_s: float) -> bool:
    """Whether somebody else leads the round in which we take part, and lives."""
    proposal = state.open.proposal
    if proposal is None or proposal.ballot.peer == state.config.me.peer:
        return False
    return not is_suspected(state, proposal.ballot.peer, now_s)


def committed(state: RoundState, sender: PeerId, message: Committed, now_s: float) -> RoundStep:
    """A certificate: verified on its parent, wherever in the tree that is; unknown parents are asked for."""
    if message.unit != state.config.unit:
        found = f"{short(sender)} sent a commit of unit {message.unit}"
        return RoundStep(state, remark=f"{found}; this is {state.config.unit}")
    try:
        added = _with_certificate(state, message.certificate)
    except (RemoteProtocolError, VersionError) as error:
        return RoundStep(state, remark=f"dropped a certificate of {short(sender)}: {error.one_line()}")
    if added is None:
        return catch_up(state, sender, f"{short(sender)} sent a commit on a base that we do not know")
    return consider(added, sender, now_s)


def commits_fetched(state: RoundState, event: CommitsFetched, now_s: float) -> RoundStep:
    """A peer's lineage after the newest commit that we share."""
    for certificate in event.certificates:
        try:
            added = _with_certificate(state, certificate)
        except (RemoteProtocolError, VersionError) as error:
            return RoundStep(state, remark=f"dropped a certificate of {short(event.source)}: {error.one_line()}")
        if added is None:
            return RoundStep(state, remark=f"{short(event.source)} sent commits on a base that we do not know")
        state = added
    return consider(state, event.source, now_s)


def _with_certificate(state: RoundState, certificate: Certificate) -> RoundState | None:
    """The state with one more verified commit; None when its parent is not known. A commit that is known was verified when it came:
    a certificate of it is nothing but word of it, and may come from several.
    """
    base = decode_record(certificate.record).parent
    parent = state.tree.nodes.get(base)
    if parent is None:
        return None
    if commit_id(base, certificate.record) in state.tree.nodes:
        return state
    known = state.config
    link = verify_certificate(certificate, parent.link, verifier=known.verifier, run_id=known.run_id)
    return replace(state, tree=state.tree.add(link, certificate))


def consider(state: RoundState, source: PeerId | None, now_s: float) -> RoundStep:
    """Whether another commit is to be followed: the next one of our lineage, or another lineage altogether."""
    if state.open.committing is not None:
        return RoundStep(state, remark="nothing else is followed while a commit is being applied")
    if state.switching is not None and state.switching.is_flipping:
        return RoundStep(state, remark="nothing else is followed while the lineage is being switched")
    if state.switching is not None and state.switching.is_prepared:
        return _flip(state, state.switching, now_s)
    target = _preferred(state)
    if target == state.link.commit:
        return RoundStep(state, remark="nothing to follow: no commit that is known is preferred to our head")
    ahead = state.tree.path(state.link.commit, target)
    if ahead and not _needs_state(state, ahead):
        return _commit_next(state, ahead[0].link, ahead[0].certificate, source)
    preparing = _prepare_switch(state, target, source)
    return preparing if ahead else _go_on(preparing, source)


def _preferred(state: RoundState) -> CommitId:
    """The head to follow of all whose bytes may be with somebody."""
    return best_head(state.tree, spine=state.spine, without=passed_over(state))


def look_again(state: RoundState, now_s: float) -> RoundStep:
    """Whether what was passed over, for nobody had its bytes, is wanted again by now."""
    looked = reviewed(state, now_s)
    return RoundStep(state) if looked is state else consider(looked, None, now_s)


def _go_on(preparing: RoundStep, source: PeerId | None) -> RoundStep:
    """Until all of the other lineage is here, ours goes on: bringing it may take hours (R24)."""
    state = preparing.state
    own_head = best_head(state.tree, state.link.commit, state.spine, passed_over(state))
    ahead = state.tree.path(state.link.commit, own_head)
    if not ahead or _needs_state(state, ahead):
        return preparing
    own = _commit_next(state, ahead[0].link, ahead[0].certificate, source)
    return RoundStep(own.state, (*preparing.actions, *own.actions), preparing.reason or own.reason)


def _needs_state(state: RoundState, ahead: tuple[TreeNode, ...]) -> bool:
    """Whether what follows our head is to be had as a whole state: it is too much to replay, or the next update is with nobody."""
    if len(ahead) > state.config.replay_at_most:
        return True
    return len(ahead) > 1 and ahead[0].link.commit == state.open.stalled


def _commit_next(
    state: RoundState, link: ChainLink, certificate: Certificate | None, source: PeerId | None
) -> RoundStep:
    if certificate is None:
        return RoundStep(state, remark=f"commit {link.index} has no certificate: it is the start of the run")
    led = state.open.leading
    told: tuple[PeerId, ...] = ()
    if led is not None and led.commit == link.commit:
        told = tuple(peer for peer in _reachable(state) if not _is_lender(state, peer))
    opened = replace(state.open, committing=link.commit, leading=None, told=link.commit if told else state.open.told)
    reason = f"round {link.index} is decided: it is applied as soon as its bytes are here"
    actions: list[Action] = [Commit(link, certificate, _holders(state, link, source), reason)]
    if told:  # at once: acks make a certificate true, and those are on the disks of others; everybody waits for it
        actions.insert(0, Send(told, Committed(state.config.unit, certificate), reason))
    return RoundStep(replace(state, open=opened), tuple(actions), reason)


def _holders(state: RoundState, link: ChainLink, source: PeerId | None) -> tuple[PeerId, ...]:
    first = () if source is None else (source,)
    others = [peer for peer in sorted(state.peers) if not is_gone(state, peer)]
    me = state.config.me.peer
    return tuple(peer for peer in dict.fromkeys((*first, *link.roster, *others)) if peer != me)


def _prepare_switch(state: RoundState, target: CommitId, source: PeerId | None) -> RoundStep:
    switching = state.switching
    if switching is not None and state.tree.path(switching.target, target) is not None:
        # what came after it follows when we are there
        return RoundStep(state, remark=f"lineage {short(switching.target)} is being brought here already")
    fork = state.tree.common(state.link.commit, target)
    path = state.tree.path(fork, target) if fork is not None else None
    if fork is None or not path:
        return RoundStep(state, (), "another lineage forked off deeper than we remember")
    link = path[-1].link
    state = replace(state, switching=Switching(fork, target))
    what = f"we are {len(path)} commits behind" if fork == state.link.commit else "another lineage is preferred to ours"
    reason = f"{what}: bringing {short(target)} with {link.total_tokens} tokens here"
    return RoundStep(state, (PrepareSwitch(fork, path, _holders(state, link, source), reason),), reason)


def switch_prepared(state: RoundState, event: SwitchPrepared, now_s: float) -> RoundStep:
    """Everything is here: it is flipped to as soon as no commit of our own is being applied."""
    switching = state.switching
    if switching is None or switching.target != event.target:
        return RoundStep(state, remark=f"lineage {short(event.target)} is here, and no longer wanted")
    return consider(replace(state, switching=replace(switching, is_prepared=True)), None, now_s)


def _flip(state: RoundState, switching: Switching, now_s: float) -> RoundStep:
    """Judge again, and flip if it is still the one (R24)."""
    target = switching.target
    fork = state.tree.common(state.link.commit, target)
    path = state.tree.path(fork, target) if fork is not None else None
    is_best = state.tree.path(target, _preferred(state)) is not None
    if not is_best or fork != switching.fork or not path:  # or our own lineage moved in the meantime, or it is ours now
        return consider(replace(state, switching=None), None, now_s)
    opened = replace(state.open, leading=None, gathering=None)
    state = replace(state, switching=replace(switching, is_flipping=True), open=opened)
    reason = f"switching to lineage {short(target)}"
    orders: tuple[Action, ...] = (EndExchange(state.link.commit, "switching lineages"), Switch(fork, path, reason))
    return RoundStep(state, orders, reason)


def spine_moved(state: RoundState, event: SpineMoved, now_s: float) -> RoundStep:
    """What was trained with another spine than the followed one may have to be left."""
    return consider(replace(state, spine=event.spine), None, now_s)


def would_switch(state: RoundState, spine: SpineView) -> Switch | None:
    """The change of lineage that this unit would have to make if the spine stood at `spine`; None when it stays on its own."""
    target = best_head(state.tree, spine=spine, without=passed_over(state))
    fork = state.tree.common(state.link.commit, target)
    path = state.tree.path(fork, target) if fork is not None else None
    if fork is None or fork == state.link.commit or not path:
        return None
    return Switch(fork, path, f"lineage {short(target)} goes with the spine")


def flip_ordered(state: RoundState, event: FlipOrdered) -> RoundStep:
    """Change lineages together with the spine, unless the head is moving already; whoever orders it looks at what became of it."""
    is_moving = state.open.committing is not None or (state.switching is not None and state.switching.is_flipping)
    if is_moving or state.tree.path(event.fork, state.link.commit) is None:
        return RoundStep(state, remark="not switched with the spine: our own head is moving, or was never on that fork")
    target = event.path[-1].link.commit
    opened = replace(state.open, leading=None, gathering=None)
    switching = Switching(event.fork, target, is_prepared=True, is_flipping=True, is_with_spine=True)
    state = replace(state, switching=switching, open=opened)
    reason = f"switching to lineage {short(target)} with the spine"
    return RoundStep(state, (EndExchange(state.link.commit, "switching lineages"),), reason)


def switch_failed(state: RoundState, event: SwitchFailed, now_s: float) -> RoundStep:
    """Stay where we are; somebody will speak of the other lineage again. Where nobody who lives has its bytes, the best of those that
    can be had is followed meanwhile.
    """
    switching, missing = state.switching, event.missing
    if switching is None or switching.target != event.target:
        return RoundStep(
            state, remark=f"lineage {short(event.target)} did not come, and is no longer wanted: {event.why}"
        )
    failed, reason = replace(state, switching=None), f"cannot switch lineages: {event.why}"
    return RoundStep(failed, (), reason) if missing is None else _without(failed, missing, reason, now_s)


def _without(state: RoundState, missing: CommitId, reason: str, now_s: float) -> RoundStep:
    """What is followed now that the bytes of `missing` were with nobody. While nothing is passed over for it, the next word is waited
    for before they are looked for again.
    """
    looked = looked_for(state, missing, now_s)
    if missing not in passed_over(looked):
        return RoundStep(looked, (), reason)
    considered = consider(looked, None, now_s)
    return RoundStep(considered.state, considered.actions, considered.reason or reason)


def switched(state: RoundState, event: Switched, now_s: float) -> RoundStep:
    """The head is on another lineage now."""
    state = replace(
        _at(state, event.link, event.open_round, now_s), state_commit=event.link.commit, state_root=event.state_root
    )
    considered = consider(state, None, now_s)
    lineage = f"on lineage {short(event.link.commit)}, {event.link.total_tokens} tokens"
    return RoundStep(considered.state, considered.actions, considered.reason or lineage)


def applied(state: RoundState, event: Applied, now_s: float) -> RoundStep:
    """A certified commit is applied: the next round begins on it."""
    old = state.link
    if event.link.parent != old.commit:
        found = f"commit {short(event.link.commit)} was applied"
        return RoundStep(state, remark=f"{found}; expected one that follows our head {short(old.commit)}")
    untold, record = _untold(state, event.link.commit), event.link.record
    is_told = _is_told_by_us(state, event.link.commit)
    state = replace(
        _at(state, event.link, event.open_round, now_s),
        switching=_still_wanted(state, event.link.commit),
        state_commit=event.link.commit,
        state_root=event.state_root,
    )
    counted = len(record.contributors) if record is not None else 0
    alone = " without a quorum" if event.link.is_lone else ""
    reason = f"round {event.link.index} committed{alone}: {counted} counted, {event.link.total_tokens} tokens in all"
    actions: list[Action] = [EndExchange(old.commit, "committed")]
    if untold:
        actions.append(Send(untold, Committed(state.config.unit, event.certificate), reason))
    considered = consider(state, None, now_s)
    return RoundStep(considered.state, (*actions, *_tell_head(state, is_told, now_s), *considered.actions), reason)


def _tell_head(state: RoundState, is_told: bool, now_s: float) -> tuple[Action, ...]:
    """Where we stand now, to who opens the next round: it proposes that to those whose head it knows to be this one, and whoever comes
    last, like a peer that was away and had to fetch the commit, would miss round after round with its usual heartbeats. And to two
    successors in the order of ids, unless we told everybody of the commit: they ask for it where its leader's word is lost. Who only
    lent itself hears of it from its leader alone, or ends its loan when that is over by its own clock.
    """
    me, others = state.config.me.peer, () if is_told else _reachable(state)
    after = [p for p in others if p > me] + [p for p in others if p < me]
    opener = first_opener(state.link.commit, state.link.roster)
    to = dict.fromkeys((*after[:NUM_SUCCESSORS], *((opener,) if opener in state.peers else ())))
    why = "they are to know that we are at this commit"
    return (SendHeartbeat(tuple(to), own_heartbeat(state, now_s), True, why),) if to else ()


def _at(state: RoundState, link: ChainLink, opened: OpenRound, now_s: float) -> RoundState:
    tree = state.tree.pruned(link.commit) if link.commit in state.tree.nodes else state.tree
    was_heard = state.open.proposal is not None and link.parent == state.link.commit
    moved = replace(
        state,
        link=link,
        tree=tree,
        open=opened,
        switching=None,
        proposed_at_s=state.open.proposal_at_s if was_heard else 0.0,
        snapshot_at_s=state.open.snapshot_at_s if was_heard else 0.0,
        committed_at_s=now_s,
        alone_since_s=None,
    )
    return without_found(moved) if moved.missing else moved


def _still_wanted(state: RoundState, head: CommitId) -> Switching | None:
    """What is being brought here goes on being brought, unless it has become our own lineage."""
    switching = state.switching
    return None if switching is None or state.tree.path(head, switching.target) is not None else switching


def _reachable(state: RoundState) -> tuple[PeerId, ...]:
    """All others who have a use for a certificate, in the order of ids. Of a unit that is not the spine those are who hold it or have
    reduced for it.
    """
    proposal = state.open.proposal
    reducers = {part.reducer for part in proposal.slices} if proposal is not None else set()
    return tuple(
        p
        for p in sorted(state.peers)
        if not is_gone(state, p) and (state.config.is_spine or may_hold(state, p) or p in reducers)
    )


def _is_lender(state: RoundState, peer: PeerId) -> bool:
    """Whether it reduced without being a member: with the certificate it forgets its result, which we may still be fetching."""
    proposal = state.open.proposal
    return (
        proposal is not None and proposal.member(peer) is None and any(part.reducer == peer for part in proposal.slices)
    )


def _untold(state: RoundState, commit: CommitId) -> tuple[PeerId, ...]:
    """To whom the certificate of what is applied here goes: to everybody where the proposal is ours, and of those who were told before
    to who lent itself.
    """
    if not _is_told_by_us(state, commit):
        return ()
    others = _reachable(state)
    return tuple(peer for peer in others if _is_lender(state, peer)) if state.open.told == commit else others


def _is_told_by_us(state: RoundState, commit: CommitId) -> bool:
    """Whether others hear of this commit by our certificate: we told them before, or the proposal is ours."""
    proposal = state.open.proposal
    return state.open.told == commit or (proposal is not None and proposal.ballot.peer == state.config.me.peer)


def stalled(state: RoundState, event: CommitStalled, now_s: float) -> RoundStep:
    """The bytes of a commit could not be had; the round goes on as it was, and whoever brings it next is asked. Where nobody has them
    and somebody has another branch, that is followed meanwhile.
    """
    if state.open.committing != event.commit:
        return RoundStep(
            state, remark=f"commit {short(event.commit)} stalled, and is no longer waited for: {event.why}"
        )
    opened = replace(state.open, committing=None, stalled=event.commit)
    state, reason = replace(state, open=opened), f"commit waits: {event.why}"
    if state.switching is not None and state.switching.is_prepared:
        flipped = _flip(state, state.switching, now_s)
        return RoundStep(flipped.state, flipped.actions, flipped.reason or reason)
    return _without(state, event.commit, reason, now_s) if event.is_missing else RoundStep(state, (), reason)
