"""Members that lie: each runs the real node, and what it sends is changed on its way out and signed with its own key.

A liar draws a few kinds of lies at its start, from all that the messages allow, and tells each of them at about half of the occasions.
Honest peers are looked at with every step: what comes into their tree of commits must be so (facts.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds import peer_rounds
from averaging.rounds.exchange import contribution_sender, exchange, exchange_driver
from averaging.rounds.exchange.exchange import Exchange
from averaging.rounds.exchange.reduction import Reduction, SliceResult
from protocol.errors import PotluckError
from protocol.identity.envelope import open_envelope
from protocol.ids import CommitId, PeerId
from protocol.merkle import leaf_hash
from protocol.rounds import attempt, voting
from protocol.rounds import machine as core
from protocol.rounds.events import Event, MessageArrived, RoundTicked
from protocol.rounds.lineage.chain import link_after, open_leave
from protocol.rounds.lineage.lineage import TreeNode
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import decode_claim, encode_claim
from protocol.rounds.messages.messages import (
    Ack,
    Committed,
    DoubleVote,
    Heartbeat,
    Leave,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    ResultHeader,
    RoundMessage,
    Settle,
    SliceSpec,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot, CommitRecord
from protocol.rounds.messages.requests import ContributionHeader, ExchangeHello
from protocol.rounds.messages.wire import encode_message
from protocol.rounds.orders import Action, Send, SendHeartbeat
from protocol.rounds.state import RoundState, RoundStep
from tests.simulation import stalls
from tests.simulation.invariants import Violation
from tests.simulation.lies import (
    HUGE,
    LEADER_FLAWS,
    LONE_FLAWS,
    NO_FLAW,
    SHRINKS,
    UNCLAIMED,
    Gang,
    gang_of,
    lone_lineage,
    resigned,
)
from tests.simulation.stalls import NUM_STALLS, STALLS

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.swarm import World

RECORDS: Final = tuple(f"record {name}" for name in LEADER_FLAWS)
LONE: Final = tuple(f"lone {name}" for name in (*LONE_FLAWS, SHRINKS, UNCLAIMED, NO_FLAW))
PROPOSALS: Final = ("proposal low cap", "proposal all slices", "proposal left out", "proposal few")
VOTES: Final = (
    "acks what was not settled",
    "acks twice in a ballot",
    "acks all and hides it",
    "promises all",
    "promises hide the ack",
    "pre-votes yes",
    "promises asked at each tick",
    "the last attempt is asked",
    "accuses others",
    "goodbye and stays",
)
RESULTS: Final = (
    "result withheld",
    "result of other counts",
    "result leaves out",
    "result of other bytes",
    "result of nothing",
    "result without admission",
    "result wrong sum",
)
HEADERS: Final = ("header huge", "header of an old base", "header twice")
HEARTBEATS: Final = ("heartbeat false head", "heartbeat huge ready", "heartbeat huge upload", "heartbeat all silent")
KINDS: Final = (*RECORDS, *LONE, *PROPOSALS, *VOTES, *RESULTS, *HEADERS, *HEARTBEATS)

NUM_KINDS: Final = (2, 6)
"""Least and most kinds of one liar."""

SHARE: Final = 3
"""One part in so many of the members lie, rounded down, and at least one."""

OFTEN: Final = 0.5
LONE_EVERY_S: Final = 6.0
WITHHELD_S: Final = 30.0
BACK_AFTER_S: Final = 2.0
MANY_SUMS: Final = 20
"""False sums, also of attempts that came to nothing, after which their reducer must be known for them."""

MOST_LONE: Final = 6
"""Lineages that one liar signs alone."""


@dataclass
class Liar:
    """One member that lies.

    Attributes:
        kinds: what it does.
        chooser, stall_chooser: of its lies, and of those that would stop all rounds (stalls.py).
        fence, consents: the ballot that it asked for and means to do nothing with, and the signed answers so far.
    """

    node: Node
    gang: Gang
    kinds: frozenset[str]
    chooser: random.Random
    next_lone_s: float = 0.0
    num_lone: int = 0
    stall_chooser: random.Random = field(default_factory=random.Random)
    num_broken: int = 0
    num_false_sums: int = 0
    fence: Ballot | None = None
    consents: dict[PeerId, bytes] = field(default_factory=dict)

    @property
    def are_half(self) -> bool:
        """Whether liars are half of the next voters where some honest peer stands. They may decide then, so nothing is promised, and
        nobody lies.
        """
        world = self.node.world
        if len(world.nodes) <= 2:  # their liars do not lie in votes
            return False
        rosters = {service.state.link.roster for node in world.honest_nodes() for service in node.services.values()}
        return any(2 * sum(peer in world.liars for peer in roster) >= len(roster) for roster in rosters)

    def does(self, kind: str) -> bool:
        """Whether it tells this lie now."""
        chooser = self.stall_chooser if kind in STALLS else self.chooser
        if kind not in self.kinds or chooser.random() >= OFTEN or self.are_half:
            return False
        self.node.world.happened("lie", f"{self.node.name} {kind}")
        self.node.world.lies[kind] += 1
        return True

    def one_of(self, names: Sequence[str]) -> str:
        """One of its kinds among these, at about half of the occasions; "" for none."""
        mine = [name for name in names if name in self.kinds]
        name = self.chooser.choice(mine) if mine else ""
        return name if name and self.does(name) else ""

    # --- a step of its machine ----------------------------------------------------------------------------------------------

    def changed(self, before: RoundState, event: Event, taken: RoundStep, now_s: float) -> RoundStep:
        """Its orders as they are changed, and others besides."""
        orders: list[Action] = []
        for order in taken.actions:
            orders += [stalls.instead_of(self, taken.state, each) for each in self._instead_of(taken.state, order)]
        if isinstance(event, MessageArrived) and event.sender != self.gang.member.peer:
            orders += self._answers(before, event.sender, event.message)
            orders += stalls.answers(self, before, event.sender, event.message, event.raw)
        if isinstance(event, RoundTicked):
            orders += self._unasked(taken.state, now_s)
        return replace(taken, actions=tuple(orders))

    def _instead_of(self, state: RoundState, order: Action) -> list[Action]:
        if isinstance(order, SendHeartbeat):
            return [replace(order, heartbeat=self._heartbeat(order.heartbeat))]
        if not isinstance(order, Send):
            return [order]
        message = order.message
        if isinstance(message, Promise) and message.acked is not None and self.does("promises hide the ack"):
            return [replace(order, message=replace(message, acked=None))]
        if isinstance(message, Ack):
            return [order, *self._more_acks(order, message)]
        if isinstance(message, Proposal) and message.ballot.peer == self.gang.member.peer:
            return [replace(order, message=self._proposal(message))]
        return [order]

    def _more_acks(self, order: Send, ack: Ack) -> list[Action]:
        found: list[Action] = []
        if self.does("acks twice in a ballot"):
            found.append(replace(order, message=replace(ack, commit=CommitId(self.chooser.randbytes(32)))))
        if self.does("acks what was not settled"):
            ballot = Ballot(ack.ballot.attempt + 1, ack.ballot.peer)
            found.append(replace(order, message=replace(ack, ballot=ballot, before=None)))
        return found

    def _proposal(self, proposal: Proposal) -> Proposal:
        me = self.gang.member.peer
        if self.does("proposal low cap"):
            return replace(proposal, weight_cap_tokens=1)
        if self.does("proposal all slices"):
            return replace(proposal, slices=(SliceSpec(0, proposal.num_chunks, me),))
        if self.does("proposal left out") and len(proposal.members) > 2:
            gone = self.chooser.choice([m for m in proposal.members if m.peer != me])
            return replace(proposal, members=tuple(m for m in proposal.members if m != gone))
        if self.does("proposal few"):
            others = [m for m in proposal.members if m.peer != me]
            few = self.chooser.sample(others, self.chooser.randint(0, len(others)))
            members = tuple(m for m in proposal.members if m.peer == me or m in few)
            return replace(proposal, members=members, slices=(SliceSpec(0, proposal.num_chunks, me),))
        return proposal

    def _heartbeat(self, beat: Heartbeat) -> Heartbeat:
        if self.does("heartbeat false head"):
            there, lead = CommitId(self.chooser.randbytes(32)), self.chooser.randint(0, 9)
            heads = (replace(head, head=there, index=head.index + lead) for head in beat.heads)
            beat = replace(beat, heads=tuple(heads))
        if self.does("heartbeat huge ready"):
            beat = replace(beat, heads=tuple(replace(head, tokens_ready=HUGE) for head in beat.heads))
        if self.does("heartbeat huge upload"):
            beat = replace(beat, upload_bytes_per_s=1 << 40)
        if self.does("heartbeat all silent"):
            beat = replace(beat, silent=tuple(node.peer for node in self.node.world.nodes))
        return beat

    def _answers(self, state: RoundState, sender: PeerId, message: RoundMessage) -> list[Action]:
        """Its answers at once, whatever its machine thinks of the message."""
        base = state.link.commit
        if isinstance(message, Settle) and message.base == base and self.does("acks all and hides it"):
            try:
                link = link_after(state.link, message.record)
            except (PotluckError, ValueError, IndexError, KeyError):
                return []
            ack = Ack(message.unit, base, message.ballot, link.commit, link.is_lone, version=1)
            return [Send((message.ballot.peer,), ack, "a lie")]
        if isinstance(message, PreVoteRequest) and self.does("pre-votes yes"):
            return [Send((sender,), PreVote(message.unit, message.base, message.ballot, ""), "a lie")]
        if isinstance(message, PromiseRequest) and self.does("promises all"):
            return [Send((sender,), Promise(message.unit, message.base, message.ballot, None), "a lie")]
        return []

    def _unasked(self, state: RoundState, now_s: float) -> list[Action]:
        """Its own words at a tick."""
        opened, unit, base, me = state.open, state.config.unit, state.link.commit, self.gang.member.peer
        others = tuple(node.peer for node in self.node.world.live_nodes() if node.peer != me)
        floor = max(opened.highest_attempt, opened.promised.attempt if opened.promised is not None else 0)
        said: list[RoundMessage] = []
        if self.does("promises asked at each tick"):
            said.append(PromiseRequest(unit, base, Ballot(min(floor + 1, LAST_ATTEMPT), me)))
        if self.does("the last attempt is asked"):
            said.append(PreVoteRequest(unit, base, Ballot(LAST_ATTEMPT - 1, me), 1e9))
        if others and self.does("accuses others"):
            said.append(self._accusation(unit, base))
        if self.does("goodbye and stays"):
            said.append(Leave(state.config.me, unit, base, opened.promised, version=voting.LEAVE_VERSION))
        said += self._lone(state, now_s)
        said += stalls.unasked(self, state)
        return [Send(others, message, "a lie") for message in said] if others else []

    def _accusation(self, unit: Any, base: CommitId) -> DoubleVote:
        """Two acks of a twin, or of nobody."""
        ballot = Ballot(1, self.gang.member.peer)
        one, other = (
            self.gang.twins[0].sealed(
                encode_message(Ack(unit, base, ballot, CommitId(self.chooser.randbytes(32)), version=1))
            )
            for _ in range(2)
        )
        return DoubleVote(unit, one, self.chooser.choice((other, b"junk")))

    def _lone(self, state: RoundState, now_s: float) -> list[RoundMessage]:
        if now_s < self.next_lone_s or self.num_lone >= MOST_LONE:
            return []
        kind = self.one_of(LONE)
        self.next_lone_s = now_s + LONE_EVERY_S
        if not kind:
            return []
        self.num_lone += 1
        start = state.tree.nodes[state.tree.root].link
        parent = self.chooser.choice((state.link, state.link, start))
        made = lone_lineage(self.gang, parent, state.config, kind.removeprefix("lone "))
        return [Committed(state.config.unit, certificate) for certificate in made]


# --- what is changed in production code -----------------------------------------------------------------------------------------


def draw_liars(world: World) -> None:
    """Some of the founders lie, never so many that they are half of a roster that lost one more."""
    chooser = random.Random(f"liars {world.seed}")
    for node in chooser.sample(world.nodes, max(1, len(world.nodes) // SHARE)):
        own = random.Random(f"liar {world.seed}/{node.number}")
        drawn = (
            KINDS if len(world.nodes) > 2 else (*HEADERS, *HEARTBEATS)
        )  # one of two that lies in votes holds all votes
        kinds = frozenset(own.sample(drawn, own.randint(*NUM_KINDS)))
        later = random.Random(f"stalls {world.seed}/{node.number}")
        if len(world.nodes) > 2 and later.random() < OFTEN:
            kinds |= frozenset(later.sample(STALLS, later.randint(*NUM_STALLS)))
        kinds = frozenset(world.profile.lies) or kinds
        world.liars[node.peer] = Liar(
            node, gang_of(world, node.peer, node.signer, own), kinds, own, stall_chooser=later
        )
        world.trace.add(f"{node.name} lies: {sorted(kinds)}")
    for observed in world.observed_of.values():
        observed.liars = world.liars.keys()


@contextmanager
def lying(world: World) -> Iterator[None]:
    """As long as this lasts the liars lie, and every honest tree is looked at."""
    if not world.liars:
        yield
        return
    with ExitStack() as stack:
        for target, name, made in _changes(world):
            real = getattr(target, name)
            setattr(target, name, made(real))
            stack.callback(setattr, target, name, real)
        yield


def _changes(world: World) -> list[tuple[Any, str, Callable[[Any], Any]]]:
    liars = world.liars

    def stepping(real: Any) -> Any:
        def step(before: RoundState, event: Event, now_s: float) -> RoundStep:
            taken: RoundStep = real(before, event, now_s)
            liar = liars.get(before.config.me.peer)
            if liar is not None:
                return liar.changed(before, event, taken, now_s)
            if taken.state.tree is not before.tree:
                _look(world, before, taken.state)
            return taken

        return step

    def making(real: Any) -> Any:
        def make(parent: Any, proposal: Any, ballot: Ballot, *rest: Any) -> Any:
            record = real(parent, proposal, ballot, *rest)
            liar = liars.get(ballot.peer)
            kind = liar.one_of(RECORDS) if liar is not None else ""
            if liar is None or not kind:
                return record
            try:
                flawed = LEADER_FLAWS[kind.removeprefix("record ")](record, parent, liar.gang)
                return resigned(flawed, liar.gang)
            except (PotluckError, ValueError, IndexError, KeyError):  # some flaws do not fit every record
                return record

        return make

    def judging(real: Any) -> Any:
        return lambda parent, record, *rest: "" if record.ballot.peer in liars else real(parent, record, *rest)

    def voting_(real: Any) -> Any:
        return lambda state, *rest: "" if state.config.me.peer in liars else real(state, *rest)

    return [
        (core, "step", stepping),
        (attempt, "make_record", making),
        (attempt, "record_problem", judging),
        (voting, "_broken_rule", voting_),
        (peer_rounds, "encode_message", lambda real: stalls.padding(world, real)),
        (exchange_driver, "encode_claim", lambda real: lambda header: real(_header(world, header))),
        (contribution_sender, "hello_of", lambda real: _hello(world, real)),
        (exchange, "_with_sum", lambda real: _summed_by(world, real)),
        (Exchange, "_send_result", lambda real: _sent_by(world, real)),
        (Reduction, "_summed", lambda real: _zeroed(world, real)),
    ]


def _look(world: World, before: RoundState, after: RoundState) -> None:
    """The commits that an honest peer has learned of must be so."""
    for commit, node in after.tree.nodes.items():
        record = node.link.record
        if commit in before.tree.nodes or record is None or commit in world.looked_at:
            continue
        world.looked_at.add(commit)
        parent = after.tree.nodes[record.parent].link
        problem = world.facts.problem(parent, record, _left(world, node))
        if problem:
            raise Violation(f"an honest peer took in commit {record.index} by {record.ballot.peer}: {problem}")
        _look_at_voters(world, after, record)


def _look_at_voters(world: World, after: RoundState, record: CommitRecord) -> None:
    """A liar's commit with a quorum may leave out one honest founder that never failed: it may be frozen, or cut off. Not two."""
    commit, tree = record.parent, after.tree
    while commit != tree.root and not record.lone:
        before = tree.nodes[commit].link.record
        if before is None or before.lone:
            return
        commit = before.parent
    if record.lone or record.ballot.peer not in world.liars or len(record.roster) >= after.config.max_members:
        return
    founders = [node for node in world.nodes[: len(tree.nodes[tree.root].link.roster)] if node.peer not in world.liars]
    missing = [node.name for node in founders if node.is_up and node.session == 1 and node.peer not in record.roster]
    if len(missing) > 1:
        raise Violation(f"an honest peer took in commit {record.index} by {record.ballot.peer}: {missing} vote no more")


def _left(world: World, node: TreeNode) -> set[PeerId]:
    leaves = node.certificate.leaves if node.certificate is not None else ()
    return {open_leave(raw, verifier=world.verifier, run_id=world.run_id)[0] for raw in leaves}


def _header(world: World, header: ContributionHeader) -> ContributionHeader:
    liar = world.liars.get(header.member.peer)
    if liar is None:
        return header
    if liar.does("header huge"):
        return replace(header, tokens=HUGE)
    if liar.does("header of an old base"):
        return replace(header, base=world.observed.start)
    return header


def _hello(world: World, real: Any) -> Any:
    def hello_of(proposal: Proposal, part: SliceSpec, mine: Any, **named: Any) -> ExchangeHello:
        hello: ExchangeHello = real(proposal, part, mine, **named)
        if mine is None or not hello.contribution:
            return hello
        envelope = open_envelope(
            mine.header, verifier=world.verifier, domain=ROUND_DOMAIN, run_id=world.run_id, now_unix_ms=None
        )
        liar = world.liars.get(envelope.sender)
        if liar is None or not liar.does("header twice"):
            return hello
        claim = decode_claim(envelope.payload)
        other = replace(claim, tokens=claim.tokens + 1 + part.first_chunk)
        return replace(hello, contribution=liar.gang.member.sealed(encode_claim(other)))

    return hello_of


def _summed_by(world: World, real: Any) -> Any:
    async def with_sum(header: ResultHeader, proposal: Proposal, seal: Any) -> ResultHeader:
        liar = world.liars.get(header.reducer)
        if liar is not None and liar.does("result leaves out"):
            header = replace(header, included=header.included[1:] or header.included)
        signed: ResultHeader = await real(header, proposal, seal)
        if liar is None:
            return signed
        if liar.does("result of other counts"):
            false = (
                entry if entry.peer == header.reducer else replace(entry, tokens=1, root=liar.gang.any_root())
                for entry in signed.included
            )
            return replace(signed, included=tuple(false))
        if liar.does("result without admission"):
            return replace(signed, included=tuple(replace(entry, credential=b"") for entry in signed.included))
        if liar.does("result of nothing"):
            return replace(signed, included=(), weight_sum=0, sum_seal=b"")
        if liar.does("result of other bytes"):
            return replace(signed, result_hash=liar.gang.any_root())
        return signed

    return with_sum


def _sent_by(world: World, real: Any) -> Any:
    async def send(self: Exchange, result: SliceResult, place: int, sender: PeerId, stream: Stream) -> None:
        liar = world.liars.get(self._tools.me.peer)
        if liar is not None and liar.does("result withheld"):
            await trio.sleep(WITHHELD_S)
            return
        await real(self, result, place, sender, stream)

    return send


def _zeroed(world: World, real: Any) -> Any:
    def summed(self: Reduction, chunks: Sequence[int], counted: Any, written: Any) -> Any:
        sums = real(self, chunks, counted, written)
        liar = world.liars.get(self.part.reducer)
        if liar is None or not liar.does("result wrong sum"):
            return sums
        liar.num_false_sums += 1
        begin = self._place(self.part.first_chunk, self.part.stop_chunk).start
        for chunk in chunks:
            place = self._place(chunk, chunk + 1)
            written.room[place.start - begin : place.stop - begin] = bytes(place.stop - place.start)
        return {chunk: replace(each, leaf=leaf_hash(each.encoded)) for chunk, each in sums.items()}

    return summed


def look_at_convictions(world: World) -> None:
    """In a world whose members look at all they may, whoever sums falsely again and again is found."""
    for peer, liar in world.liars.items():
        if world.profile.sums.audit_share and liar.num_false_sums >= MANY_SUMS and peer not in world.convicted:
            raise Violation(f"{liar.node.name} summed falsely {liar.num_false_sums} times and was never convicted")


async def keep_up(world: World) -> None:
    """A liar whose node fails over its own lies begins again."""
    while True:
        await world.swarm.timers.sleep(BACK_AFTER_S)
        for liar in world.liars.values():
            if not liar.node.is_up:
                world.boot(liar.node)
