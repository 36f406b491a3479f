from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from averaging.network.clocks import VirtualClock
from averaging.network.offload import InlineOffload
from averaging.network.seams import Snapshot, Stream
from averaging.rounds.exchange import EXCHANGE_CHANNEL
from averaging.rounds.service import ROUND_CHANNEL, RoundService, RoundTools
from averaging.rounds.transfer import FETCH_CHANNEL, fetch_commits, fetch_result
from averaging.unit_log import LoggedContribution
from protocol.envelope import NEVER_MS, open_envelope, seal
from protocol.errors import LocalProtocolError, PeerUnreachable, RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.chain import ROUND_DOMAIN
from protocol.rounds.messages import (
    Ack,
    AckedRecord,
    Ballot,
    Certificate,
    Committed,
    ContributionHeader,
    ExchangeHello,
    FetchCommits,
    FetchResult,
    Heartbeat,
    Leave,
    Promise,
    PromiseRequest,
    Proposal,
    ResultReady,
    RoundMessage,
    Settle,
    UnitHead,
)
from protocol.rounds.state import RoundConfig
from protocol.wire import decode_body, decode_message, encode_body, encode_message
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    OUTER,
    RUN_ID,
    UNIT,
    VERIFIER,
    MadeCommit,
    Party,
    RoundWorld,
    StepTrainer,
    open_world,
)

Clock = trio.testing.MockClock
NEVER_DUE = 1 << 40
"""A target that no trainer reaches within a test: nothing happens but what the test does."""


@dataclass
class Life:
    """A party with its round service running."""

    party: Party
    service: RoundService
    scope: trio.CancelScope
    told: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)

    @property
    def index(self) -> int:
        return self.service.chain.head.index


def _config(world: RoundWorld, party: Party) -> RoundConfig:
    return RoundConfig(
        run_id=RUN_ID,
        unit=UNIT,
        me=party.member,
        verifier=VERIFIER,
        num_chunks=GRID.num_chunks,
        codec=CODEC.name,
        outer=OUTER,
        target_tokens=world.target_tokens,
        min_members=1,
        max_members=8,
        longest_interval_s=3600.0,
    )


async def _live(world: RoundWorld, nursery: trio.Nursery, party: Party, trainer: StepTrainer | None = None) -> Life:
    """Restore the party's disk and run its service, which knows all parties and no stranger."""
    members = {other.peer for other in world.parties}
    told: list[tuple[str, Mapping[str, object]]] = []

    async def is_member(peer: PeerId) -> bool:
        return peer in members

    open_round = await party.chain.restore()
    trainer = trainer or StepTrainer(party.peer)
    tools = RoundTools(
        party.network,
        VirtualClock(),
        InlineOffload(),
        trainer,
        party.seal,
        is_member,
        lambda event, fields: told.append((event, fields)),
        random.Random(1),
    )
    service = RoundService(_config(world, party), party.chain, open_round, tools)
    service.serve()
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(trainer.run)
                inner.start_soon(service.run)

    nursery.start_soon(run)
    await service.list_peers(tuple(sorted(members)))
    return Life(party, service, scope, told)


def _listen(party: Party) -> list[RoundMessage]:
    """What others tell a party that runs no service."""
    heard: list[RoundMessage] = []

    async def take(sender: PeerId, request: bytes) -> bytes:
        envelope = open_envelope(request, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None)
        heard.append(decode_message(envelope.payload))
        return b""

    party.network.serve_calls(ROUND_CHANNEL, take)
    return heard


async def _tell(sender: Party, to: Party, message: RoundMessage) -> None:
    await _tell_raw(sender, to, sender.sign(encode_message(message)))


async def _tell_raw(sender: Party, to: Party, raw: bytes) -> None:
    await sender.network.call(to.peer, ROUND_CHANNEL, raw, timeout_s=2.0)


async def _until(is_true: Callable[[], bool], within_s: float = 60.0) -> None:
    with trio.fail_after(within_s):
        while not is_true():
            await trio.sleep(0.05)


def _of(kind: type, heard: Sequence[RoundMessage]) -> list[RoundMessage]:
    return [message for message in heard if isinstance(message, kind)]


@asynccontextmanager
async def _one_service(
    prepare: Callable[[RoundWorld, Party], Awaitable[None]] | None = None,
) -> AsyncIterator[tuple[RoundWorld, Life, list[RoundMessage]]]:
    """One service, and two members whose words the test speaks; what the second member hears."""
    async with open_world(target_tokens=NEVER_DUE) as world, trio.open_nursery() as nursery:
        if prepare is not None:
            await prepare(world, world.parties[0])
        heard = _listen(world.parties[1])
        _listen(world.parties[2])
        yield world, await _live(world, nursery, world.parties[0]), heard
        nursery.cancel_scope.cancel()


async def _assert_answers(world: RoundWorld, life: Life, heard: list[RoundMessage], attempt: int = 9) -> None:
    """It still takes part: asked for a promise, it promises."""
    ballot = Ballot(attempt, world.parties[1].peer)
    await _tell(world.parties[1], life.party, PromiseRequest(UNIT, life.service.chain.head.commit, ballot))
    await _until(lambda: any(m.ballot == ballot for m in heard if isinstance(m, Promise)), within_s=5.0)


def _heartbeat(party: Party, index: int = 0) -> Heartbeat:
    head = UnitHead(UNIT, CommitId(b"h" * 32), index, 0, 0, False, CommitId(bytes(32)), Root(bytes(32)))
    return Heartbeat(party.member, True, 0, (head,))


# --- rounds -------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _swarm(
    trainers: Mapping[int, StepTrainer] | None = None,
) -> AsyncIterator[tuple[RoundWorld, list[Life], trio.Nursery]]:
    async with open_world() as world, trio.open_nursery() as nursery:
        lives = [await _live(world, nursery, p, (trainers or {}).get(n)) for n, p in enumerate(world.parties)]
        yield world, lives, nursery
        nursery.cancel_scope.cancel()


async def test_members_commit_round_after_round_and_hold_the_same_state(autojump_clock: Clock) -> None:
    async with _swarm() as (world, lives, _):
        await _until(lambda: min(life.index for life in lives) >= 3)
        chains = [life.service.chain for life in lives]
        for number in range(1, 4):
            assert len({chain.links[number].commit for chain in chains}) == 1
        record = chains[0].links[1].record
        assert record is not None
        assert [entry.peer for entry in record.contributors] == [party.peer for party in world.parties]
        attested = [chain.links[3].record.attested for chain in chains if chain.links[3].record is not None]
        assert {a.commit for a in attested if a is not None} == {chains[0].links[2].commit}
        states = [life.service.state for life in lives]
        heads = {state.state_commit for state in states}
        assert len({state.state_root for state in states}) == len(heads)
        assert any(event == "committed" for event, _ in lives[0].told)


class _AwayTrainer(StepTrainer):
    """Trains, but gives no snapshot."""

    async def snapshot(self) -> Snapshot:
        raise LocalProtocolError("the worker is being brought back", "a snapshot")


async def test_a_round_goes_on_without_a_member_whose_trainer_is_away(autojump_clock: Clock) -> None:
    away = _AwayTrainer("away")
    async with _swarm({2: away}) as (world, lives, _):
        await _until(lambda: min(life.index for life in lives) >= 1)
        record = lives[2].service.chain.links[1].record
        assert record is not None
        assert [entry.peer for entry in record.contributors] == [party.peer for party in world.parties[:2]]
        named = {(o.peer, o.reason) for part in record.slices for o in part.omitted}
        assert named == {(world.parties[2].peer, "nothing to offer")}


async def test_a_member_that_says_goodbye_is_not_waited_for(autojump_clock: Clock) -> None:
    async with _swarm() as (world, lives, _):
        await _until(lambda: min(life.index for life in lives) >= 1)
        await lives[2].service.leave()
        lives[2].scope.cancel()
        world.swarm.kill(world.parties[2].peer)
        await _until(lambda: all(life.service.state.peers[world.parties[2].peer].left for life in lives[:2]), 2.0)
        index = lives[0].index
        await _until(lambda: min(life.index for life in lives[:2]) >= index + 2)


async def test_a_member_killed_and_started_again_comes_to_the_same_state(autojump_clock: Clock) -> None:
    async with _swarm() as (world, lives, nursery):
        await _until(lambda: lives[2].index >= 1)
        world.parties[2].crash()
        lives[2].scope.cancel()
        await _until(lambda: min(life.index for life in lives[:2]) >= 3)
        world.parties[2].boot()
        again = await _live(world, nursery, world.parties[2])
        await _until(lambda: again.index >= 5)
        ours = {link.commit for link in again.service.chain.links}
        assert again.service.chain.links[:4] == lives[0].service.chain.links[:4]
        await _until(lambda: lives[0].index >= again.index)
        assert ours <= {link.commit for link in lives[0].service.chain.links}


# --- contributing -------------------------------------------------------------------------------------------------------------


def _reduce(party: Party, life: Life) -> list[tuple[ExchangeHello, bool]]:
    """Take hellos at a party without a service: what was said, and whether the sender's root was on its disk by then."""
    hellos: list[tuple[ExchangeHello, bool]] = []

    async def take(sender: PeerId, stream: Stream) -> None:
        hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
        known = (await life.party.log.load()).bases.get(hello.base)
        is_logged = known is not None and known.contribution is not None
        hellos.append((hello, is_logged))
        await trio.sleep_forever()

    party.network.serve_streams(EXCHANGE_CHANNEL, take)
    return hellos


def _proposal(world: RoundWorld, attempt: int = 0) -> Proposal:
    proposal = world.proposal(((0, 6, 1),), attempt=attempt, reduce_within_s=60.0)
    return replace(proposal, ballot=Ballot(attempt, world.parties[1].peer))


async def test_the_root_of_a_contribution_is_on_disk_before_its_first_byte_leaves(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        await trio.sleep(2.0)
        hellos = _reduce(world.parties[1], life)
        await _tell(world.parties[1], life.party, _proposal(world))
        await _until(lambda: bool(hellos), 5.0)
        hello, is_logged = hellos[0]
        envelope = open_envelope(
            hello.contribution, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None
        )
        header = decode_body(ContributionHeader, envelope.payload)
        assert is_logged
        known = (await life.party.log.load()).bases[hello.base].contribution
        assert known is not None
        assert (known.root, known.tokens) == (header.root, header.tokens)
        assert header.attested_root == life.service.chain.root


async def test_one_contribution_serves_all_attempts_on_a_base(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        await trio.sleep(2.0)
        hellos = _reduce(world.parties[1], life)
        for attempt in (1, 2):
            await _tell(world.parties[1], life.party, _proposal(world, attempt))
            await _until(lambda attempt=attempt: len(hellos) == attempt, 5.0)  # type: ignore[misc]
            await trio.sleep(2.0)
        assert hellos[0][0].contribution == hellos[1][0].contribution != b""
        assert hellos[0][0].ballot < hellos[1][0].ballot


async def test_after_a_restart_nothing_is_offered_on_a_base_that_was_contributed_to(autojump_clock: Clock) -> None:
    async def contributed(world: RoundWorld, party: Party) -> None:
        await party.chain.log_contribution(world.genesis.head, LoggedContribution(Root(b"c" * 32), 700, 9))
        party.boot()

    async with _one_service(contributed) as (world, life, _):
        await trio.sleep(2.0)
        hellos = _reduce(world.parties[1], life)
        await _tell(world.parties[1], life.party, _proposal(world))
        await _until(lambda: bool(hellos), 5.0)
        assert hellos[0][0].contribution == hellos[0][0].chunk_hashes == b""
        known = (await life.party.log.load()).bases[world.genesis.head].contribution
        assert known == LoggedContribution(Root(b"c" * 32), 700, 9)


# --- votes --------------------------------------------------------------------------------------------------------------------


def _settle(world: RoundWorld, commit: MadeCommit, holders: tuple[PeerId, ...] = ()) -> Settle:
    return Settle(UNIT, commit.record.parent, Ballot(4, world.parties[1].peer), commit.certificate.record, holders)


async def test_an_ack_is_told_when_the_bytes_and_the_ack_are_on_disk(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, heard):
        commit = world.commits(1)[0]
        world.parties[2].serve_fetches()
        await commit.write_results(world.parties[2])
        settle = _settle(world, commit, (world.parties[2].peer,))
        await _tell(world.parties[1], life.party, settle)
        await _until(lambda: bool(_of(Ack, heard)), 10.0)
        assert _of(Ack, heard) == [Ack(UNIT, settle.base, settle.ballot, commit.link.commit)]
        hashes = [part.result_hash for part in commit.record.slices]
        assert await life.party.log.holds_results(settle.base, hashes)
        known = (await life.party.log.load()).bases[settle.base]
        assert known.acked == AckedRecord(settle.ballot, settle.record)


async def test_nothing_is_acked_while_bytes_are_missing(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, heard):
        commit = world.commits(1)[0]
        world.parties[2].serve_fetches()
        await commit.write_results(world.parties[2], slices=[0])
        await _tell(world.parties[1], life.party, _settle(world, commit, (world.parties[2].peer,)))
        await trio.sleep(30.0)
        assert _of(Ack, heard) == []
        assert (await life.party.log.load()).bases.get(world.genesis.head) is None
        await commit.write_results(world.parties[2])
        await _until(lambda: bool(_of(Ack, heard)), 30.0)


@pytest.mark.parametrize("holds_bytes", [True, False])
async def test_a_restarted_peer_tells_of_its_ack_unless_the_bytes_are_lost(
    holds_bytes: bool, autojump_clock: Clock
) -> None:
    low = Ballot(3, PeerId("earlier"))

    async def acked(world: RoundWorld, party: Party) -> None:
        commit = world.commits(1)[0]
        await commit.write_results(party, slices=[0, 1] if holds_bytes else [0])
        await party.log.log_ack(world.genesis.head, low, commit.certificate.record)
        party.boot()

    async with _one_service(acked) as (world, life, heard):
        record = world.commits(1)[0].certificate.record
        await _assert_answers(world, life, heard)
        promise = _of(Promise, heard)[0]
        assert isinstance(promise, Promise)
        assert promise.acked == (AckedRecord(low, record) if holds_bytes else None)


async def test_a_promise_is_on_disk_before_it_is_told_and_holds_after_a_restart(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, heard):
        await _assert_answers(world, life, heard, attempt=5)
        assert (await life.party.log.load()).bases[world.genesis.head].promised == Ballot(5, world.parties[1].peer)
        life.scope.cancel()
        life.party.crash()
        life.party.boot()
        async with trio.open_nursery() as nursery:
            again = await _live(world, nursery, life.party)
            heard.clear()
            request = PromiseRequest(UNIT, world.genesis.head, Ballot(4, world.parties[1].peer))
            await _tell(world.parties[1], life.party, request)
            await trio.sleep(2.0)
            assert _of(Promise, heard) == []
            assert again.service.state.open.promised == Ballot(5, world.parties[1].peer)
            nursery.cancel_scope.cancel()


# --- who is heard -------------------------------------------------------------------------------------------------------------


async def test_a_call_of_a_peer_that_is_no_member_is_refused(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, heard):
        request = PromiseRequest(UNIT, world.genesis.head, Ballot(20, world.stranger.peer))
        with pytest.raises(RemoteProtocolError, match="credential"):
            await _tell(world.stranger, life.party, request)
        await trio.sleep(1.0)
        assert life.service.state.open.promised is None
        assert world.stranger.peer not in life.service.state.peers
        await _assert_answers(world, life, heard)


@pytest.mark.parametrize("channel", [EXCHANGE_CHANNEL, FETCH_CHANNEL])
async def test_a_stream_of_a_peer_that_is_no_member_is_reset(channel: str, autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        stream = await world.stranger.network.open_stream(life.party.peer, channel, timeout_s=1.0)
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await stream.receive_frame()


@pytest.mark.parametrize("kind", [Heartbeat, Leave])
async def test_a_sign_of_life_in_anothers_name_is_refused(kind: type, autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, heard):
        other = world.parties[2]
        await _tell(other, life.party, _heartbeat(other))
        await trio.sleep(0.5)
        message = _heartbeat(other, index=7) if kind is Heartbeat else Leave(other.member)
        with pytest.raises(RemoteProtocolError, match="another's name"):
            await _tell(world.parties[1], life.party, message)
        await trio.sleep(0.5)
        view = life.service.state.peers[other.peer]
        assert view.head is not None
        assert (view.left, view.head.index) == (False, 0)
        await _assert_answers(world, life, heard)


async def test_a_message_carried_by_another_than_its_signer_is_refused(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        raw = world.parties[2].sign(encode_message(Leave(world.parties[2].member)))
        with pytest.raises(RemoteProtocolError, match="its own messages"):
            await _tell_raw(world.parties[1], life.party, raw)
        await trio.sleep(0.5)
        assert not life.service.state.peers[world.parties[2].peer].left


async def test_a_repeated_message_is_refused_and_messages_out_of_order_are_taken(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        early, late = (world.parties[1].sign(encode_message(_heartbeat(world.parties[1]))) for _ in range(2))
        await _tell_raw(world.parties[1], life.party, late)
        await _tell_raw(world.parties[1], life.party, early)
        for raw in (early, late):
            with pytest.raises(RemoteProtocolError, match="repeated"):
                await _tell_raw(world.parties[1], life.party, raw)


# --- what makes no sense ------------------------------------------------------------------------------------------------------


def _flipped(raw: bytes, position: int) -> bytes:
    data = bytearray(raw)
    data[position] ^= 1
    return bytes(data)


def _sealed(party: Party, domain: str, run_id: bytes, expires_unix_ms: int) -> bytes:
    payload = encode_message(_heartbeat(party))
    return seal(party.signer, domain, run_id, 1, expires_unix_ms, payload)


Malformed = Callable[[Party], bytes]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: b"", id="nothing"),
        pytest.param(lambda p: b"\xff" * 300, id="garbage"),
        pytest.param(lambda p: p.sign(b""), id="no message"),
        pytest.param(lambda p: p.sign(b"\xff\xff\xff garbage"), id="garbage, well signed"),
        pytest.param(lambda p: p.sign(encode_message(_heartbeat(p)))[:-1], id="cut short"),
        pytest.param(lambda p: _flipped(p.sign(encode_message(_heartbeat(p))), -1), id="bad signature"),
        pytest.param(lambda p: _flipped(p.sign(encode_message(_heartbeat(p))), -70), id="changed after signing"),
        pytest.param(lambda p: _flipped(p.sign(encode_message(_heartbeat(p))), 17), id="another protocol version"),
        pytest.param(lambda p: _sealed(p, "potluck report", RUN_ID, NEVER_MS), id="signed for another purpose"),
        pytest.param(lambda p: _sealed(p, ROUND_DOMAIN, b"o" * 32, NEVER_MS), id="of another run"),
        pytest.param(lambda p: _sealed(p, ROUND_DOMAIN, RUN_ID, 1_600_000_000_000), id="expired"),
    ],
)
async def test_a_malformed_message_is_refused_and_the_service_still_answers(
    make: Malformed, autojump_clock: Clock
) -> None:
    async with _one_service() as (world, life, heard):
        with pytest.raises(RemoteProtocolError):
            await _tell_raw(world.parties[1], life.party, make(world.parties[1]))
        await _assert_answers(world, life, heard)


Foolish = Callable[[RoundWorld], RoundMessage]


def _ballot(world: RoundWorld) -> Ballot:
    return Ballot(1, world.parties[1].peer)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda w: Settle(UNIT, w.genesis.head, _ballot(w), b"\xff", ()), id="settle"),
        pytest.param(lambda w: Committed(UNIT, Certificate(b"\xff", ())), id="certificate"),
        pytest.param(
            lambda w: Committed(UNIT, replace(w.commits(1)[0].certificate, acks=(b"no ack",))),
            id="acks of a certificate",
        ),
        pytest.param(
            lambda w: Committed(UNIT, replace(w.commits(1)[0].certificate, acks=())), id="certificate without acks"
        ),
        pytest.param(lambda w: ResultReady(UNIT, w.genesis.head, _ballot(w), b"no header"), id="result"),
        pytest.param(lambda w: Ack(UNIT, w.genesis.head, _ballot(w), CommitId(b"")), id="ack"),
        pytest.param(
            lambda w: Promise(UNIT, w.genesis.head, _ballot(w), AckedRecord(_ballot(w), b"\xff")), id="promise"
        ),
        pytest.param(
            lambda w: replace(_proposal(w), slices=w.proposal(((0, 2, 1),)).slices), id="proposal over too few chunks"
        ),
        pytest.param(lambda w: replace(_proposal(w), base=CommitId(b"?" * 32), index=9), id="proposal from nowhere"),
        pytest.param(lambda w: _heartbeat(w.parties[1], index=1 << 60), id="heartbeat from the far future"),
    ],
)
async def test_a_message_that_is_well_formed_and_makes_no_sense_changes_nothing(
    make: Foolish, autojump_clock: Clock
) -> None:
    async with _one_service() as (world, life, heard):
        await _tell(world.parties[1], life.party, make(world))
        await trio.sleep(3.0)
        assert life.index == 0
        assert life.service.state.open.acked is None
        await _assert_answers(world, life, heard)


@pytest.mark.parametrize("channel", [EXCHANGE_CHANNEL, FETCH_CHANNEL])
async def test_a_stream_that_opens_with_garbage_is_reset_and_the_service_still_answers(
    channel: str, autojump_clock: Clock
) -> None:
    async with _one_service() as (world, life, heard):
        stream = await world.parties[1].network.open_stream(life.party.peer, channel, timeout_s=1.0)
        await stream.send_frame(b"\xff\xff garbage")
        with pytest.raises(PeerUnreachable):
            await stream.receive_frame()
        await _assert_answers(world, life, heard)


async def test_a_stream_for_an_attempt_that_never_begins_is_reset(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        stream = await world.parties[1].network.open_stream(life.party.peer, EXCHANGE_CHANNEL, timeout_s=1.0)
        hello = ExchangeHello(UNIT, world.genesis.head, Ballot(7, world.parties[1].peer), 0, b"", b"")
        await stream.send_frame(encode_body(hello))
        with pytest.raises(PeerUnreachable), trio.fail_after(10.0):
            await stream.receive_frame()


# --- certificates, and catching up --------------------------------------------------------------------------------------------


async def _two_commits(world: RoundWorld, party: Party) -> None:
    for commit in world.commits(2):
        await party.apply(commit)
    party.boot()


@pytest.mark.parametrize("number", [0, 1])
async def test_who_speaks_of_an_old_base_is_answered_with_its_certificate(number: int, autojump_clock: Clock) -> None:
    async with _one_service(_two_commits) as (world, life, heard):
        base = life.service.chain.links[number].commit
        await _tell(world.parties[1], life.party, PromiseRequest(UNIT, base, Ballot(3, world.parties[1].peer)))
        await _until(lambda: bool(_of(Committed, heard)), 5.0)
        assert _of(Committed, heard) == [Committed(UNIT, world.commits(2)[number].certificate)]
        assert _of(Promise, heard) == []


async def test_a_base_of_nobodys_chain_is_not_answered(autojump_clock: Clock) -> None:
    async with _one_service(_two_commits) as (world, life, heard):
        request = PromiseRequest(UNIT, CommitId(b"?" * 32), Ballot(3, world.parties[1].peer))
        await _tell(world.parties[1], life.party, request)
        await trio.sleep(2.0)
        assert _of(Committed, heard) == _of(Promise, heard) == []
        await _assert_answers(world, life, heard)


async def test_members_are_served_the_chain_and_its_bytes(autojump_clock: Clock) -> None:
    async with _one_service(_two_commits) as (world, life, _):
        asker = world.parties[1]
        assert len(await fetch_commits(asker.network, life.party.peer, UNIT, world.genesis.head)) == 2
        commit = world.commits(2)[1]
        part = commit.record.slices[0]
        request = FetchResult(UNIT, commit.record.parent, part.first_chunk, part.stop_chunk, part.result_hash)
        assert await fetch_result(asker.network, life.party.peer, request, CODEC, GRID) == commit.results[0]


async def test_a_certificate_that_is_told_is_applied_with_bytes_fetched_from_its_holders(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        commit, donor = world.commits(1)[0], world.parties[1]
        await donor.apply(commit)
        donor.serve_fetches()
        await _tell(donor, life.party, Committed(UNIT, commit.certificate))
        await _until(lambda: life.index == 1, 10.0)
        assert life.service.chain.root == donor.chain.root


async def test_catching_up_asks_only_for_what_is_missing(autojump_clock: Clock) -> None:
    async def behind(world: RoundWorld, party: Party) -> None:
        await _two_commits(world, party)
        third = world.commits(3)[2]
        await third.write_results(party, slices=[0])

    async with _one_service(behind) as (world, life, _):
        made, donor = world.commits(5), world.parties[1]
        for commit in made:
            await donor.apply(commit)
        donor.serve_fetches()
        head = made[4].link
        message = _heartbeat(donor)
        at = replace(message.heads[0], head=head.commit, index=head.index, total_tokens=head.total_tokens)
        await _tell(donor, life.party, replace(message, heads=(at,)))
        await _until(lambda: life.index == 5, 30.0)
        assert life.service.chain.root == donor.chain.root
        requests = [request for _, request in donor.asked]
        asked_commits = [request for request in requests if isinstance(request, FetchCommits)]
        assert {request.after for request in asked_commits} == {made[1].link.commit}
        missing = [(commit.record.parent, part.first_chunk) for commit in made[2:] for part in commit.record.slices]
        asked_results = [(r.base, r.first_chunk) for r in requests if isinstance(r, FetchResult)]
        assert sorted(asked_results) == sorted(missing[1:])


async def test_a_liar_ahead_of_us_moves_nothing_and_an_honest_peer_still_can(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        commit, liar, honest = world.commits(1)[0], world.parties[1], world.parties[2]
        forged = replace(commit.certificate, acks=commit.certificate.acks[:1])
        liar.serve_frames([encode_body(forged), b"garbage"])
        await _tell(liar, life.party, _heartbeat(liar, index=3))
        await _until(lambda: bool(liar.asked), 5.0)
        await trio.sleep(5.0)
        assert life.index == 0
        await honest.apply(commit)
        honest.serve_fetches()
        await _tell(honest, life.party, Committed(UNIT, commit.certificate))
        await _until(lambda: life.index == 1, 10.0)


async def test_a_commit_whose_bytes_nobody_gives_waits_and_is_applied_when_they_turn_up(autojump_clock: Clock) -> None:
    async with _one_service() as (world, life, _):
        commit, donor = world.commits(1)[0], world.parties[1]
        donor.serve_fetches()
        await _tell(donor, life.party, Committed(UNIT, commit.certificate))
        await trio.sleep(70.0)
        assert life.index == 0
        assert life.service.state.open.committing is None
        await commit.write_results(donor)
        await _tell(donor, life.party, Committed(UNIT, commit.certificate))
        await _until(lambda: life.index == 1, 10.0)
