"""Round machines around one table: every order is performed at once, messages wait in one queue, and tests decide what is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from hashlib import sha256

from protocol.envelope import NEVER_MS, seal
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds import core
from protocol.rounds.chain import ROUND_DOMAIN, ChainLink, genesis_link
from protocol.rounds.messages import (
    Certificate,
    Heartbeat,
    Included,
    Member,
    OuterStep,
    Proposal,
    ResultHeader,
    ResultReady,
    RoundMessage,
    StartRecord,
    StartUnit,
)
from protocol.rounds.state import (
    AckLogged,
    Action,
    Applied,
    BeginExchange,
    BytesHeld,
    Commit,
    ContributionReady,
    Event,
    GatherBytes,
    LogAck,
    LogPromise,
    MessageArrived,
    PeerLost,
    PeersListed,
    PrepareContribution,
    Progressed,
    PromiseLogged,
    RoundConfig,
    RoundState,
    Send,
    SendHeartbeat,
    Ticked,
)
from protocol.wire import encode_body, encode_message
from tests.simulation.signing import HashSigner, HashVerifier

UNIT = UnitName("fragment-0")
RUN_ID = RunId(sha256(b"table").digest())
NUM_CHUNKS = 12
TARGET_TOKENS = 300
OUTER = OuterStep("mean", 1.0, 0.0)


class Seat:
    """One peer at the table."""

    def __init__(self, table: Table, signer: HashSigner) -> None:
        self.table = table
        self.signer = signer
        self.member = Member(signer.peer_id, 1, 1)
        self.is_up = True
        self.tokens = 100
        self.orders: list[Action] = []
        self.reasons: list[str] = []
        self.certificates: list[Certificate] = []
        self.state: RoundState

    @property
    def peer(self) -> PeerId:
        return self.signer.peer_id

    @property
    def head(self) -> ChainLink:
        return self.state.link

    def sealed(self, payload: bytes) -> bytes:
        return seal(self.signer, ROUND_DOMAIN, RUN_ID, 0, NEVER_MS, payload)

    def feed(self, event: Event) -> tuple[Action, ...]:
        """One event; its orders are performed."""
        step = core.step(self.state, event, self.table.now_s)
        self.state = step.state
        if step.reason:
            self.reasons.append(step.reason)
        self.orders.extend(step.actions)
        for action in step.actions:
            self.table.perform(self, action)
        return step.actions


class Table:
    """Machines, a queue of messages between them, and a clock that tests move."""

    def __init__(self, num_peers: int = 3) -> None:
        self.now_s = 100.0
        self.queue: deque[tuple[PeerId, PeerId, RoundMessage, bytes]] = deque()
        self.drops: Callable[[PeerId, PeerId, RoundMessage], bool] = lambda sender, to, message: False
        self.gathers = True
        signers = sorted((HashSigner(b"seat %d" % i) for i in range(num_peers)), key=lambda s: s.peer_id)
        self.seats = {signer.peer_id: Seat(self, signer) for signer in signers}
        unit = StartUnit(UNIT, bytes(32), Root(bytes(32)))
        roster = tuple(sorted(self.seats))
        self.start_record = encode_body(StartRecord(RUN_ID, (unit,), roster, TARGET_TOKENS, 0))
        for seat in self.seats.values():
            link = genesis_link(self.start_record, UNIT)
            seat.state = core.start(self.config(seat.member), link, self.now_s, state_root=Root(bytes(32)))
        for seat in self.seats.values():
            seat.feed(PeersListed(roster))

    def config(self, me: Member) -> RoundConfig:
        return RoundConfig(
            run_id=RUN_ID,
            unit=UNIT,
            me=me,
            verifier=HashVerifier(),
            num_chunks=NUM_CHUNKS,
            codec="fp32",
            outer=OUTER,
            target_tokens=TARGET_TOKENS,
            min_members=1,
            max_members=8,
            longest_interval_s=60.0,
        )

    def __iter__(self) -> Iterable[Seat]:
        return iter(self.seats.values())

    def live(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.is_up]

    def opener(self) -> Seat:
        """The owner of attempt 0 on the newest head."""
        from protocol.rounds.quorum import first_opener

        link = max((seat.head for seat in self.live()), key=lambda link: link.index)
        return self.seats[first_opener(link.commit, link.roster)]

    def kill(self, seat: Seat) -> None:
        seat.is_up = False

    def tick(self, seconds: float = 0.5) -> None:
        """Time passes; everybody alive trains, ticks, and talks until nothing is left to say."""
        self.now_s += seconds
        for seat in self.live():
            seat.feed(Progressed(seat.tokens, True))
            seat.feed(Ticked())
        self.talk()

    def talk(self, limit: int = 5000) -> None:
        """Deliver everything that is waiting."""
        for _ in range(limit):
            if not self.queue:
                return
            sender, to, message, raw = self.queue.popleft()
            if self.drops(sender, to, message):
                continue
            seat = self.seats[to]
            if seat.is_up:
                seat.feed(MessageArrived(sender, message, raw))
            elif self.seats[sender].is_up:
                self.seats[sender].feed(PeerLost(to))
        raise AssertionError("the table does not stop talking")

    def run_until(self, is_true: Callable[[], bool], limit_s: float = 200.0) -> None:
        """Tick until the condition holds."""
        end_s = self.now_s + limit_s
        while not is_true():
            if self.now_s > end_s:
                raise AssertionError({s.peer: (s.head.index, s.reasons[-4:]) for s in self.live()})
            self.tick()

    # --- performing orders ---

    def perform(self, seat: Seat, action: Action) -> None:
        match action:
            case Send():
                self._send(seat, action.to, action.message)
            case SendHeartbeat():
                self._send(seat, action.to, action.heartbeat)
            case PrepareContribution():
                root = Root(sha256(seat.peer.encode() + action.base).digest())
                seat.feed(ContributionReady(action.base, root, seat.tokens))
            case BeginExchange():
                self._reduce(seat, action.proposal)
            case GatherBytes():
                if self.gathers:
                    seat.feed(BytesHeld(action.settle))
            case LogAck():
                seat.feed(AckLogged(action.base, action.ballot, action.commit))
            case LogPromise():
                seat.feed(PromiseLogged(action.base, action.ballot))
            case Commit():
                seat.certificates.append(action.certificate)
                seat.feed(Applied(action.link, action.certificate, Root(sha256(action.link.commit).digest())))

    def _send(self, seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        raw = seat.sealed(encode_message(message))
        for peer in to:
            self.queue.append((seat.peer, peer, message, raw))

    def _reduce(self, seat: Seat, proposal: Proposal) -> None:
        """Everybody's bytes are there at once: each reducer closes its slices with all live members."""
        for part in proposal.slices:
            if part.reducer != seat.peer:
                continue
            included = tuple(
                Included(
                    m.peer,
                    m.incarnation,
                    Root(sha256(m.peer.encode() + proposal.base).digest()),
                    self.seats[m.peer].tokens,
                    CommitId(bytes(32)),
                    Root(bytes(32)),
                )
                for m in proposal.members
            )
            digest = sha256(encode_body(proposal.ballot) + proposal.base + bytes([part.first_chunk])).digest()
            header = ResultHeader(
                proposal.unit,
                proposal.base,
                proposal.ballot,
                part.first_chunk,
                part.stop_chunk,
                seat.peer,
                included,
                (),
                sum(entry.tokens for entry in included),
                Root(digest),
            )
            ready = ResultReady(proposal.unit, proposal.base, proposal.ballot, seat.sealed(encode_body(header)))
            self._send(seat, tuple(m.peer for m in proposal.members), ready)


def heartbeat_of(seat: Seat) -> Heartbeat:
    """What the seat would say now."""
    from protocol.rounds.views import own_heartbeat

    return own_heartbeat(seat.state)
