"""Following the run's lineage: certificates as they come, the next commit, and the switch to a preferred branch.

Heartbeats and messages about other bases are hints: they only make us ask. We follow what we verified ourselves (R4, R22 and R24).

Rules: R4, R15, R22, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.errors import RemoteProtocolError, VersionError
from protocol.frozen import replace
from protocol.ids import CommitId, PeerId, short
from protocol.rounds import telling
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
from protocol.rounds.expulsion import convict_by
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import SpineView, Standing, TreeNode, best_head, is_outvoted, known_commits
from protocol.rounds.messages.messages import Certificate, Committed, UnitHead
from protocol.rounds.messages.wire import commit_id, decode_record
from protocol.rounds.orders import Action, CatchUp, Commit, EndExchange, PrepareSwitch, Send, Switch
from protocol.rounds.participants import doubting
from protocol.rounds.queries import is_gone, is_suspected, lone_refused
from protocol.rounds.schedule.asking_order import asking_order
from protocol.rounds.state import Ahead, OpenRound, RoundState, RoundStep, Switching
from protocol.rounds.unavailable_commits import looked_for, passed_over, reviewed, without_found

MOST_LONE_SIBLINGS: Final = 4
"""Lone commits of the same voters on one base. Honest ones sign one, and another after a crash that hid the first from them."""

MOST_UNPLACED: Final = 8
MOST_UNPLACED_EACH: Final = 2
"""Certificates on a base that is not known here which wait for it, in all and of one sender: the last ones."""

MOST_BESIDE: Final = 1024
"""Commits beside our lineage that are kept in all. Beyond it none of a lone lineage that we do not follow is kept."""

LEADERS_WORD_S: Final = 2.0
"""Seconds that the leader's certificate may take after another peer reports the commit: as long as a call."""


def catch_up(state: RoundState, source: PeerId, reason: str) -> RoundStep:
    """Ask a peer that seems to know more."""
    return RoundStep(state, (CatchUp(source, known_commits(state.tree, state.link.commit), reason),), reason)


def passed_by(state: RoundState, sender: PeerId, head: UnitHead, now_s: float) -> RoundStep:
    """A peer reports a commit that we do not know. If our round may have led to it, its leader is sending it to everybody; among many
    peers it is on its way in any case. Then we ask the first peers that report it only when that certificate does not come. We ask
    later ones at once: the first report may be a lie. The leader's own report changes nothing: its certificate left before.
    """
    reason = f"{short(sender)} is at commit {head.index}, we are at {state.link.index}"
    ahead = state.open.ahead
    is_certificate_due = head.index == state.link.index + 1 and _is_told_by_others(state, now_s)
    if not is_certificate_due or (ahead is not None and ahead.were_asked):
        return catch_up(state, sender, reason)
    reported = Ahead(now_s, (sender,)) if ahead is None else ahead.reported_by(sender)
    return RoundStep(
        replace(state, open=replace(state.open, ahead=reported)), remark=f"{reason}; its leader's certificate is due"
    )


def ask_ahead(state: RoundState, now_s: float) -> RoundStep:
    """The leader's certificate did not come: ask the peers that first reported the commit."""
    ahead = state.open.ahead
    if ahead is None or ahead.were_asked:
        return RoundStep(state)
    if now_s - ahead.since_s < LEADERS_WORD_S and _is_told_by_others(state, now_s):
        return RoundStep(state)
    state = replace(state, open=replace(state.open, ahead=replace(ahead, were_asked=True)))
    if state.open.committing is not None:
        return RoundStep(state)
    known = known_commits(state.tree, state.link.commit)
    reason = f"{short(ahead.tellers[0])} is ahead of us, and the certificate of that commit did not come"
    return RoundStep(state, tuple(CatchUp(source, known, reason) for source in ahead.tellers), reason)


def _is_told_by_others(state: RoundState, now_s: float) -> bool:
    """Whether another live peer leads the round in which we take part, or many peers tell one another of commits."""
    proposal = state.open.proposal
    if proposal is None:
        return telling.is_told_by_tree(state)
    if proposal.ballot.peer == state.config.me.peer:
        return False
    return not is_suspected(state, proposal.ballot.peer, now_s)


def committed(state: RoundState, sender: PeerId, message: Committed, now_s: float) -> RoundStep:
    """A certificate came: verify it on its parent, anywhere in the tree. If the parent is unknown, ask for it. Among many peers a new
    one is passed on as soon as it is verified (R15): others may hear of it from nobody else.
    """
    if message.unit != state.config.unit:
        found = f"{short(sender)} sent a commit of unit {message.unit}"
        return RoundStep(state, remark=f"{found}; this is {state.config.unit}")
    try:
        added = _with_certificate(state, message.certificate, now_s)
    except (RemoteProtocolError, VersionError) as error:
        return RoundStep(state, (), f"dropped a certificate of {short(sender)}: {error.one_line()}")
    if added is None:
        waiting = _unplaced(state, sender, message, now_s)
        return catch_up(waiting, sender, f"{short(sender)} sent a commit on a base that we do not know")
    placed = _placed(added, now_s)
    judged = _judged(placed.state, (message.certificate,), sender, now_s)
    onward = placed.actions
    if added is not state and sender != state.config.me.peer:
        onward = (*telling.passed_on(state, sender, message, _NEW_TO_US), *onward)
    return RoundStep(judged.state, (*onward, *judged.actions), judged.reason, judged.remark)


_NEW_TO_US: Final = "a commit is new to us: others hear of it from us"


def _unplaced(state: RoundState, sender: PeerId, message: Committed, now_s: float) -> RoundState:
    """Keep a certificate until its parent is known, where we have to pass it on."""
    if not telling.is_told_by_tree(state):
        return state
    ahead = state.open.ahead or Ahead(now_s, (sender,))
    if any(other == message for _, other in ahead.unplaced):
        return state
    own = [item for item in ahead.unplaced if item[0] == sender]
    too_old = own[: len(own) + 1 - MOST_UNPLACED_EACH]
    unplaced = (*(item for item in ahead.unplaced if item not in too_old), (sender, message))[-MOST_UNPLACED:]
    return replace(state, open=replace(state.open, ahead=replace(ahead, unplaced=unplaced)))


def _placed(state: RoundState, now_s: float) -> RoundStep:
    """Verify and pass on the certificates whose parents came after them."""
    ahead = state.open.ahead
    if ahead is None or not ahead.unplaced:
        return RoundStep(state)
    waiting: list[tuple[PeerId, Committed]] = []
    onward: list[Action] = []
    for sender, message in sorted(ahead.unplaced, key=lambda item: decode_record(item[1].certificate.record).index):
        certificate = message.certificate
        base = decode_record(certificate.record).parent
        if base not in state.tree.nodes:
            waiting.append((sender, message))
            continue
        try:
            state = _with_certificate(state, certificate, now_s) or state
        except (RemoteProtocolError, VersionError):
            continue
        if commit_id(base, certificate.record) in state.tree.nodes:
            onward += telling.passed_on(state, sender, message, _NEW_TO_US)
    kept = replace(ahead, unplaced=tuple(waiting))
    return RoundStep(replace(state, open=replace(state.open, ahead=kept)), tuple(onward))


def _judged(state: RoundState, certificates: Sequence[Certificate], source: PeerId, now_s: float) -> RoundStep:
    """Consider the new commits, after a look at whose acks are on two sides of a fork."""
    orders: tuple[Action, ...] = ()
    for certificate in certificates if state.tree.has_fork else ():
        convicted = convict_by(state, certificate, _siblings(state, certificate))
        state, orders = convicted.state, (*orders, *convicted.actions)
    considered = consider(state, source, now_s)
    reason = considered.reason or _why_not_followed(considered.state, certificates[-1:], source)
    return RoundStep(considered.state, (*orders, *considered.actions), reason, considered.remark)


def _why_not_followed(state: RoundState, newest: Sequence[Certificate], source: PeerId) -> str:
    """Name the peer that sent a lineage which left ours without a quorum, where ours has one. Empty for any other commit."""
    tree, head = state.tree, state.link.commit
    for certificate in newest if tree.has_lone and tree.has_fork else ():
        commit = commit_id(decode_record(certificate.record).parent, certificate.record)
        fork = tree.common(head, commit)
        theirs, ours = (tree.path(fork, end) if fork is not None else None for end in (commit, head))
        if fork is not None and theirs and ours and theirs[0].link.is_lone and not ours[0].link.is_lone:
            index = tree.nodes[fork].link.index
            return (
                f"{short(source)} sent commits after round {index} that no quorum signed: not followed, ours have one"
            )
    return ""


def _siblings(state: RoundState, certificate: Certificate) -> list[Certificate]:
    base = decode_record(certificate.record).parent
    same = (node.certificate for node in state.tree.nodes.values() if node.link.parent == base)
    return [other for other in same if other is not None and other.record != certificate.record]


def commits_fetched(state: RoundState, event: CommitsFetched, now_s: float) -> RoundStep:
    """A peer sent its lineage after the newest commit that we share."""
    for certificate in event.certificates:
        try:
            added = _with_certificate(state, certificate, now_s)
        except (RemoteProtocolError, VersionError) as error:
            return RoundStep(state, (), f"dropped a certificate of {short(event.source)}: {error.one_line()}")
        if added is None:
            return RoundStep(state, remark=f"{short(event.source)} sent commits on a base that we do not know")
        state = added
    placed = _placed(state, now_s)
    judged = _judged(placed.state, event.certificates, event.source, now_s)
    return RoundStep(judged.state, (*placed.actions, *judged.actions), judged.reason, judged.remark)


def _with_certificate(state: RoundState, certificate: Certificate, now_s: float) -> RoundState | None:
    """The state with one more verified commit, or None when its parent is not known. A known commit was verified when it came:
    further certificates of it are ignored.
    """
    base = decode_record(certificate.record).parent
    parent = state.tree.nodes.get(base)
    if parent is None:
        return None
    if commit_id(base, certificate.record) in state.tree.nodes or _is_one_too_many(state, certificate.record, now_s):
        return state
    known = state.config
    link = verify_certificate(certificate, parent.link, verifier=known.verifier, run_id=known.run_id)
    return replace(state, tree=state.tree.add(link, certificate))


def _is_one_too_many(state: RoundState, raw: bytes, now_s: float) -> bool:
    """Whether this commit is of no use here: these voters signed enough lone ones on its base, or it continues a lone lineage that we
    do not follow, and we know enough of such. One voter alone can sign as many as it likes, and each costs memory and time for good.
    """
    record, tree = decode_record(raw), state.tree
    if record.lone:
        links = (node.link for node in tree.nodes.values() if node.link.parent == record.parent)
        if sum(link.is_lone and link.roster == record.roster for link in links) >= MOST_LONE_SIBLINGS:
            return True
    num_ours = 1 + state.link.index - tree.nodes[tree.root].link.index
    return len(tree.nodes) - num_ours >= MOST_BESIDE and _is_lone_beside(state, record.parent, now_s)


def _is_lone_beside(state: RoundState, commit: CommitId, now_s: float) -> bool:
    """Whether what leads from our lineage to this commit begins with a lone commit that we do not follow."""
    tree, head = state.tree, state.link.commit
    fork = tree.common(head, commit)
    theirs = tree.path(fork, commit) if fork is not None else None
    if fork is None or not theirs or not theirs[0].link.is_lone:
        return False
    ours = tree.path(fork, head)
    if not ours:  # we may still follow it, as long as nothing speaks against it
        return theirs[0].link.commit in lone_refused(state, now_s)
    if not is_outvoted(tree.nodes[fork].link, theirs[0].link, ours[0].link):
        return False
    return state.spine is None or _are_with_spine(state.spine, ours)


def _are_with_spine(spine: SpineView, nodes: Sequence[TreeNode]) -> bool:
    """Whether these commits of another unit were made with the spine that we follow."""
    return all(spine.standing(node.link.spine) is Standing.FOLLOWED for node in nodes)


def consider(state: RoundState, source: PeerId | None, now_s: float) -> RoundStep:
    """Follow another commit if one is preferred: the next one of our lineage, or another lineage."""
    if state.open.committing is not None:
        return RoundStep(state, remark="nothing else is followed while a commit is being applied")
    if state.switching is not None and state.switching.is_flipping:
        return RoundStep(state, remark="nothing else is followed while the lineage is being switched")
    if state.switching is not None and state.switching.is_prepared:
        return _flip(state, state.switching, now_s)
    target = _preferred(state, now_s)
    if target == state.link.commit:
        return RoundStep(state, remark="nothing to follow: no commit that is known is preferred to our head")
    ahead = state.tree.path(state.link.commit, target)
    if ahead and not _needs_state(state, ahead):
        return _commit_next(state, ahead[0].link, ahead[0].certificate, source)
    preparing = _prepare_switch(state, target, source)
    return preparing if ahead else _go_on(preparing, source, now_s)


def _preferred(state: RoundState, now_s: float) -> CommitId:
    """The best head of which somebody may have the bytes, and that was not committed alone while a quorum was here."""
    return best_head(state.tree, spine=state.spine, without=passed_over(state) | lone_refused(state, now_s))


def look_again(state: RoundState, now_s: float) -> RoundStep:
    """Whether a commit that was passed over because its bytes were missing may be followed again."""
    updated = reviewed(state, now_s)
    return RoundStep(state) if updated is state else consider(updated, None, now_s)


def _go_on(preparing: RoundStep, source: PeerId | None, now_s: float) -> RoundStep:
    """Our lineage goes on until the other one is here completely: fetching it may take hours (R24)."""
    state = preparing.state
    refused = passed_over(state) | lone_refused(state, now_s)
    own_head = best_head(state.tree, state.link.commit, state.spine, refused)
    ahead = state.tree.path(state.link.commit, own_head)
    if not ahead or _needs_state(state, ahead):
        return preparing
    own = _commit_next(state, ahead[0].link, ahead[0].certificate, source)
    return RoundStep(own.state, (*preparing.actions, *own.actions), preparing.reason or own.reason)


def _needs_state(state: RoundState, ahead: tuple[TreeNode, ...]) -> bool:
    """Whether to fetch a whole state: there are too many commits to replay, or nobody has the next update."""
    if len(ahead) > state.config.replay_at_most:
        return True
    return len(ahead) > 1 and ahead[0].link.commit == state.open.stalled


def _commit_next(
    state: RoundState, link: ChainLink, certificate: Certificate | None, source: PeerId | None
) -> RoundStep:
    if certificate is None:
        return RoundStep(state, remark=f"commit {link.index} has no certificate: it is the start of the run")
    led = state.open.leading
    recipients: tuple[PeerId, ...] = ()
    if led is not None and led.commit == link.commit:
        recipients = telling.to_all(state, certificate, link.commit)
    opened = replace(
        state.open, committing=link.commit, leading=None, announced=link.commit if recipients else state.open.announced
    )
    reason = f"round {link.index} is decided: it is applied as soon as its bytes are here"
    actions: list[Action] = [Commit(link, certificate, _holders(state, link, source), reason)]
    if recipients:  # at once: everybody waits for it, and the acks that make it true are on the disks of others
        actions.insert(0, Send(recipients, Committed(state.config.unit, certificate), reason))
    return RoundStep(replace(state, open=opened), tuple(actions), reason)


def _holders(state: RoundState, link: ChainLink, source: PeerId | None) -> tuple[PeerId, ...]:
    """The peers to ask for the bytes of a commit: the one that told us of it, its voters, then all others."""
    first, me = () if source is None else (source,), state.config.me.peer
    voters, others = asking_order(me, link.roster), asking_order(me, (p for p in state.peers if not is_gone(state, p)))
    return tuple(peer for peer in dict.fromkeys((*first, *voters, *others)) if peer != me)


def _prepare_switch(state: RoundState, target: CommitId, source: PeerId | None) -> RoundStep:
    switching = state.switching
    if switching is not None and state.tree.path(switching.target, target) is not None:
        # later commits of it are followed when we are there
        return RoundStep(state, remark=f"lineage {short(switching.target)} is being fetched already")
    fork = state.tree.common(state.link.commit, target)
    path = state.tree.path(fork, target) if fork is not None else None
    if fork is None or not path:
        return RoundStep(state, (), "another lineage forked off deeper than we remember")
    link = path[-1].link
    state = replace(state, switching=Switching(fork, target))
    what = f"we are {len(path)} commits behind" if fork == state.link.commit else "another lineage is preferred to ours"
    if fork != state.link.commit and path[0].link.rewind:
        what = f"the host took the rounds after {path[0].link.index - 1} back"
    reason = f"{what}: fetching {short(target)} with {link.total_tokens:,} tokens"
    return RoundStep(state, (PrepareSwitch(fork, path, _holders(state, link, source), reason),), reason)


def switch_prepared(state: RoundState, event: SwitchPrepared, now_s: float) -> RoundStep:
    """The other lineage is here: switch to it as soon as no commit of our own is being applied."""
    switching = state.switching
    if switching is None or switching.target != event.target:
        return RoundStep(state, remark=f"lineage {short(event.target)} is here, and not wanted now")
    return consider(replace(state, switching=replace(switching, is_prepared=True)), None, now_s)


def _flip(state: RoundState, switching: Switching, now_s: float) -> RoundStep:
    """Judge again, and switch if it is still preferred (R24)."""
    target = switching.target
    fork = state.tree.common(state.link.commit, target)
    path = state.tree.path(fork, target) if fork is not None else None
    is_best = state.tree.path(target, _preferred(state, now_s)) is not None
    if not is_best or fork != switching.fork or not path:  # our own lineage moved in the meantime, or it is ours now
        return consider(replace(state, switching=None), None, now_s)
    opened = replace(state.open, leading=None, gathering=None)
    state = replace(state, switching=replace(switching, is_flipping=True), open=opened)
    reason = f"switching to lineage {short(target)}"
    orders: tuple[Action, ...] = (EndExchange(state.link.commit, "switching lineages"), Switch(fork, path, reason))
    return RoundStep(state, orders, reason)


def spine_moved(state: RoundState, event: SpineMoved, now_s: float) -> RoundStep:
    """Work trained with another spine than the followed one may have to be left."""
    return consider(replace(state, spine=event.spine), None, now_s)


def would_switch(state: RoundState, spine: SpineView) -> Switch | None:
    """The lineage switch that this unit would need if the spine stood at `spine`; None when it stays on its own."""
    target = best_head(state.tree, spine=spine, without=passed_over(state))
    fork = state.tree.common(state.link.commit, target)
    path = state.tree.path(fork, target) if fork is not None else None
    if fork is None or fork == state.link.commit or not path:
        return None
    return Switch(fork, path, f"lineage {short(target)} goes with the spine")


def flip_ordered(state: RoundState, event: FlipOrdered) -> RoundStep:
    """Switch lineages together with the spine, unless the head is moving already. The caller checks what became of it."""
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
    """Stay on our lineage; a peer will mention the other one again. If no live peer has its bytes, follow the best available
    lineage.
    """
    switching, missing = state.switching, event.missing
    if switching is None or switching.target != event.target:
        return RoundStep(
            state, remark=f"lineage {short(event.target)} did not come, and is not wanted now: {event.why}"
        )
    failed, reason = replace(state, switching=None), f"the rounds of the other peers could not be applied: {event.why}"
    return RoundStep(failed, (), reason) if missing is None else _without(failed, missing, reason, now_s)


def _without(state: RoundState, missing: CommitId, reason: str, now_s: float) -> RoundStep:
    """Choose a lineage now that nobody had the bytes of `missing`. If there is no other branch to follow, wait until a peer
    mentions it again before asking for the bytes once more.
    """
    updated = looked_for(state, missing, now_s)
    if missing not in passed_over(updated):
        return RoundStep(updated, (), reason)
    considered = consider(updated, None, now_s)
    return RoundStep(considered.state, considered.actions, considered.reason or reason)


def switched(state: RoundState, event: Switched, now_s: float) -> RoundStep:
    """The head moved to another lineage."""
    state = replace(
        _at(state, event.link, event.open_round, now_s), state_commit=event.link.commit, state_root=event.state_root
    )
    considered = consider(state, None, now_s)
    lineage = f"on lineage {short(event.link.commit)}, {event.link.total_tokens:,} tokens"
    if event.link.rewind:
        lineage = f"went back to round {event.link.index - 1}, {event.link.total_tokens:,} tokens, as the host signed"
    return RoundStep(considered.state, considered.actions, considered.reason or lineage)


def applied(state: RoundState, event: Applied, now_s: float) -> RoundStep:
    """A certified commit was applied: the next round begins on it."""
    old = state.link
    if event.link.parent != old.commit:
        found = f"commit {short(event.link.commit)} was applied"
        return RoundStep(state, remark=f"{found}; expected one that follows our head {short(old.commit)}")
    to_notify, record = telling.still_to_tell(state, event.link, event.certificate), event.link.record
    is_told = telling.is_told_by_us(state, event.link.commit)
    state = doubting(state, record, now_s)
    state = replace(
        _at(state, event.link, event.open_round, now_s),
        switching=_still_wanted(state, event.link.commit),
        state_commit=event.link.commit,
        state_root=event.state_root,
    )
    counted = len(record.contributors) if record is not None else 0
    alone = " without a quorum" if event.link.is_lone else ""
    reason = f"round {event.link.index} committed{alone}: {counted} counted, {event.link.total_tokens:,} tokens in all"
    actions: list[Action] = [EndExchange(old.commit, "committed")]
    if to_notify:
        actions.append(Send(to_notify, Committed(state.config.unit, event.certificate), reason))
    considered = consider(state, None, now_s)
    reported, report = telling.head_report(considered.state, is_told, now_s)
    return RoundStep(reported, (*actions, *report, *considered.actions), reason)


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
    """Keep fetching a lineage, unless it has become our own."""
    switching = state.switching
    return None if switching is None or state.tree.path(head, switching.target) is not None else switching


def stalled(state: RoundState, event: CommitStalled, now_s: float) -> RoundStep:
    """The bytes of a commit could not be had. The round goes on, and the next peer that mentions the commit is asked. If nobody has
    the bytes, follow another branch that somebody has.
    """
    if state.open.committing != event.commit:
        return RoundStep(state, remark=f"commit {short(event.commit)} stalled, and is not waited for now: {event.why}")
    opened = replace(state.open, committing=None, stalled=event.commit)
    state, reason = replace(state, open=opened), f"commit waits: {event.why}"
    if state.switching is not None and state.switching.is_prepared:
        flipped = _flip(state, state.switching, now_s)
        return RoundStep(flipped.state, flipped.actions, flipped.reason or reason)
    return _without(state, event.commit, reason, now_s) if event.is_missing else RoundStep(state, (), reason)
