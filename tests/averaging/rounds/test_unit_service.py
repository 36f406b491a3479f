from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL
from averaging.rounds.lineage.round_reports import RoundCommitted, TaskFailed
from averaging.rounds.parting import PARTING_S, STAYS_WITHIN_S
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, ask_all, ask_generation, fetch_commits, fetch_result
from averaging.rounds.unit_service import LEAVE_WITHIN_S
from averaging.storage.memory_storage import UNBOUNDED_BYTES
from protocol.errors import PeerUnreachable, RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId
from protocol.rounds import machine as core
from protocol.rounds.events import Applied, Event, PeerLost
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.lineage.round_row import round_row
from protocol.rounds.messages.messages import (
    Ack,
    AckedRecord,
    Certificate,
    Committed,
    Heartbeat,
    Leave,
    Promise,
    PromiseRequest,
    ResultReady,
    RoundMessage,
    Settle,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.requests import (
    NO_PART,
    NOTHING_TO_OFFER,
    FetchHashes,
    FetchRequest,
    FetchResult,
    FetchState,
)
from protocol.rounds.messages.wire import encode_message
from protocol.rounds.orders import SendHeartbeat
from protocol.rounds.schedule.proposal import consumed_tokens
from protocol.rounds.state import RoundState, RoundStep
from protocol.rounds.voting import ACK_VERSION, LEAVE_VERSION
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    RUN_ID,
    SPACING,
    UNIT,
    MadeCommit,
    Party,
    RoundWorld,
    open_world,
)
from tests.averaging.rounds.service_world import (
    AwayTrainer,
    PausedTrainer,
    PeerSession,
    SlowTrainer,
    SpareTrainer,
    StartingTrainer,
    StepTrainer,
    assert_answers,
    heartbeat_of,
    listen,
    live,
    of_kind,
    one_service,
    proposal_by,
    tell,
    tell_raw,
    until,
)

Clock = trio.testing.MockClock


# --- rounds -------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _swarm(
    trainers: Mapping[int, StepTrainer] | None = None,
) -> AsyncIterator[tuple[RoundWorld, list[PeerSession], trio.Nursery]]:
    async with open_world() as world, trio.open_nursery() as nursery:
        lives = [await live(world, nursery, p, (trainers or {}).get(n)) for n, p in enumerate(world.parties)]
        yield world, lives, nursery
        nursery.cancel_scope.cancel()


async def test_members_commit_round_after_round_and_hold_the_same_state(autojump_clock: Clock) -> None:
    async with _swarm() as (world, lives, _):
        await until(lambda: min(life.index for life in lives) >= 3)
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
        assert any(isinstance(report, RoundCommitted) for report in lives[0].reported)


async def test_what_is_fetched_and_what_streams_bring_know_of_each_other(autojump_clock: Clock) -> None:
    """Else bytes come twice where a machine is busy, and no round shows it."""
    async with _swarm() as (_, lives, _):
        service = lives[0].service
        assert service._gatherer._exchange.arrivals() is service._exchange_driver.arrivals
        assert service._exchange_driver.until_fetched == service._gatherer.until_fetched


async def test_a_round_goes_on_without_a_member_whose_trainer_is_away(autojump_clock: Clock) -> None:
    away = AwayTrainer("away")
    async with _swarm({2: away}) as (world, lives, _):
        await until(lambda: min(life.index for life in lives) >= 1)
        record = lives[2].service.chain.links[1].record
        assert record is not None
        assert [entry.peer for entry in record.contributors] == [party.peer for party in world.parties[:2]]
        named = {(o.peer, o.words) for part in record.slices for o in part.omitted}
        assert named == {(world.parties[2].peer, "nothing to offer")}


async def test_a_round_says_of_a_spare_that_nothing_is_missing_and_of_a_failed_snapshot_that_it_is(
    autojump_clock: Clock,
) -> None:
    async with _swarm({0: SpareTrainer("spare"), 2: AwayTrainer("away")}) as (world, lives, _):
        await until(lambda: min(life.index for life in lives) >= 1)
        row = round_row(lives[1].service.chain.links[1])
        spare, _one, failed = (party.peer for party in world.parties)
        assert row.omitted == tuple(sorted([(spare, NO_PART), (failed, NOTHING_TO_OFFER)]))
        assert row.coverage == 0.5


async def test_round_with_a_paused_member_is_whole_for_nothing_of_it_is_missing(autojump_clock: Clock) -> None:
    async with _swarm({2: PausedTrainer("paused")}) as (world, lives, _):
        await until(lambda: min(life.index for life in lives) >= 1)
        row = round_row(lives[1].service.chain.links[1])
        assert row.omitted == ((world.parties[2].peer, NO_PART),)
        assert row.coverage == 1.0


async def test_a_peer_whose_trainer_is_starting_follows_the_rounds_and_no_round_waits_for_it(
    autojump_clock: Clock,
) -> None:
    starting = StartingTrainer("starting")
    async with _swarm({2: starting}) as (world, lives, _):
        peer = world.parties[2].peer
        await until(lambda: min(life.index for life in lives) >= 3)
        records = [link.record for link in lives[2].service.chain.links if link.record is not None]
        assert all(record.contributor(peer) is None for record in records)
        assert all(o.peer != peer for record in records for part in record.slices for o in part.omitted)
        index = lives[2].index
        starting.ready.set()
        await until(lambda: lives[2].index >= index + 3)
        records = [link.record for link in lives[2].service.chain.links if link.record is not None]
        assert records[-1].contributor(peer) is not None


async def test_who_found_its_own_state_wrong_opens_nothing_and_contributes_nothing_until_it_is_healed(
    autojump_clock: Clock,
) -> None:
    async with _swarm() as (world, lives, _):
        await until(lambda: min(life.index for life in lives) >= 1)
        doubting, peer = lives[0], world.parties[0].peer
        doubting.service.chain.is_sound = False  # without its event: the healer must not make it good at once
        begin = max(life.index for life in lives) + 1  # one round may be under way
        await until(lambda: lives[1].index >= begin + 4)
        records = [link.record for link in lives[1].service.chain.links[begin + 1 :]]
        assert all(r is not None and r.ballot.peer != peer and r.contributor(peer) is None for r in records)
        doubting.service.chain.is_sound = True
        await until(lambda: _has_contributed(lives[1], peer, after=begin + 4))


def _has_contributed(life: PeerSession, peer: PeerId, after: int) -> bool:
    records = [link.record for link in life.service.chain.links[after + 1 :]]
    return any(record is not None and record.contributor(peer) is not None for record in records)


async def test_a_wrong_state_is_told_to_the_machine_before_whatever_happens_next(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, _):
        await until(lambda: life.service.state.can_contribute, 5.0)
        life.service.chain.is_sound = False
        await life.service.tell(PeerLost(world.parties[2].peer, trio.current_time()))
        await life.service.drained()
        assert not life.service.state.can_contribute


async def test_a_trainer_that_is_slow_to_adopt_holds_up_nobody_and_no_token_counts_twice(autojump_clock: Clock) -> None:
    slow = SlowTrainer("slow")
    async with _swarm({2: slow}) as (world, lives, _):
        await until(lambda: min(life.index for life in lives) >= 6)
        assert trio.current_time() < 40.0
        await until(lambda: lives[2].service.has_adopted)
        records = [link.record for link in lives[2].service.chain.links if link.record is not None]
        counted = sum(consumed_tokens(record, world.parties[2].peer) for record in records)
        progress = slow.progress()
        assert 0 < counted <= progress.tokens_trained
        assert progress.tokens_ready >= 0


async def test_with_a_commit_the_next_opener_is_told_of_no_token_that_it_counted(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = {number: StepTrainer(str(number)) for number in range(3)}
    trainer_of, links = dict[PeerId, StepTrainer](), list[ChainLink]()
    reported = list[tuple[PeerId, int, int, int]]()
    real = core.step

    def step(before: RoundState, event: Event, now_s: float) -> RoundStep:
        taken = real(before, event, now_s)
        for action in taken.actions:
            if isinstance(event, Applied) and isinstance(action, SendHeartbeat):
                peer, ready = before.config.me.peer, action.heartbeat.heads[0].tokens_ready
                reported.append((peer, event.link.index, ready, trainer_of[peer].progress().tokens_trained))
        return taken

    monkeypatch.setattr(core, "step", step)
    async with _swarm(trainers) as (world, lives, _):
        trainer_of |= {party.peer: trainers[number] for number, party in enumerate(world.parties)}
        await until(lambda: min(life.index for life in lives) >= 4)
        links += lives[0].service.chain.links
    assert reported
    for peer, index, ready, trained in reported:
        records = [link.record for link in links[1 : index + 1] if link.record is not None]
        assert sum(consumed_tokens(record, peer) for record in records) + ready <= trained


async def test_a_member_that_says_goodbye_is_not_waited_for(autojump_clock: Clock) -> None:
    async with _swarm() as (world, lives, _):
        await until(lambda: min(life.index for life in lives) >= 1)
        await lives[2].service.leave()
        lives[2].scope.cancel()
        world.swarm.kill(world.parties[2].peer)
        await until(lambda: all(life.service.state.peers[world.parties[2].peer].left for life in lives[:2]), 2.0)
        index = lives[0].index
        await until(lambda: min(life.index for life in lives[:2]) >= index + 2)


async def test_a_member_killed_and_started_again_comes_to_the_same_state(autojump_clock: Clock) -> None:
    async with _swarm() as (world, lives, nursery):
        await until(lambda: lives[2].index >= 1)
        world.parties[2].crash()
        lives[2].scope.cancel()
        await until(lambda: min(life.index for life in lives[:2]) >= 3)
        world.parties[2].boot()
        again = await live(world, nursery, world.parties[2])
        await until(lambda: again.index >= 5)
        ours = {link.commit for link in again.service.chain.links}
        assert again.service.chain.links[:4] == lives[0].service.chain.links[:4]
        await until(lambda: lives[0].index >= again.index)
        assert ours <= {link.commit for link in lives[0].service.chain.links}


# --- votes --------------------------------------------------------------------------------------------------------------------


def _settle(world: RoundWorld, commit: MadeCommit, holders: tuple[PeerId, ...] = ()) -> Settle:
    ballot, base = Ballot(4, world.parties[1].peer), commit.record.parent
    return Settle(UNIT, base, ballot, commit.certificate.record, holders, promises=world.promises(ballot, commit))


async def test_an_ack_is_told_when_the_bytes_and_the_ack_are_on_disk(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        commit = world.commits(1)[0]
        world.parties[2].serve_fetches()
        await commit.write_results(world.parties[2])
        settle = _settle(world, commit, (world.parties[2].peer,))
        await tell(world.parties[1], life.party, settle)
        await until(lambda: bool(of_kind(Ack, heard)), 10.0)
        assert of_kind(Ack, heard) == [Ack(UNIT, settle.base, settle.ballot, commit.link.commit, version=ACK_VERSION)]
        hashes = [part.result_hash for part in commit.record.slices]
        assert await life.party.log.holds_results(settle.base, hashes)
        known = (await life.party.log.load()).bases[settle.base]
        assert known.acked == AckedRecord(settle.ballot, settle.record)


async def test_nothing_is_acked_while_bytes_are_missing(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        commit = world.commits(1)[0]
        world.parties[2].serve_fetches()
        await commit.write_results(world.parties[2], slices=[0])
        await tell(world.parties[1], life.party, _settle(world, commit, (world.parties[2].peer,)))
        await trio.sleep(30.0)
        assert of_kind(Ack, heard) == []
        assert (await life.party.log.load()).bases.get(world.genesis.head) is None
        await commit.write_results(world.parties[2])
        await until(lambda: bool(of_kind(Ack, heard)), 30.0)


async def test_a_restarted_peer_tells_of_its_ack(autojump_clock: Clock) -> None:
    low = Ballot(3, PeerId("earlier"))

    async def acked(world: RoundWorld, party: Party) -> None:
        await party.log.log_ack(world.genesis.head, low, world.commits(1)[0].certificate.record)
        party.boot()

    async with one_service(acked) as (world, life, heard):
        await assert_answers(world, life, heard)
        promise = of_kind(Promise, heard)[0]
        assert promise.acked == AckedRecord(low, world.commits(1)[0].certificate.record)


async def test_a_promise_is_on_disk_before_it_is_told_and_holds_after_a_restart(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        await assert_answers(world, life, heard, attempt=5)
        assert (await life.party.log.load()).bases[world.genesis.head].promised == Ballot(5, world.parties[1].peer)
        life.scope.cancel()
        life.party.crash()
        life.party.boot()
        async with trio.open_nursery() as nursery:
            again = await live(world, nursery, life.party)
            heard.clear()
            request = world.promise_request(Ballot(4, world.parties[1].peer))
            await tell(world.parties[1], life.party, request)
            await trio.sleep(2.0)
            assert of_kind(Promise, heard) == []
            assert again.service.state.open.promised == Ballot(5, world.parties[1].peer)
            nursery.cancel_scope.cancel()


async def test_a_vote_that_cannot_be_written_is_never_told_and_the_service_lives_on(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        commit, disk = world.commits(1)[0], life.party.disk
        await commit.write_results(life.party)
        disk.fail_with_disk_full_after(0)
        await tell(world.parties[1], life.party, _settle(world, commit))
        request = world.promise_request(Ballot(6, world.parties[1].peer))
        await tell(world.parties[1], life.party, request)
        await trio.sleep(30.0)
        assert of_kind(Ack, heard) == of_kind(Promise, heard) == []
        assert (await life.party.log.load()).bases == {}
        failed = [report.reason for report in life.reported if isinstance(report, TaskFailed)]
        assert len(failed) == 2
        assert all("no space" in reason for reason in failed)
        disk.capacity_bytes = UNBOUNDED_BYTES
        await assert_answers(world, life, heard)


async def test_a_vote_that_could_not_be_written_is_not_told_either_when_it_is_asked_for_again(
    autojump_clock: Clock,
) -> None:
    async with one_service() as (world, life, heard):
        commit = world.commits(1)[0]
        await commit.write_results(life.party)
        life.party.disk.fail_with_disk_full_after(0)
        for _ in range(2):
            await tell(world.parties[1], life.party, _settle(world, commit))
            await trio.sleep(5.0)
        assert of_kind(Ack, heard) == []
        life.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await tell(world.parties[1], life.party, _settle(world, commit))
        await until(lambda: bool(of_kind(Ack, heard)), 5.0)
        known = (await life.party.log.load()).bases[world.genesis.head]
        assert known.acked == AckedRecord(Ballot(4, world.parties[1].peer), commit.certificate.record)


# --- goodbye ------------------------------------------------------------------------------------------------------------------


async def _leave(life: PeerSession) -> float:
    began_s = trio.current_time()
    await life.service.leave()
    return trio.current_time() - began_s


async def test_leaving_returns_when_everybody_has_heard_and_binds_on_disk(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        listener = listen(world.parties[2])
        await trio.sleep(1.0)
        assert await _leave(life) < 1.0
        expected = Leave(life.party.member, UNIT, world.genesis.head, version=LEAVE_VERSION)
        assert of_kind(Leave, heard) == of_kind(Leave, listener) == [expected]
        known = (await life.party.log.load()).bases[world.genesis.head]
        assert known.promised == Ballot(LAST_ATTEMPT, life.party.peer)
        request = world.promise_request(Ballot(2, world.parties[1].peer))
        await tell(world.parties[1], life.party, request)
        await tell(world.parties[1], life.party, _settle(world, world.commits(1)[0]))
        await trio.sleep(5.0)
        assert of_kind(Promise, heard) == of_kind(Ack, heard) == []
        assert await _leave(life) < 0.1, "once is enough"


@pytest.mark.parametrize(
    ("trouble", "within_s", "is_heard"),
    [
        ("a member is cut off", LEAVE_WITHIN_S, True),
        ("nothing can be signed", PARTING_S + LEAVE_WITHIN_S, False),
        ("the disk is full", 0.1, False),
    ],
)
async def test_leaving_never_takes_longer_than_its_limit(
    trouble: str, within_s: float, is_heard: bool, autojump_clock: Clock
) -> None:
    async with one_service() as (world, life, heard):
        await trio.sleep(1.0)
        match trouble:
            case "a member is cut off":
                world.swarm.cut([life.party.peer], [world.parties[2].peer])
            case "nothing can be signed":
                life.signing_waits_for = trio.Event()
            case _:
                life.party.disk.fail_with_disk_full_after(0)
        assert await _leave(life) <= within_s + 0.1
        await trio.sleep(3.0)
        assert bool(of_kind(Leave, heard)) == is_heard, "what is not written down is not said"


@asynccontextmanager
async def _leaving_with_an_ack() -> AsyncIterator[tuple[RoundWorld, PeerSession, list[RoundMessage], MadeCommit]]:
    """Asked to leave just after its ack of what a dead member led, and still there five seconds later."""
    async with one_service() as (world, life, heard), trio.open_nursery() as nursery:
        commit, reported = world.commits(1)[0], listen(world.parties[2])
        await commit.write_results(life.party)
        await tell(world.parties[1], life.party, _settle(world, commit))
        await until(lambda: bool(of_kind(Ack, heard)), 5.0)
        world.swarm.kill(world.parties[1].peer)
        await life.service.tell(PeerLost(world.parties[1].peer, trio.current_time()))
        await life.service.drained()
        nursery.start_soon(life.service.leave)
        await trio.sleep(5.0)
        assert of_kind(Leave, reported) == []
        yield world, life, reported, commit


async def test_who_acked_says_goodbye_when_others_cannot_need_its_bytes_any_more(autojump_clock: Clock) -> None:
    async with _leaving_with_an_ack() as (world, life, heard, commit):
        await tell(world.parties[2], life.party, Committed(UNIT, commit.certificate))
        await until(lambda: bool(of_kind(Leave, heard)), 2.0)
        assert of_kind(Leave, heard) == [Leave(life.party.member, UNIT, commit.link.commit, version=LEAVE_VERSION)]


async def test_who_acked_leaves_at_once_while_the_leader_is_there(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        commit = world.commits(1)[0]
        await commit.write_results(life.party)
        await tell(world.parties[1], life.party, _settle(world, commit))
        await until(lambda: bool(of_kind(Ack, heard)), 5.0)
        assert await _leave(life) < 0.5
        assert len(of_kind(Leave, heard)) == 1


async def test_an_ack_is_on_disk_with_the_goodbyes_that_its_record_was_settled_with(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        commit, leaver = world.commits(1)[0], world.parties[2]
        await commit.write_results(life.party)
        goodbye = leaver.sign(encode_message(Leave(leaver.member, UNIT, world.genesis.head, version=LEAVE_VERSION)))
        await tell(world.parties[1], life.party, replace(_settle(world, commit), leaves=(goodbye,)))
        await until(lambda: bool(of_kind(Ack, heard)), 5.0)
        logged = await life.party.log.load()
        assert logged.bases[world.genesis.head].leaves == (goodbye,)


async def test_who_acked_a_record_that_nobody_commits_leaves_in_the_end_and_says_what_it_acked(
    autojump_clock: Clock,
) -> None:
    async with _leaving_with_an_ack() as (_, _life, heard, commit):
        await until(lambda: bool(of_kind(Leave, heard)), STAYS_WITHIN_S + 1.0)
        acked = of_kind(Leave, heard)[0].acked
        assert acked is not None
        assert acked.record == commit.certificate.record


async def test_who_left_votes_no_more_on_that_base_after_a_restart_and_takes_part_in_the_next(
    autojump_clock: Clock,
) -> None:
    async with one_service() as (world, life, heard):
        await life.service.leave()
        life.scope.cancel()
        life.party.crash()
        life.party.boot()
        async with trio.open_nursery() as nursery:
            again = await live(world, nursery, life.party)
            request = world.promise_request(Ballot(2, world.parties[1].peer))
            await tell(world.parties[1], life.party, request)
            await trio.sleep(3.0)
            assert of_kind(Promise, heard) == []
            commit = world.commits(1)[0]
            await commit.write_results(life.party)
            await tell(world.parties[1], life.party, Committed(UNIT, commit.certificate))
            await until(lambda: again.index == 1, 10.0)
            await assert_answers(world, again, heard)
            nursery.cancel_scope.cancel()


# --- who is heard -------------------------------------------------------------------------------------------------------------


async def test_a_call_of_a_peer_that_is_no_member_is_refused(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        request = world.promise_request(Ballot(20, world.stranger.peer))
        with pytest.raises(RemoteProtocolError, match="credential"):
            await tell(world.stranger, life.party, request)
        await trio.sleep(1.0)
        assert life.service.state.open.promised is None
        assert world.stranger.peer not in life.service.state.peers
        await assert_answers(world, life, heard)


@pytest.mark.parametrize("channel", [EXCHANGE_CHANNEL, FETCH_CHANNEL])
async def test_a_stream_of_a_peer_that_is_no_member_is_reset(channel: str, autojump_clock: Clock) -> None:
    async with one_service() as (world, life, _):
        stream = await world.stranger.network.open_stream(life.party.peer, channel, timeout_s=1.0)
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await stream.receive_frame()


@pytest.mark.parametrize("kind", [Heartbeat, Leave])
async def test_a_sign_of_life_in_anothers_name_is_refused(kind: type, autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        other = world.parties[2]
        await tell(other, life.party, heartbeat_of(other))
        await trio.sleep(0.5)
        message = heartbeat_of(other, index=7) if kind is Heartbeat else Leave(other.member, UNIT, world.genesis.head)
        with pytest.raises(RemoteProtocolError, match="another's name"):
            await tell(world.parties[1], life.party, message)
        await trio.sleep(0.5)
        view = life.service.state.peers[other.peer]
        assert view.head is not None
        assert (view.left, view.head.index) == (False, 0)
        await assert_answers(world, life, heard)


async def test_a_message_carried_by_another_than_its_signer_is_refused(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, _):
        raw = world.parties[2].sign(encode_message(Leave(world.parties[2].member, UNIT, world.genesis.head)))
        with pytest.raises(RemoteProtocolError, match="its own messages"):
            await tell_raw(world.parties[1], life.party, raw)
        await trio.sleep(0.5)
        assert not life.service.state.peers[world.parties[2].peer].left


async def test_a_repeated_message_is_refused_and_messages_out_of_order_are_taken(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, _):
        early, late = (world.parties[1].sign(encode_message(heartbeat_of(world.parties[1]))) for _ in range(2))
        await tell_raw(world.parties[1], life.party, late)
        await tell_raw(world.parties[1], life.party, early)
        for raw in (early, late):
            with pytest.raises(RemoteProtocolError, match="repeated"):
                await tell_raw(world.parties[1], life.party, raw)


# --- what makes no sense ------------------------------------------------------------------------------------------------------


def _flipped(raw: bytes, position: int) -> bytes:
    data = bytearray(raw)
    data[position] ^= 1
    return bytes(data)


def _sealed(party: Party, domain: str, run_id: bytes, expires_unix_ms: int) -> bytes:
    payload = encode_message(heartbeat_of(party))
    return seal(party.signer, domain, run_id, 1, expires_unix_ms, payload)


Malformed = Callable[[Party], bytes]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: b"", id="nothing"),
        pytest.param(lambda p: b"\xff" * 300, id="garbage"),
        pytest.param(lambda p: p.sign(b""), id="no message"),
        pytest.param(lambda p: p.sign(b"\xff\xff\xff garbage"), id="garbage, well signed"),
        pytest.param(lambda p: p.sign(encode_message(heartbeat_of(p)))[:-1], id="cut short"),
        pytest.param(lambda p: _flipped(p.sign(encode_message(heartbeat_of(p))), -1), id="bad signature"),
        pytest.param(lambda p: _flipped(p.sign(encode_message(heartbeat_of(p))), -70), id="changed after signing"),
        pytest.param(lambda p: _flipped(p.sign(encode_message(heartbeat_of(p))), 17), id="another protocol version"),
        pytest.param(lambda p: _sealed(p, "potluck report", RUN_ID, NEVER_MS), id="signed for another purpose"),
        pytest.param(lambda p: _sealed(p, ROUND_DOMAIN, b"o" * 32, NEVER_MS), id="of another run"),
        pytest.param(lambda p: _sealed(p, ROUND_DOMAIN, RUN_ID, 1_600_000_000_000), id="expired"),
    ],
)
async def test_a_malformed_message_is_refused_and_the_service_still_answers(
    make: Malformed, autojump_clock: Clock
) -> None:
    async with one_service() as (world, life, heard):
        with pytest.raises(RemoteProtocolError):
            await tell_raw(world.parties[1], life.party, make(world.parties[1]))
        await assert_answers(world, life, heard)


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
            lambda w: replace(proposal_by(w, 1), slices=w.proposal(((0, 2, 1),)).slices),
            id="proposal over too few chunks",
        ),
        pytest.param(
            lambda w: replace(proposal_by(w, 1), base=CommitId(b"?" * 32), index=9), id="proposal from nowhere"
        ),
        pytest.param(lambda w: heartbeat_of(w.parties[1], index=1 << 60), id="heartbeat from the far future"),
        pytest.param(lambda w: PromiseRequest(UNIT, CommitId(b"?" * 32), _ballot(w)), id="promise on nobody's base"),
    ],
)
async def test_a_message_that_is_well_formed_and_makes_no_sense_changes_nothing(
    make: Foolish, autojump_clock: Clock
) -> None:
    async with one_service() as (world, life, heard):
        await tell(world.parties[1], life.party, make(world))
        await trio.sleep(3.0)
        assert life.index == 0
        assert life.service.state.open.acked is None
        assert of_kind(Promise, heard) == of_kind(Committed, heard) == []
        await assert_answers(world, life, heard)


@pytest.mark.parametrize("channel", [EXCHANGE_CHANNEL, FETCH_CHANNEL])
async def test_a_stream_that_opens_with_garbage_is_reset_and_the_service_still_answers(
    channel: str, autojump_clock: Clock
) -> None:
    async with one_service() as (world, life, heard):
        stream = await world.parties[1].network.open_stream(life.party.peer, channel, timeout_s=1.0)
        await stream.send_frame(b"\xff\xff garbage")
        with pytest.raises(PeerUnreachable):
            await stream.receive_frame()
        await assert_answers(world, life, heard)


@pytest.mark.parametrize("channel", [EXCHANGE_CHANNEL, FETCH_CHANNEL])
async def test_a_stream_without_a_greeting_is_waited_for_but_not_for_ever(channel: str, autojump_clock: Clock) -> None:
    async with one_service() as (world, life, heard):
        stream = await world.parties[1].network.open_stream(life.party.peer, channel, timeout_s=1.0)
        with pytest.raises(PeerUnreachable), trio.fail_after(25.0):
            await stream.receive_frame()
        await assert_answers(world, life, heard)


# --- what is here ----------------------------------------------------------------------------------------------------------


async def _two_commits(world: RoundWorld, party: Party) -> None:
    for commit in world.commits(2):
        await party.apply(commit)
    party.boot()


@pytest.mark.parametrize("number", [0, 1])
async def test_who_speaks_of_an_old_base_is_answered_with_its_certificate(number: int, autojump_clock: Clock) -> None:
    async with one_service(_two_commits) as (world, life, heard):
        base = life.service.chain.links[number].commit
        await tell(world.parties[1], life.party, PromiseRequest(UNIT, base, Ballot(3, world.parties[1].peer)))
        await until(lambda: bool(of_kind(Committed, heard)), 5.0)
        assert of_kind(Committed, heard) == [Committed(UNIT, world.commits(2)[number].certificate)]
        assert of_kind(Promise, heard) == []


async def test_members_are_served_the_chain_and_its_bytes(autojump_clock: Clock) -> None:
    async with one_service(_two_commits) as (world, life, _):
        asker = world.parties[1]
        assert len(await fetch_commits(asker.network, life.party.peer, UNIT, [world.genesis.head])) == 2
        commit = world.commits(2)[1]
        part = commit.record.slices[0]
        request = FetchResult(UNIT, commit.record.parent, part.first_chunk, part.stop_chunk, part.result_hash)
        assert await fetch_result(asker.network, life.party.peer, request, CODEC, GRID) == commit.results[0]


async def test_who_asks_for_a_large_state_is_offered_what_is_there_and_the_next_one_the_newest(
    autojump_clock: Clock,
) -> None:
    async def prepare(world: RoundWorld, party: Party) -> None:
        world.is_large = True
        party.boot()
        for commit in world.commits(SPACING + 2):
            await party.apply(commit)
        party.boot()

    async with one_service(prepare) as (world, life, _):
        asker = world.parties[1]

        async def offered() -> list[int]:
            return [donor.header.index for donor in await ask_generation(asker.network, life.party.peer, UNIT)]

        assert (await offered())[0] == SPACING
        await trio.sleep(1.0)
        assert (await offered())[:2] == [SPACING + 2, SPACING]
        disk = dict(life.party.disk.files)
        for _ in range(3):
            await offered()
        await trio.sleep(1.0)
        assert life.party.disk.files == disk, "it is there already"


@pytest.mark.parametrize("kind", ["offers", "chunks", "hashes"])
async def test_who_found_its_own_state_wrong_gives_nothing_of_it_and_keeps_nothing_for_who_asks(
    kind: str, autojump_clock: Clock
) -> None:
    async with one_service(_two_commits) as (world, life, _):
        chain, asker = life.service.chain, world.parties[1]
        request: FetchRequest = {
            "offers": FetchState(UNIT, 0, 0, b""),
            "chunks": FetchState(UNIT, 0, 1, chain.head.commit),
            "hashes": FetchHashes(UNIT, chain.head.commit),
        }[kind]
        pinned: list[CommitId] = []
        chain.tools.generations.pin = lambda commit, now_s: pinned.append(commit)  # type: ignore[method-assign]
        chain.is_sound = False  # without its event: the healer must not make it good at once
        assert await ask_all(asker.network, life.party.peer, request, 1 << 20) == []
        assert pinned == []
        chain.is_sound = True
        assert await ask_all(asker.network, life.party.peer, request, 1 << 20) != []


# --- why ----------------------------------------------------------------------------------------------------------------------


async def test_what_a_round_waits_for_is_logged_once_for_each_change_and_not_at_each_tick(
    autojump_clock: Clock,
) -> None:
    with capture_logs() as said:
        async with one_service() as (_, life, _):
            await trio.sleep(30.0)
            waiting = life.service.waiting
    waits = [str(entry["reason"]) for entry in said if entry["event"] == "round_waits"]
    assert waits[-1] == waiting
    assert "ready tokens" in waiting
    assert len(waits) == len(set(waits)) <= 2
    assert {entry["log_level"] for entry in said if entry["event"] == "round_waits"} == {"info"}


async def test_a_changed_reason_of_a_round_is_told_once_for_each_change_with_its_orders_beside_it(
    autojump_clock: Clock,
) -> None:
    with capture_logs() as said:
        async with _swarm() as (_, lives, _):
            await until(lambda: min(life.index for life in lives) >= 2)
            me = peer_name(lives[0].party.peer)
    for event in ("round", "round_waits"):
        reported = [str(entry["reason"]) for entry in said if entry["event"] == event and entry["peer"] == me]
        assert reported
        assert all(before != after for before, after in itertools.pairwise(reported))
    orders = [entry for entry in said if entry["event"] == "round_order"]
    assert {"LogAck", "GatherBytes", "Commit", "BeginExchange"} <= {str(entry["order"]) for entry in orders}
    assert all(entry["reason"] and entry["log_level"] == "debug" for entry in orders)


async def test_a_refused_message_is_in_the_log_for_who_looks_and_not_in_the_status(autojump_clock: Clock) -> None:
    with capture_logs() as said:
        async with one_service() as (world, life, _):
            await trio.sleep(1.0)
            before = life.service.reason
            asker, other = world.parties[1], world.parties[2]
            request = world.promise_request(Ballot(1, other.peer))
            await tell(asker, life.party, request)
            await life.service.drained()
            assert life.service.reason == before
    (entry,) = [entry for entry in said if "not its own to ask" in str(entry.get("reason"))]
    assert (entry["event"], entry["log_level"]) == ("round_remark", "debug")
