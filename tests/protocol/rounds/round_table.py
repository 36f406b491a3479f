"""Round machines around one table: every order is performed and answered, messages wait in one queue, and tests decide what is
lost, cut, frozen or killed. In every test the table itself checks that one base never gets two certificates of a quorum.

Rules: R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from protocol.identity.envelope import NEVER_MS, open_envelope, seal, seal_of
from protocol.identity.standing import PeerStanding
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName, short
from protocol.rounds import machine as core
from protocol.rounds.events import (
    AckLogged,
    Applied,
    BytesHeld,
    CommitsFetched,
    CommitStalled,
    ContributionFailed,
    ContributionReady,
    Event,
    LeaveLogged,
    MessageArrived,
    PeerLost,
    PeersAnswered,
    PeersListed,
    Progressed,
    PromiseLogged,
    RoundTicked,
    Switched,
    SwitchFailed,
    SwitchPrepared,
)
from protocol.rounds.lineage.chain import open_leave
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.lineage.lineage import CommitTree, SpineView, TreeNode, tree_of
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, sum_in
from protocol.rounds.lineage.rule_numbers import bounds_strangers
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import (
    AckedRecord,
    Certificate,
    Committed,
    Heartbeat,
    Member,
    PreVote,
    Promise,
    PromiseRequest,
    Proposal,
    ResultHeader,
    ResultReady,
    RoundMessage,
    SliceSpec,
)
from protocol.rounds.messages.record import (
    LAST_ATTEMPT,
    Ballot,
    CommitRecord,
    Included,
    Omission,
    OmissionCode,
    OuterStep,
)
from protocol.rounds.messages.requests import ContributionHeader
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import decode_body, decode_record, encode_body, encode_message
from protocol.rounds.orders import (
    Action,
    AnswerWithCertificate,
    BeginExchange,
    CatchUp,
    Commit,
    GatherBytes,
    LogAck,
    LogLeave,
    LogPromise,
    PrepareContribution,
    PrepareSwitch,
    Send,
    SendHeartbeat,
    Switch,
)
from protocol.rounds.schedule.proposal import consumed_tokens
from protocol.rounds.schedule.target import RoundTarget
from protocol.rounds.state import OpenRound, RoundConfig, RoundState, RoundStep, SignedLeave
from protocol.rounds.telling import own_heartbeat
from tests.protocol.rounds.reasons import says_why
from tests.simulation.signing import HashSigner, HashVerifier, admission_of

UNIT = UnitName("fragment-0")
SPINE = UnitName("trunk")
"""Held by nobody at the table, where it is not UNIT itself."""

RUN_ID = RunId(sha256(b"table").digest())
NUM_CHUNKS = 12
TARGET_TOKENS = 300
OUTER = OuterStep("mean", 1.0, 0.0)
STALL_AFTER_S: Final = 3.0
"""So long a commit waits here for bytes that nobody has."""


@dataclass
class Disk:
    """State that outlives a process: the lineage, the votes on each base, and results."""

    genesis: ChainLink
    incarnation: int = 1
    chain: list[tuple[ChainLink, Certificate]] = field(default_factory=list)
    votes: dict[CommitId, OpenRound] = field(default_factory=dict)
    results: set[Root] = field(default_factory=set)

    @property
    def head(self) -> ChainLink:
        return self.chain[-1][0] if self.chain else self.genesis

    @property
    def tree(self) -> CommitTree:
        tree = tree_of(self.genesis)
        for link, certificate in self.chain:
            tree = tree.add(link, certificate)
        return tree

    def promise(self, base: CommitId, ballot: Ballot) -> None:
        votes = self.votes.get(base, OpenRound())
        highest = ballot if votes.promised is None else max(votes.promised, ballot)
        self.votes[base] = replace(votes, promised=highest)

    def ack(self, base: CommitId, ballot: Ballot, record: bytes, is_lone: bool, leaves: Sequence[bytes] = ()) -> None:
        self.promise(base, ballot)
        entry = AckedRecord(ballot, record)
        opened = [(raw, *open_leave(raw, verifier=HashVerifier(), run_id=RUN_ID)) for raw in leaves]
        known = MappingProxyType({peer: SignedLeave(leave, raw) for raw, peer, leave in opened})
        votes = replace(self.votes[base], leaves=known)
        self.votes[base] = replace(votes, acked_lone=entry) if is_lone else replace(votes, acked=entry)

    def open_round(self) -> OpenRound:
        """The votes on the head, as a process that starts now reads them."""
        votes = self.votes.get(self.head.commit, OpenRound())
        if votes.promised is not None and votes.promised.attempt == LAST_ATTEMPT:
            return replace(votes, promised=None, has_left=True)
        return replace(votes, highest_attempt=votes.promised.attempt if votes.promised is not None else 0)

    def after(self, known: tuple[CommitId, ...]) -> tuple[Certificate, ...]:
        """The certificates after the newest of these commits that is on our lineage."""
        links = [self.genesis, *(link for link, _ in self.chain)]
        for place in range(len(links) - 1, -1, -1):
            if links[place].commit in known:
                return tuple(certificate for _, certificate in self.chain[place:])
        return ()

    def switch(self, fork: CommitId, path: tuple[TreeNode, ...]) -> None:
        links = [self.genesis.commit, *(link.commit for link, _ in self.chain)]
        del self.chain[links.index(fork) :]
        self.chain.extend((node.link, node.certificate) for node in path if node.certificate is not None)


@dataclass(frozen=True)
class Parcel:
    """A message on its way."""

    sender: PeerId
    to: PeerId
    message: RoundMessage
    raw: bytes


@dataclass(frozen=True)
class Answer:
    """The outcome of an order, on its way back to the process that gave it."""

    to: PeerId
    session: int
    event: Event


class Seat:
    """One peer at the table."""

    def __init__(self, table: Table, signer: HashSigner, genesis: ChainLink) -> None:
        self.table = table
        self.signer = signer
        self.disk = Disk(genesis)
        self.member = Member(signer.peer_id, 1, 1)
        self.is_up = True
        self.frozen_since_s: float | None = None
        self.mailbox: list[Parcel] = []
        self.tokens = 100
        self.tokens_a_tick = 0
        """Tokens trained at each tick; then a commit takes off the counted ones. With 0 the ready tokens never change."""

        self.upload_bytes_per_s = 0
        self.late_upload_s = 0.0
        self.has_trainer = True
        self.orders: list[Action] = []
        self.reasons: list[str] = []
        self.steps: list[tuple[Event, RoundStep]] = []
        self.certificates: list[Certificate] = []
        self.waiting: list[tuple[float, GatherBytes | Commit]] = []
        self.reduced: set[tuple[CommitId, Ballot, int, int]] = set()
        self.state: RoundState

    @property
    def peer(self) -> PeerId:
        return self.signer.peer_id

    @property
    def head(self) -> ChainLink:
        return self.state.link

    @property
    def is_awake(self) -> bool:
        return self.is_up and self.frozen_since_s is None

    def start(self) -> None:
        """A process begins on the disk as it is."""
        head, config = self.disk.head, self.table.config(self.member)
        self.state = core.start(
            config,
            head,
            self.table.now_s,
            state_root=state_root(head.commit),
            open_round=self.disk.open_round(),
            tree=self.disk.tree,
            spine=self.table.spine,
        )
        self.feed(PeersListed(tuple(self.table.seats)))

    def reconfigure(self, **changes: object) -> None:
        """Other numbers for this peer alone."""
        self.state = replace(self.state, config=replace(self.state.config, **changes))  # type: ignore[arg-type]

    def sealed(self, payload: bytes) -> bytes:
        return seal(self.signer, ROUND_DOMAIN, RUN_ID, 0, NEVER_MS, payload)

    def feed(self, event: Event) -> tuple[Action, ...]:
        """One event; its orders are performed in their order, and answered when the table talks."""
        step = core.step(self.state, event, self.table.now_s)
        self.state = step.state
        self.steps.append((event, step))
        self.reasons.extend(text for text in (step.reason, step.remark) if text)
        if not says_why(event, step):
            raise AssertionError(f"no reason for what {type(event).__name__} led to: {step.actions}")
        self.orders.extend(step.actions)
        for action in step.actions:
            self.table.perform(self, action)
        return step.actions

    def progressed(self) -> Progressed:
        """How its training goes, and what everybody knows of standings."""
        upload, late_s = self.upload_bytes_per_s, self.late_upload_s
        standings, hold = self.table.standings, self.table.holds.get(self.peer)
        return Progressed(self.tokens, True, upload, late_upload_s=late_s, standings=standings, hold=hold)

    def hear(self, sender: Seat, message: RoundMessage) -> tuple[Action, ...]:
        """A message of another seat, signed by it, arrives now."""
        return self.feed(MessageArrived(sender.peer, message, sender.sealed(encode_message(message))))

    def sent(self, kind: type) -> list[RoundMessage]:
        """The messages of one class that this seat has sent."""
        messages = (action.message for action in self.orders if isinstance(action, Send))
        return [message for message in messages if isinstance(message, kind)]

    def ordered(self, kind: type) -> list[Action]:
        """The orders of one class that this seat has given."""
        return [action for action in self.orders if isinstance(action, kind)]


class Table:
    """Machines, a queue of messages between them, and a clock that tests move. `numbers` go into everybody's RoundConfig. With `spine`
    the rounds are those of a unit beside it (R23), and everybody follows it so.

    Attributes:
        drops: says which messages are lost on their way.
        cuts: (from, to) links that carry nothing.
        gathers, prepares: whether anybody's bytes arrive, for records and for other lineages.
        no_uploads: peers whose link is too slow to give bytes to anybody.
    """

    def __init__(
        self,
        num_peers: int = 3,
        *,
        num_founders: int | None = None,
        spine: SpineView | None = None,
        rules: int = 0,
        **numbers: object,
    ) -> None:
        self.now_s = 100.0
        self.spine = spine
        self.numbers = numbers if spine is None else {"spine": SPINE, **numbers}
        self.queue: deque[Parcel | Answer] = deque()
        self.drops: Callable[[PeerId, PeerId, RoundMessage], bool] = lambda sender, to, message: False
        self.cuts: set[tuple[PeerId, PeerId]] = set()
        self.gathers = True
        self.prepares = True
        self.no_uploads: set[PeerId] = set()
        self.withheld: set[PeerId] = set()
        """Reducers that announce results whose bytes nobody gets."""
        self.standings: dict[PeerId, PeerStanding] = {}
        """Of the peers that are no keepers, as their credentials and everybody's knowledge have it."""

        self.holds: dict[PeerId, Hold] = {}
        """The host's hold, at those who know of it."""

        self.certified: dict[CommitId, bytes] = {}
        signers = sorted((HashSigner(b"seat %d" % i) for i in range(num_peers)), key=lambda s: s.peer_id)
        roster = tuple(signer.peer_id for signer in signers[:num_founders])
        unit = StartUnit(UNIT, bytes(32), Root(bytes(32)))
        start = StartRecord(RUN_ID, (unit,), roster, TARGET_TOKENS, 0, (1,) * len(roster), rules)
        self.start_record = encode_body(start)
        self.genesis = genesis_link(self.start_record, UNIT)
        self.seats = {signer.peer_id: Seat(self, signer, self.genesis) for signer in signers}
        for seat in self.seats.values():
            seat.start()

    def config(self, me: Member) -> RoundConfig:
        config = RoundConfig(
            run_id=RUN_ID,
            unit=UNIT,
            me=me,
            verifier=HashVerifier(),
            num_chunks=NUM_CHUNKS,
            codec="fp32",
            outer=OUTER,
            target=RoundTarget(TARGET_TOKENS),
            min_members=1,
            max_members=8,
            longest_interval_s=60.0,
        )
        return replace(config, **self.numbers)  # type: ignore[arg-type]

    # --- who is there ---

    def live(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.is_up]

    def others(self, *seats: Seat) -> list[Seat]:
        return [seat for seat in self.live() if seat not in seats]

    def opener(self) -> Seat:
        """The owner of attempt 0 on the newest head."""
        link = max((seat.head for seat in self.live()), key=lambda link: link.index)
        return self.seats[first_opener(RUN_ID, link.unit, link.index, link.roster)]

    def kill(self, seat: Seat) -> None:
        seat.is_up = False

    def restart(self, seat: Seat, *, loses_disk: bool = False) -> None:
        """Another process of the same peer, on its disk or on a new one."""
        if loses_disk:
            seat.disk = Disk(self.genesis, seat.disk.incarnation + 1)
        seat.member = Member(seat.peer, seat.disk.incarnation, seat.member.session + 1)
        seat.mailbox, seat.waiting, seat.frozen_since_s, seat.is_up = [], [], None, True
        seat.start()

    def freeze(self, seat: Seat) -> None:
        """It stops between two steps; what is sent to it waits."""
        seat.frozen_since_s = self.now_s

    def thaw(self, seat: Seat) -> None:
        """It goes on: what is waiting is handled first, then it learns how late it is."""
        lag_s = self.now_s - (seat.frozen_since_s or self.now_s)
        seat.frozen_since_s = None
        self.queue.extend(seat.mailbox)
        seat.mailbox = []
        self.talk()
        seat.feed(RoundTicked(lag_s))
        self.talk()

    def split(self, *side: Seat) -> None:
        """Nothing passes between these and the others."""
        here = {seat.peer for seat in side}
        self.cuts |= {(a, b) for a in self.seats for b in self.seats if (a in here) != (b in here)}

    def heal(self) -> None:
        self.cuts.clear()

    # --- time and talk ---

    def tick(self, seconds: float = 0.5) -> None:
        """Time passes; everybody awake trains, ticks, and talks until nothing is left to say."""
        self.now_s += seconds
        for seat in self.live():
            if seat.is_awake:
                self.retry(seat)
                seat.tokens += seat.tokens_a_tick
                seat.feed(seat.progressed())
                seat.feed(RoundTicked())
        self.talk()

    def wait(self, seconds: float) -> None:
        """Time passes in which everybody is awake and nothing happens."""
        self.now_s += seconds
        for seat in self.live():
            pulse = replace(seat.state.pulse, ticked_at_s=self.now_s, tick_due_s=self.now_s)
            seat.state = replace(seat.state, pulse=pulse)

    def talk(self, limit: int = 5000) -> None:
        """Deliver everything that is waiting."""
        for _ in range(limit):
            if not self.queue:
                return
            self.deliver(self.queue.popleft())
        raise AssertionError("the table does not stop talking")

    def deliver(self, item: Parcel | Answer) -> None:
        seat = self.seats[item.to]
        if isinstance(item, Answer):
            if seat.is_up and seat.member.session == item.session:
                if isinstance(item.event, Applied) and seat.tokens_a_tick:
                    self._consume(seat, item.event.link)
                seat.feed(item.event)
            return
        sender = self.seats[item.sender]
        if (item.sender, item.to) in self.cuts or self.drops(item.sender, item.to, item.message):
            return
        hears_back = sender.is_awake and (item.to, item.sender) not in self.cuts and sender is not seat
        if not seat.is_up:
            if hears_back:
                sender.feed(PeerLost(item.to))
        elif seat.frozen_since_s is not None:
            seat.mailbox.append(item)
        else:
            self._take(seat, item)
            if hears_back:
                sender.feed(PeersAnswered(((item.to, self.now_s),)))

    def _take(self, seat: Seat, item: Parcel) -> None:
        """A result is bytes to everybody, and word of them to the attempt's leader and its reducer alone (`ExchangeDriver`)."""
        message = item.message
        if not isinstance(message, ResultReady):
            seat.feed(MessageArrived(item.sender, message, item.raw))
            return
        brings_bytes = item.sender not in self.withheld
        if brings_bytes:
            seat.disk.results.add(_hash_in(message))
        if seat.peer in (item.sender, message.ballot.peer):
            seat.feed(MessageArrived(item.sender, message, item.raw))
        # what came on our own stream is on our disk
        if brings_bytes and item.sender != seat.peer == message.ballot.peer:
            seat.feed(MessageArrived(seat.peer, message, item.raw))

    def hold_results(self, seat: Seat) -> list[tuple[PeerId, RoundMessage]]:
        """From now on its results reach nobody; what it says goes into this list."""
        held: list[tuple[PeerId, RoundMessage]] = []

        def drops(sender: PeerId, to: PeerId, message: RoundMessage) -> bool:
            if isinstance(message, ResultReady) and sender == seat.peer:
                held.append((to, message))
                return True
            return False

        self.drops = drops
        return held

    def let_go(self, seat: Seat, held: list[tuple[PeerId, RoundMessage]]) -> None:
        """Held messages arrive now, and later ones at once."""
        self.drops = lambda sender, to, message: False
        for to, message in held:
            self._send(seat, (to,), message)

    def run_until(self, is_true: Callable[[], bool], limit_s: float = 200.0) -> None:
        """Tick until the condition holds."""
        end_s = self.now_s + limit_s
        while not is_true():
            if self.now_s > end_s:
                raise AssertionError({s.peer: (s.head.index, s.reasons[-4:]) for s in self.live()})
            self.tick()

    def run_for(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick()

    def all_at(self, index: int) -> bool:
        """Whether everybody alive has applied so many commits, or more."""
        return all(seat.head.index >= index for seat in self.live())

    # --- performing orders ---

    def perform(self, seat: Seat, action: Action) -> None:
        match action:
            case Send():
                self._send(seat, action.to, action.message)
            case SendHeartbeat():
                self._send(seat, action.to, action.heartbeat)
            case PrepareContribution():
                taken = ContributionReady(action.base, contribution_root(seat.member, action.base), seat.tokens)
                self._answer(seat, taken if seat.has_trainer and seat.tokens else ContributionFailed(action.base))
            case BeginExchange():
                self._reduce(seat, action.proposal)
            case GatherBytes() | Commit():
                seat.waiting.append((self.now_s, action))
                self.retry(seat)
            case LogAck() | LogPromise() | LogLeave():
                self._write_vote(seat, action)
            case AnswerWithCertificate():
                for certificate in seat.disk.after((action.base,))[:1]:
                    self._send(seat, (action.to,), Committed(UNIT, certificate))
            case CatchUp():
                if self._reaches(seat, action.source):
                    found = self.seats[action.source].disk.after(action.known)
                    self._answer(seat, CommitsFetched(action.source, found))
            case PrepareSwitch() | Switch():
                self._switch(seat, action)

    def _answer(self, seat: Seat, event: Event) -> None:
        self.queue.append(Answer(seat.peer, seat.member.session, event))

    def _send(self, seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if isinstance(message, Committed):
            self._note(message.certificate)
        raw = seat.sealed(encode_message(message))
        self.queue.extend(Parcel(seat.peer, peer, message, raw) for peer in to)

    def _note(self, certificate: Certificate) -> None:
        record = decode_record(certificate.record)
        if (
            not record.lone
            and not record.rewind
            and self.certified.setdefault(record.parent, certificate.record) != certificate.record
        ):
            raise AssertionError(f"two records have a quorum on base {record.parent.hex()[:8]}")

    def _write_vote(self, seat: Seat, action: LogAck | LogPromise | LogLeave) -> None:
        match action:
            case LogAck():
                seat.disk.ack(action.base, action.ballot, action.record, action.lone, action.leaves)
                self._answer(seat, AckLogged(action.base, action.ballot, action.commit))
            case LogPromise():
                seat.disk.promise(action.base, action.ballot)
                self._answer(seat, PromiseLogged(action.base, action.ballot))
            case LogLeave():
                seat.disk.promise(action.leave.base, Ballot(LAST_ATTEMPT, seat.peer))
                self._answer(seat, LeaveLogged(action.leave))

    def _consume(self, seat: Seat, link: ChainLink) -> None:
        """As the service: how training goes is told before the commit that counted some of it."""
        seat.tokens -= consumed_tokens(link.record, seat.peer) if link.record is not None else 0
        seat.feed(seat.progressed())

    # --- bytes ---

    def _reaches(self, seat: Seat, other: PeerId) -> bool:
        cut = (seat.peer, other) in self.cuts or (other, seat.peer) in self.cuts
        return self.seats[other].is_awake and not cut

    def _gather(self, seat: Seat, record: CommitRecord) -> bool:
        """Whether all results that the record names are on the seat's disk, or within its reach."""
        wanted = {part.result_hash for part in record.slices}
        for other in self.seats.values():
            if self._reaches(seat, other.peer) and other.peer not in self.no_uploads:
                seat.disk.results |= wanted & other.disk.results
        return wanted <= seat.disk.results

    def retry(self, seat: Seat) -> None:
        waiting, seat.waiting = seat.waiting, []
        for since_s, order in waiting:
            record = order.settle.record if isinstance(order, GatherBytes) else order.certificate.record
            if self.gathers and self._gather(seat, decode_record(record)):
                self._gathered(seat, order)
            elif isinstance(order, Commit) and self.now_s - since_s >= STALL_AFTER_S:
                self._answer(seat, CommitStalled(order.link.commit, "its bytes are with nobody who answers", True))
            else:
                seat.waiting.append((since_s, order))

    def _gathered(self, seat: Seat, order: GatherBytes | Commit) -> None:
        if isinstance(order, GatherBytes):
            self._answer(seat, BytesHeld(order.settle))
        elif order.link.parent == seat.disk.head.commit:
            self._note(order.certificate)
            seat.certificates.append(order.certificate)
            seat.disk.chain.append((order.link, order.certificate))
            self._answer(
                seat, Applied(order.link, order.certificate, state_root(order.link.commit), seat.disk.open_round())
            )

    def _switch(self, seat: Seat, action: PrepareSwitch | Switch) -> None:
        target = action.path[-1].link
        if isinstance(action, Switch):
            seat.disk.switch(action.fork, action.path)
            seat.certificates.extend(node.certificate for node in action.path if node.certificate is not None)
            self._answer(seat, Switched(target, state_root(target.commit), seat.disk.open_round()))
            return
        if not self.prepares:
            return
        is_whole = any(
            self._reaches(seat, other.peer)
            and other.peer not in self.no_uploads
            and target.commit in {link.commit for link, _ in other.disk.chain}
            for other in self.seats.values()
        )
        gone = next((node.link for node in action.path if not self._is_to_be_had(seat, node.link)), None)
        if is_whole or gone is None:
            self._answer(seat, SwitchPrepared(target.commit))
        else:
            why = f"the bytes of commit {short(gone.commit)} are with nobody who answers"
            self._answer(seat, SwitchFailed(target.commit, why, gone.commit))

    def _is_to_be_had(self, seat: Seat, link: ChainLink) -> bool:
        return link.record is None or self._gather(seat, link.record)

    def _reduce(self, seat: Seat, proposal: Proposal) -> None:
        """Bytes move at once: a reducer closes each of its slices with all members that it reaches."""
        for part in proposal.slices:
            key = (proposal.base, proposal.ballot, part.first_chunk, part.stop_chunk)
            if part.reducer != seat.peer or key in seat.reduced:
                continue
            here = {m.peer for m in proposal.members if self._offers(seat, m)}
            if all(self.standings.get(peer) is PeerStanding.STRANGER for peer in here):
                here = set()
            if here:
                seat.reduced.add(key)
            included = tuple(included_of(self.seats[m.peer], m, proposal) for m in proposal.members if m.peer in here)
            omitted = tuple(Omission(m.peer, "lost", OmissionCode.GONE) for m in proposal.members if m.peer not in here)
            header = ResultHeader(
                proposal.unit,
                proposal.base,
                proposal.ballot,
                part.first_chunk,
                part.stop_chunk,
                seat.peer,
                included,
                omitted,
                sum(min(entry.tokens, proposal.weight_cap_tokens) for entry in included),
                result_hash(proposal.base, proposal.ballot, part) if here else Root(bytes(32)),
            )
            header = with_sum(header, proposal, seat)
            if here:
                seat.disk.results.add(header.result_hash)
            ready = ResultReady(proposal.unit, proposal.base, proposal.ballot, seat.sealed(encode_body(header)))
            self._send(seat, tuple(m.peer for m in proposal.members), ready)

    def _offers(self, reducer: Seat, member: Member) -> bool:
        seat = self.seats[member.peer]
        is_here = seat is reducer or self._reaches(reducer, member.peer)
        return is_here and seat.member == member and seat.has_trainer and seat.tokens > 0


def included_of(seat: Seat, member: Member, proposal: Proposal, **changes: object) -> Included:
    """The claim of this seat, as that member, on the proposal's base with all its tokens, in a reducer's words."""
    base = proposal.base
    root, taken = contribution_root(member, base), seat.state.open.contribution if seat.head.commit == base else None
    tokens = seat.tokens if taken is None else taken.tokens
    claim = ContributionHeader(proposal.unit, base, member, tokens, proposal.codec, root, base, state_root(base))
    standing = seat.table.standings.get(seat.peer, PeerStanding.KEEPER)
    is_told = bounds_strangers(seat.table.genesis.rules) and standing is PeerStanding.STRANGER
    claim = replace(claim, is_stranger=is_told)
    return signed_included(replace(claim, **changes), seat.sealed, standing)  # type: ignore[arg-type]


def with_sum(header: ResultHeader, proposal: Proposal, reducer: Seat) -> ResultHeader:
    """The header of a result, with the seal of its reducer for the record."""
    return replace(header, sum_seal=seal_of(reducer.sealed(encode_sum(sum_in(header, proposal)))))


def signed_included(
    claim: ContributionHeader, sealed: Callable[[bytes], bytes], standing: PeerStanding = PeerStanding.KEEPER
) -> Included:
    """A reducer's words about a contribution whose claim its member signed, with the proof of its admission."""
    member = claim.member
    return Included(
        member.peer,
        member.incarnation,
        claim.root,
        claim.tokens,
        claim.attested,
        claim.attested_root,
        claim.lanes,
        member.session,
        seal_of(sealed(encode_claim(claim))),
        admission_of(member.peer, RUN_ID, standing),
        is_stranger=claim.is_stranger,
    )


def consents(table: Table, ballot: Ballot, base: CommitId | None = None) -> tuple[bytes, ...]:
    """Signed pre-votes of all founders but the asker: a quorum finds that this ballot may take over."""
    vote = encode_message(PreVote(UNIT, base or table.genesis.commit, ballot, ""))
    return tuple(table.seats[peer].sealed(vote) for peer in table.genesis.roster if peer != ballot.peer)


def promises(
    table: Table, ballot: Ballot, acked: AckedRecord | None = None, base: CommitId | None = None
) -> tuple[bytes, ...]:
    """Signed promises of all founders to this ballot, each naming this acked record."""
    promise = encode_message(Promise(UNIT, base or table.genesis.commit, ballot, acked))
    return tuple(table.seats[peer].sealed(promise) for peer in table.genesis.roster)


def wanted(table: Table, ballot: Ballot, base: CommitId | None = None) -> PromiseRequest:
    """The request of a leader that a quorum lets take over."""
    return PromiseRequest(UNIT, base or table.genesis.commit, ballot, consents(table, ballot, base))


def contribution_root(member: Member, base: CommitId) -> Root:
    """One for every (base, session): what a process offers on a base does not change."""
    return Root(sha256(encode_body(member) + base).digest())


def result_hash(base: CommitId, ballot: Ballot, part: SliceSpec) -> Root:
    """The result of a slice in one attempt: another attempt has another result."""
    return Root(sha256(encode_body(ballot) + base + encode_body(part)).digest())


def state_root(commit: CommitId) -> Root:
    """The root of the state that a commit makes."""
    return Root(sha256(b"state" + commit).digest())


def heartbeat_of(seat: Seat) -> Heartbeat:
    """The heartbeat that the seat would send now."""
    return own_heartbeat(seat.state, seat.table.now_s)


def acquaint(table: Table) -> None:
    """Everybody trains and has heard everybody, and nothing has been opened yet."""
    for seat in table.live():
        seat.feed(seat.progressed())
    for seat in table.live():
        for other in table.others(seat):
            seat.hear(other, heartbeat_of(other))


def _hash_in(message: ResultReady) -> Root:
    envelope = open_envelope(
        message.header, verifier=HashVerifier(), domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None
    )
    return decode_body(ResultHeader, envelope.payload).result_hash


def first_proposal(table: Table, num_members: int | None = None, attempt: int = 0) -> Proposal:
    """The proposal of the first round's opener: a slice for every member."""
    members = tuple(seat.member for seat in table.live())[:num_members]
    size = NUM_CHUNKS // len(members)
    bounds = [(i * size, NUM_CHUNKS if i == len(members) - 1 else (i + 1) * size) for i in range(len(members))]
    return Proposal(
        unit=UNIT,
        base=table.genesis.commit,
        index=1,
        ballot=Ballot(attempt, table.opener().peer),
        members=members,
        slices=tuple(SliceSpec(a, b, m.peer) for (a, b), m in zip(bounds, members, strict=True)),
        codec="fp32",
        weight_cap_tokens=400,
        reduce_within_s=20.0,
    )


def mute(table: Table) -> None:
    """From here on orders are recorded and not performed."""
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
