from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.beat_sender import BEAT_CHANNEL
from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL
from averaging.rounds.fetching.gather_results import GATHER_WITHIN_S
from averaging.rounds.head_vector import VECTOR_LOG, HeadVector, Mover
from averaging.rounds.lineage.round_reports import HeadsMoved
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.outbox import GATHER_S, ROUND_CHANNEL
from averaging.rounds.peer_rounds import SAY_AGAIN_AFTER_S
from averaging.rounds.traffic.transfer import ask_all, fetch_commits
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryStorage
from protocol.errors import PeerUnreachable, RemoteProtocolError, StorageError
from protocol.identity.envelope import open_envelope
from protocol.identity.names import peer_name
from protocol.ids import PeerId, UnitName
from protocol.rounds.events import ExchangeMeasured, MessageArrived, PeerLost
from protocol.rounds.lineage.lineage import SpineView, tree_of
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.bundle import decode_bundle, encode_bundle, is_bundle
from protocol.rounds.messages.heartbeat_delta import SAY_WHOLE, encode_short, report_digest
from protocol.rounds.messages.messages import (
    Committed,
    Heartbeat,
    Leave,
    Promise,
    PromiseRequest,
    Proposal,
    RoundMessage,
)
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import ExchangeHello, FetchResult
from protocol.rounds.messages.wire import decode_message, encode_body, encode_certificate, encode_message
from protocol.rounds.orders import SendHeartbeat
from protocol.rounds.state import Leading
from protocol.rounds.telling import own_heartbeat
from protocol.rounds.voting import LEAVE_VERSION
from tests.averaging.rounds.round_world import RUN_ID, UNIT, VERIFIER, Party, RoundWorld, open_world, raws_of
from tests.averaging.rounds.service_world import NEVER_DUE, listen, of_kind, proposal_by, tell, tell_raw, until
from tests.averaging.rounds.units_world import (
    BOTH,
    SIDE,
    Sides,
    UnitsLife,
    apply_to,
    chain_of,
    heads_at,
    make_sides,
    serve_units,
    start_of,
    storage_of,
    two_units,
    units_life,
)

Clock = trio.testing.MockClock
NOT_HELD = UnitName("fragment-9")
QUIET_S = 1000.0
"""Between two heartbeats, where a test wants none but its own."""


# --- heartbeats ---------------------------------------------------------------------------------------------------------------


async def test_one_heartbeat_tells_where_all_units_stand(autojump_clock: Clock) -> None:
    async with two_units() as life:
        await until(lambda: len(of_kind(Heartbeat, life.heard)) >= 3, 10.0)
        for message in of_kind(Heartbeat, life.heard):
            assert [head.unit for head in message.heads] == sorted(BOTH)


async def test_two_units_together_send_no_more_heartbeats_than_one(autojump_clock: Clock) -> None:
    async with two_units() as life:
        await trio.sleep(20.0)
        assert 5 <= len(of_kind(Heartbeat, life.heard)) <= 9, "one unit says 7 while its round is far away"


async def test_a_heartbeat_tells_of_the_slowest_upload_of_any_unit(autojump_clock: Clock) -> None:
    async with two_units() as life:
        await life.services[UNIT].tell(ExchangeMeasured(1.0))
        await life.services[SIDE].tell(ExchangeMeasured(2.5))
        life.heard.clear()
        await trio.sleep(3.0)
        assert {message.exchange_ms for message in of_kind(Heartbeat, life.heard)[1:]} == {2500}


async def test_heartbeats_after_the_first_are_short_until_the_whole_is_asked_for(
    autojump_clock: Clock,
) -> None:
    async with two_units() as life:
        other, short, answers = life.world.parties[1], list[bytes](), [SAY_WHOLE]

        async def take(sender: PeerId, request: bytes) -> bytes:
            short.append(request)
            return answers.pop() if answers else b""

        other.network.serve_calls(BEAT_CHANNEL, take)

        def whole() -> list[Heartbeat]:
            return of_kind(Heartbeat, life.heard)

        await until(lambda: len(short) == 4, 10.0)
        assert len(whole()) == 2, "the first, and the one that was asked for"
        assert {len(raw) for raw in short} == {12 + 8 * len(BOTH)}
        await life.services[UNIT].tell(ExchangeMeasured(1.0))
        await until(lambda: len(short) == 6, 10.0)
        assert [len(raw) for raw in short[4:]] == [24 + 57 * len(BOTH), 12 + 8 * len(BOTH)], "what changed is told once"
        assert len(whole()) == 2


async def test_a_short_heartbeat_is_heard_as_the_whole_one_that_it_is_like(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        word = heads_at(other, *(start_of(life.world, unit) for unit in BOTH))
        now = replace(word, heads=tuple(replace(head, tokens_ready=700) for head in word.heads))

        async def say(number: int) -> bytes:
            raw = encode_short(now, report_digest(now), number)
            return await other.network.call(life.party.peer, BEAT_CHANNEL, raw, timeout_s=2.0)

        assert await say(1) == SAY_WHOLE
        await tell(other, life.party, word)
        assert await say(2) == b""
        for unit in BOTH:
            await life.services[unit].drained()
            head = life.services[unit].state.peers[other.peer].head
            assert head is not None
            assert head.tokens_ready == 700


@dataclass
class Beats:
    """Peer rounds whose heartbeats are noted and not sent."""

    life: UnitsLife
    sent: list[tuple[PeerId, ...]]

    @property
    def peers(self) -> list[PeerId]:
        return [party.peer for party in self.life.world.parties[1:]]

    async def beat(self, unit: UnitName, *to: PeerId, is_question: bool = False) -> list[tuple[PeerId, ...]]:
        """To whom the unit's heartbeat goes."""
        self.sent.clear()
        heartbeat = own_heartbeat(self.life.services[unit].state, trio.current_time())
        await self.life.rounds.send_heartbeat(unit, SendHeartbeat(to, heartbeat, is_question))
        return list(self.sent)


@asynccontextmanager
async def _beats() -> AsyncIterator[Beats]:
    async with two_units(is_running=False) as life:
        beats = Beats(life, [])

        async def note(to: tuple[PeerId, ...], heartbeat: Heartbeat) -> None:
            beats.sent.append(to)

        life.rounds._beat_sender.send = note  # type: ignore[method-assign]
        yield beats


async def test_a_regular_heartbeat_is_spared_for_half_an_interval_after_that_of_another_unit(
    autojump_clock: Clock,
) -> None:
    async with _beats() as beats:
        one, two = beats.peers
        assert await beats.beat(UNIT, one) == [(one,)]
        await trio.sleep(0.4)
        assert await beats.beat(SIDE, one) == []
        assert await beats.beat(SIDE, one, two) == [(two,)], "only whoever was told is spared"
        await trio.sleep(0.2)
        assert await beats.beat(SIDE, one) == [(one,)]


async def test_a_unit_is_not_spared_for_its_own_heartbeat(autojump_clock: Clock) -> None:
    async with _beats() as beats:
        one, _ = beats.peers
        assert await beats.beat(UNIT, one) == [(one,)]
        assert await beats.beat(UNIT, one) == [(one,)]


async def test_a_question_is_never_spared_and_spares_the_next_regular_one(autojump_clock: Clock) -> None:
    async with _beats() as beats:
        one, _ = beats.peers
        assert await beats.beat(UNIT, one) == [(one,)]
        assert await beats.beat(SIDE, one, is_question=True) == [(one,)]
        assert await beats.beat(UNIT, one) == []


async def test_in_an_exchange_of_any_unit_heartbeats_are_spared_for_half_of_the_shorter_interval(
    autojump_clock: Clock,
) -> None:
    async with _beats() as beats:
        one, _ = beats.peers
        service = beats.life.services[UNIT]
        opened = replace(service.state.open, exchange=Ballot(0, one))
        service._state = replace(service.state, open=opened)
        await beats.beat(UNIT, one)
        await trio.sleep(0.15)
        assert await beats.beat(SIDE, one) == []
        await trio.sleep(0.1)
        assert await beats.beat(SIDE, one) == [(one,)]


# --- what a leader says -------------------------------------------------------------------------------------------------------


@dataclass
class Starting:
    """A member that turns away what it hears so many times, as one that is just starting does, while we lead an attempt."""

    life: UnitsLife
    num_refusals: int
    heard: list[RoundMessage]

    @property
    def proposal(self) -> Proposal:
        return proposal_by(self.life.world, 0)

    def lead(self, ballot: Ballot | None) -> None:
        service = self.life.services[UNIT]
        leading = None if ballot is None else Leading(ballot, "collecting", trio.current_time() + QUIET_S)
        service._state = replace(service.state, open=replace(service.state.open, leading=leading))

    async def take(self, _: PeerId, request: bytes) -> bytes:
        self.heard.append(
            decode_message(
                open_envelope(request, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None).payload
            )
        )
        if len(self.heard) <= self.num_refusals:
            raise RemoteProtocolError("a peer that we cannot ask yet", "a member")
        return b""


@asynccontextmanager
async def _starting(num_refusals: int) -> AsyncIterator[Starting]:
    async with two_units(heartbeat_s=QUIET_S) as life:
        member = Starting(life, num_refusals, [])
        life.world.parties[2].network.serve_calls(ROUND_CHANNEL, member.take)
        member.lead(member.proposal.ballot)
        await life.rounds.send((life.world.parties[2].peer,), member.proposal)
        yield member


async def test_a_proposal_is_said_again_to_a_member_that_turned_it_away_until_it_takes_it(
    autojump_clock: Clock,
) -> None:
    async with _starting(num_refusals=2) as member:
        await trio.sleep(1.0)
        assert of_kind(Proposal, member.heard) == [member.proposal] * 3
        await trio.sleep(QUIET_S / 10)
        assert len(of_kind(Proposal, member.heard)) == 3, "once it was taken it is not said again"


async def test_a_proposal_is_not_said_again_once_its_attempt_is_over(autojump_clock: Clock) -> None:
    async with _starting(num_refusals=1000) as member:
        await until(lambda: len(member.heard) == 2, 2.0)
        member.lead(None)
        await trio.sleep(QUIET_S / 10)
        assert len(of_kind(Proposal, member.heard)) == 2


async def test_a_member_that_never_takes_what_its_leader_says_is_told_a_few_times_and_no_more(
    autojump_clock: Clock,
) -> None:
    async with _starting(num_refusals=1000) as member:
        await trio.sleep(QUIET_S / 10)
        assert len(of_kind(Proposal, member.heard)) == 1 + len(SAY_AGAIN_AFTER_S)


# --- several units in one call ------------------------------------------------------------------------------------------------


@dataclass
class Meeting:
    """Both units at a peer whose rounds are due or are not, beside members that note each call and what is in it."""

    life: UnitsLife
    calls: dict[PeerId, list[tuple[RoundMessage, ...]]]
    came_s: list[float]

    @property
    def others(self) -> tuple[PeerId, ...]:
        return tuple(party.peer for party in self.life.world.parties[1:])

    def make_due(self, *units: UnitName) -> None:
        for unit in units:
            service = self.life.services[unit]
            service._state = replace(service.state, open=replace(service.state.open, due_since_s=trio.current_time()))

    def message(self, unit: UnitName) -> PromiseRequest:
        return PromiseRequest(unit, self.life.world.genesis.head, Ballot(1, self.life.party.peer))

    async def say_both(self) -> float:
        """One message of each unit to all others; when it was said."""
        said_s = trio.current_time()
        for unit in BOTH:
            await self.life.rounds.send(self.others, self.message(unit))
        await trio.sleep(1.0)
        return said_s

    def noted(self, peer: PeerId, is_old: bool = False) -> Callable[[PeerId, bytes], Awaitable[bytes]]:
        """A handler of calls to this peer."""

        async def take(_: PeerId, request: bytes) -> bytes:
            self.came_s.append(trio.current_time())
            if is_old and is_bundle(request):
                raise RemoteProtocolError("an envelope for b'potluck bundle'", "'potluck round'")
            raws = decode_bundle(request) if is_bundle(request) else (request,)
            opened = (
                open_envelope(raw, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None)
                for raw in raws
            )
            said = [decode_message(envelope.payload) for envelope in opened]
            # in a moment that they share the units come in any order
            said.sort(key=lambda message: "" if isinstance(message, Heartbeat) else message.unit)
            self.calls.setdefault(peer, []).append(tuple(said))
            return b""

        return take


@asynccontextmanager
async def _meeting() -> AsyncIterator[Meeting]:
    async with two_units(heartbeat_s=QUIET_S) as life:
        meeting = Meeting(life, {}, [])
        for party in life.world.parties[1:]:
            party.network.serve_calls(ROUND_CHANNEL, meeting.noted(party.peer))
        yield meeting


async def test_what_two_units_with_the_same_members_say_while_both_are_due_takes_one_call_a_member(
    autojump_clock: Clock,
) -> None:
    async with _meeting() as meeting:
        meeting.make_due(*BOTH)
        await meeting.say_both()
        both = tuple(meeting.message(unit) for unit in BOTH)
        assert meeting.calls == {peer: [both] for peer in meeting.others}, "two calls where there were four"


async def test_where_no_other_unit_is_due_messages_go_at_once_and_alone(autojump_clock: Clock) -> None:
    async with _meeting() as meeting:
        latency_s = 1.2 * meeting.life.world.swarm.delay_s(meeting.others[0], meeting.others[1], 1000)
        meeting.make_due(UNIT)
        said_s = await meeting.say_both()
        of_unit, of_side = ((meeting.message(unit),) for unit in BOTH)
        for calls in meeting.calls.values():
            assert sorted(calls, key=str) == sorted([of_unit, of_side], key=str)
        assert max(meeting.came_s) <= said_s + latency_s + GATHER_S
        assert min(meeting.came_s) <= said_s + latency_s, "the unit that is due alone waits for nobody"


async def test_a_goodbye_of_all_units_is_one_call_a_peer(autojump_clock: Clock) -> None:
    async with _meeting() as meeting:
        await meeting.life.rounds.leave()
        for peer in meeting.others:
            (said,) = meeting.calls[peer]
            assert sorted(message.unit for message in of_kind(Leave, said)) == sorted(BOTH)


async def test_a_member_of_an_older_release_hears_both_units_one_after_the_other(autojump_clock: Clock) -> None:
    async with _meeting() as meeting:
        old = meeting.life.world.parties[2]
        old.network.serve_calls(ROUND_CHANNEL, meeting.noted(old.peer, is_old=True))
        meeting.make_due(*BOTH)
        await meeting.say_both()
        alone = [(meeting.message(unit),) for unit in BOTH]
        assert sorted(meeting.calls[old.peer], key=str) == sorted(alone, key=str)
        assert len(meeting.calls[meeting.others[0]]) == 1


async def test_a_peer_takes_what_another_bundled_for_its_units(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[1]
        requests = [life.world.promise_request(Ballot(9, other.peer), unit=unit) for unit in BOTH]
        await tell_raw(other, life.party, encode_bundle([other.sign(encode_message(each)) for each in requests]))
        await until(lambda: len(of_kind(Promise, life.heard)) == 2, 5.0)
        assert sorted(promise.unit for promise in of_kind(Promise, life.heard)) == sorted(BOTH)


# --- signs of life ------------------------------------------------------------------------------------------------------------


async def test_a_refused_connection_and_an_answer_are_told_to_all_units(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        message = PromiseRequest(NOT_HELD, life.world.genesis.head, Ballot(1, life.party.peer))

        def lost() -> list[bool]:
            return [life.services[unit].state.peers[other.peer].lost for unit in BOTH]

        life.world.swarm.kill(other.peer)
        await life.rounds.send((other.peer,), message)
        await until(lambda: lost() == [True, True], 3.0)
        other.boot()
        listen(other)
        await life.rounds.send((other.peer,), message)
        await until(lambda: lost() == [False, False], 3.0)


def _break_then(life: UnitsLife, other: Party, serve: Callable[[], None]) -> None:
    """The next call's connection breaks, and a new process is there at once, which serves."""

    async def break_it(_sender: PeerId, _request: bytes) -> bytes:
        life.world.swarm.kill(other.peer)
        other.boot()
        serve()
        await trio.sleep_forever()

    other.network.serve_calls(ROUND_CHANNEL, break_it)


async def test_a_member_whose_connection_broke_is_asked_again_before_it_is_lost(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        message = PromiseRequest(NOT_HELD, life.world.genesis.head, Ballot(1, life.party.peer))
        heard: list[list[RoundMessage]] = []
        _break_then(life, other, lambda: heard.append(listen(other)))
        await life.rounds.send((other.peer,), message)
        await trio.sleep(1.0)
        assert heard == [[message]], "the process that is there now has it"
        assert not any(life.services[unit].state.peers[other.peer].lost for unit in BOTH)


async def test_a_member_whose_connections_break_again_and_again_is_not_lost_for_that_and_who_refuses_is(
    autojump_clock: Clock,
) -> None:
    """On a machine that did not keep up libp2p reset calls to living processes, twice in a row as well."""
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        message = PromiseRequest(NOT_HELD, life.world.genesis.head, Ballot(1, life.party.peer))

        def lost() -> list[bool]:
            return [life.services[unit].state.peers[other.peer].lost for unit in BOTH]

        _break_then(life, other, lambda: _break_then(life, other, lambda: None))
        await life.rounds.send((other.peer,), message)
        await trio.sleep(1.0)
        assert lost() == [False, False]
        life.world.swarm.kill(other.peer)
        await life.rounds.send((other.peer,), message)
        await trio.sleep(1.0)
        assert lost() == [True, True]


async def test_a_leader_says_again_what_a_member_behind_a_broken_connection_turned_away(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other, member = life.world.parties[2], Starting(life, 1, [])
        proposal = member.proposal
        _break_then(life, other, lambda: other.network.serve_calls(ROUND_CHANNEL, member.take))
        member.lead(proposal.ballot)
        await life.rounds.send((other.peer,), proposal)
        await trio.sleep(QUIET_S / 10)
        assert member.heard == [proposal] * 2


async def test_what_is_waited_for_has_arrived_behind_a_broken_connection_too(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        message = PromiseRequest(NOT_HELD, life.world.genesis.head, Ballot(1, life.party.peer))
        heard: list[list[RoundMessage]] = []
        _break_then(life, other, lambda: heard.append(listen(other)))
        await life.rounds.send_and_wait((other.peer,), message)
        assert heard == [[message]]


async def test_an_answer_to_a_heartbeat_is_a_sign_of_life_also_seconds_later(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    """On a line of 1 Mbit/s full of bulk they took up to 3 s; beyond 2 s they were not heard, and a living peer was taken for dead."""
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]

        async def late(_sender: PeerId, _request: bytes) -> bytes:
            await trio.sleep(4.0)
            return b""

        answered: list[PeerId] = []
        other.network.serve_calls(ROUND_CHANNEL, late)
        monkeypatch.setattr(life.services[UNIT], "note_answer", answered.append)
        await life.rounds.send((other.peer,), own_heartbeat(life.services[UNIT].state, trio.current_time()))
        await until(lambda: answered == [other.peer], 5.0)


async def test_a_heartbeat_is_a_sign_of_life_for_all_units_also_for_one_that_it_does_not_name(
    autojump_clock: Clock,
) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        await trio.sleep(5.0)
        now_s = trio.current_time()
        await tell(other, life.party, heads_at(other, start_of(life.world, UNIT)))
        await trio.sleep(0.5)
        for unit in BOTH:
            await life.services[unit].drained()  # with the next event at the latest
            view = life.services[unit].state.peers[other.peer]
            assert (view.heard_at_s >= now_s, view.member) == (True, other.member)
            assert (view.head is not None) == (unit == UNIT)


async def test_a_heartbeat_that_says_again_what_is_known_is_told_with_the_next_event(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        word = heads_at(other, *(start_of(life.world, unit) for unit in BOTH))

        async def heard_at_s() -> set[float]:
            await trio.sleep(0.5)
            return {life.services[unit].state.peers[other.peer].heard_at_s for unit in BOTH}

        await tell(other, life.party, word)
        (first_s,) = await heard_at_s()
        await trio.sleep(5.0)
        await tell(other, life.party, word)
        assert await heard_at_s() == {first_s}, "no turn of the machine for this"
        for unit in BOTH:
            await life.services[unit].drained()
        (second_s,) = await heard_at_s()
        assert first_s + 5.0 < second_s < trio.current_time() - 0.5, "heard when it came, not when it was told"


async def test_a_heartbeat_of_a_peer_that_was_taken_for_dead_is_told_at_once(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        other = life.world.parties[2]
        word = heads_at(other, *(start_of(life.world, unit) for unit in BOTH))
        await tell(other, life.party, word)
        for unit in BOTH:
            await life.services[unit].tell(PeerLost(other.peer))
        await trio.sleep(0.5)
        assert all(life.services[unit].state.peers[other.peer].lost for unit in BOTH)
        await tell(other, life.party, word)
        await trio.sleep(0.5)
        assert not any(life.services[unit].state.peers[other.peer].lost for unit in BOTH)


async def test_a_banned_peer_is_lost_to_all_units_whatever_it_answers(autojump_clock: Clock) -> None:
    banned: set[PeerId] = set()
    async with two_units(heartbeat_s=QUIET_S, is_banned=banned.__contains__) as life:
        other = life.world.parties[2]
        heard = listen(other)
        message = PromiseRequest(NOT_HELD, life.world.genesis.head, Ballot(1, life.party.peer))
        await life.rounds.send((other.peer,), message)
        await until(lambda: len(heard) == 1, 3.0)
        banned.add(other.peer)
        await life.rounds.send((other.peer,), message)
        await until(lambda: all(life.services[unit].state.peers[other.peer].lost for unit in BOTH), 3.0)
        await trio.sleep(1.0)
        assert len(heard) == 1
        assert all(life.services[unit].state.peers[other.peer].lost for unit in BOTH)


async def test_leaving_says_goodbye_for_every_unit(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        await trio.sleep(1.0)
        await life.rounds.leave()
        said = of_kind(Leave, life.heard)
        assert sorted(said, key=lambda leave: leave.unit) == [
            Leave(life.party.member, unit, life.world.genesis.head, version=LEAVE_VERSION) for unit in sorted(BOTH)
        ]


# --- by unit ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", BOTH)
async def test_a_message_reaches_the_unit_that_it_is_about_and_no_other(unit: UnitName, autojump_clock: Clock) -> None:
    """The base is no help: the start of the run is the base of all units."""
    async with two_units(heartbeat_s=QUIET_S) as life:
        await life.assert_answers(unit)
        (other,) = set(BOTH) - {unit}
        assert life.services[unit].state.open.promised is not None
        assert life.services[other].state.open.promised is None
        assert [promise.unit for promise in of_kind(Promise, life.heard)] == [unit]


async def test_a_message_about_a_unit_that_is_not_held_is_taken_and_nobody_answers_it(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        asker = life.world.parties[1]
        await tell(asker, life.party, life.world.promise_request(Ballot(3, asker.peer), unit=NOT_HELD))
        await trio.sleep(3.0)
        assert life.heard == []
        for unit in BOTH:
            assert life.services[unit].state.open.promised is None
            await life.assert_answers(unit)


async def test_commits_of_each_unit_are_served_and_of_one_that_is_not_held_nothing_is(autojump_clock: Clock) -> None:
    async with open_world(target_tokens=NEVER_DUE, units=BOTH) as world:
        spine = world.commits(2)
        side = [world.commit_on(start_of(world, SIDE), 7, spine=spine[0].link.commit)]
        await apply_to(chain_of(world.parties[0], UNIT), *spine)
        await apply_to(chain_of(world.parties[0], SIDE), *side)
        async with units_life(world) as life:
            asker, known = world.parties[1], [world.genesis.head]
            for unit, made in ((UNIT, spine), (SIDE, side)):
                raws = await fetch_commits(asker.network, life.party.peer, unit, known)
                assert raws == raws_of(life.chains[unit])
                assert len(raws) == len(made)
            assert await fetch_commits(asker.network, life.party.peer, NOT_HELD, known) == []


async def test_where_a_peer_stands_is_known_by_what_it_asked_with_once_it_has_the_bytes(autojump_clock: Clock) -> None:
    async with open_world(target_tokens=NEVER_DUE, units=BOTH) as world:
        spine = world.commits(2)
        await apply_to(chain_of(world.parties[0], UNIT), *spine)
        async with units_life(world) as life:
            asker, genesis, head = world.parties[1], world.genesis.head, spine[1].link.commit
            for known, found in (((genesis,), None), ((spine[0].link.commit, genesis), spine[0].link.commit)):
                await fetch_commits(asker.network, life.party.peer, UNIT, known)
                assert life.rounds.stood_at(asker.peer, UNIT) == found
            await fetch_commits(asker.network, life.party.peer, UNIT, (head,))  # verified, and nothing more
            assert life.rounds.stood_at(asker.peer, UNIT) == spine[0].link.commit
            await fetch_commits(asker.network, life.party.peer, NOT_HELD, (head, genesis))
            assert life.rounds.stood_at(asker.peer, NOT_HELD) is None
            assert life.rounds.stood_at(world.parties[2].peer, UNIT) is None


async def test_an_exchange_of_a_unit_that_is_not_held_is_reset(autojump_clock: Clock) -> None:
    async with two_units() as life:
        member = life.world.parties[1]
        stream = await member.network.open_stream(life.party.peer, EXCHANGE_CHANNEL, timeout_s=1.0)
        hello = ExchangeHello(NOT_HELD, life.world.genesis.head, Ballot(0, member.peer), 0, b"", b"")
        await stream.send_frame(encode_body(hello))
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await stream.receive_frame()
        await life.assert_answers(SIDE)


# --- who is heard -------------------------------------------------------------------------------------------------------------


async def test_a_repeated_message_is_refused_for_all_units_together(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        sender = life.world.parties[1]
        request = life.world.promise_request(Ballot(2, sender.peer), unit=SIDE)
        raw = sender.sign(encode_message(request))
        await tell_raw(sender, life.party, raw)
        with pytest.raises(RemoteProtocolError, match="repeated"):
            await tell_raw(sender, life.party, raw)
        await trio.sleep(1.0)
        assert len(of_kind(Promise, life.heard)) == 1


async def test_what_is_said_in_anothers_name_reaches_no_unit(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        sender, other = life.world.parties[1:]
        leave = Leave(other.member, SIDE, life.world.genesis.head)
        with pytest.raises(RemoteProtocolError, match="another's name"):
            await tell(sender, life.party, heads_at(other, start_of(life.world, SIDE)))
        with pytest.raises(RemoteProtocolError, match="another's name"):
            await tell(sender, life.party, leave)
        with pytest.raises(RemoteProtocolError, match="its own messages"):
            await tell_raw(sender, life.party, other.sign(encode_message(leave)))
        await trio.sleep(0.5)
        for unit in BOTH:
            view = life.services[unit].state.peers[other.peer]
            assert (view.left, view.member) == (False, None)


# --- the spine ----------------------------------------------------------------------------------------------------------------


async def test_a_commit_of_the_spine_is_known_to_the_other_units(autojump_clock: Clock) -> None:
    async with two_units() as life:
        made, donor = life.world.commits(1)[0], life.world.parties[1]
        assert life.services[SIDE].state.spine is not None
        await made.write_to(life.chains[UNIT].tools.log)
        await tell(donor, life.party, Committed(UNIT, made.certificate))
        await until(lambda: life.chains[UNIT].head == made.link, 5.0)
        await until(lambda: life.services[SIDE].state.run_tokens == made.link.total_tokens, 2.0)
        assert life.services[UNIT].state.spine is None


async def test_a_unit_hears_that_the_spine_moved_without_waiting_for_an_event_of_its_own(
    autojump_clock: Clock,
) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        (made,) = life.world.commits(1)
        tree = tree_of(start_of(life.world, UNIT)).add(made.link, made.certificate)
        await trio.sleep(1.0)
        life.rounds.spine_moved(SpineView(made.link.commit, tree))
        await trio.sleep(0.001)
        assert life.services[SIDE].state.run_tokens == made.link.total_tokens
        assert life.services[UNIT].state.link == start_of(life.world, UNIT)


async def test_a_unit_hears_where_the_spine_went_before_any_event_that_comes_after_it(autojump_clock: Clock) -> None:
    async with two_units(heartbeat_s=QUIET_S) as life:
        sides, opener = make_sides(life.world, UNIT), life.world.parties[1]
        tree = tree_of(start_of(life.world, UNIT))
        for made in (sides.agreed, sides.ours, *sides.theirs):
            tree = tree.add(made.link, made.certificate)
        proposal = replace(proposal_by(life.world, 1, attempt=1), unit=SIDE, spine=sides.ours.link.commit)
        proposal = replace(proposal, pre_votes=life.world.consents(proposal.ballot, unit=SIDE))
        raw = encode_message(proposal)
        # both in one step of the loop: the machine has not run in between
        life.rounds.spine_moved(SpineView(sides.theirs[-1].link.commit, tree))
        await life.services[SIDE].tell(MessageArrived(opener.peer, proposal, raw))
        await life.services[SIDE].drained()
        assert "another lineage of the spine" in life.services[SIDE].reason
        assert life.services[SIDE].state.open.proposal is None


@dataclass
class Donors:
    """The other two parties on their side of both units' forks, serving all of it."""

    world: RoundWorld
    sides: Mapping[UnitName, Sides]
    chains: Mapping[UnitName, UnitChain]

    async def beat(self, life: UnitsLife, *units: UnitName) -> None:
        """The first of them says where it stands."""
        donor = self.world.parties[1]
        await tell(donor, life.party, heads_at(donor, *(self.chains[unit].head for unit in units or BOTH)))

    def stand(self, life: UnitsLife, side: str) -> list[bool]:
        """Whether each held unit is on this side, in memory and in its machine."""
        expected = {u: (s.ours if side == "ours" else s.theirs[-1]).link for u, s in self.sides.items()}
        return [service.chain.head == service.state.link == expected[unit] for unit, service in life.services.items()]


@asynccontextmanager
async def _donors(held: Sequence[UnitName] = BOTH) -> AsyncIterator[Donors]:
    async with open_world(target_tokens=NEVER_DUE, units=BOTH) as world:
        spine = make_sides(world, UNIT)
        sides = {UNIT: spine, SIDE: make_sides(world, SIDE, spine)}
        party, donor = world.parties[:2]
        chains = {unit: chain_of(donor, unit) for unit in BOTH}
        for unit in BOTH:
            await apply_to(chains[unit], sides[unit].agreed, *sides[unit].theirs)
            if unit in held:
                await apply_to(chain_of(party, unit), sides[unit].agreed, sides[unit].ours)
        serve_units(donor, chains)
        yield Donors(world, sides, chains)


async def test_when_the_spine_changes_lineages_all_units_go_with_it_in_one_record(autojump_clock: Clock) -> None:
    async with _donors() as donors, units_life(donors.world) as life:
        assert donors.stand(life, "ours") == [True, True]
        await donors.beat(life)
        await until(lambda: donors.stand(life, "theirs") == [True, True], 30.0)
        assert [report for report in life.reported if isinstance(report, HeadsMoved)] == [HeadsMoved(BOTH)]
        assert len(life.party.disk.logs[VECTOR_LOG]) == 2
        spine = life.services[SIDE].state.spine
        assert spine is not None
        assert spine.head == donors.sides[UNIT].theirs[-1].link.commit
        for unit in BOTH:
            assert life.chains[unit].root == donors.chains[unit].root
            await life.assert_answers(unit)


async def test_after_a_move_every_units_schedule_goes_by_the_tokens_of_the_spine_where_it_went(
    autojump_clock: Clock,
) -> None:
    async with _donors() as donors, units_life(donors.world) as life:
        await donors.beat(life)
        await until(lambda: donors.stand(life, "theirs") == [True, True], 30.0)
        await until(lambda: all(service.has_adopted for service in life.services.values()), 5.0)
        went, left = donors.sides[UNIT].theirs[-1].link, donors.sides[UNIT].ours.link
        assert went.total_tokens != left.total_tokens
        assert [life.trainers[unit].schedule for unit in BOTH] == [went.total_tokens] * 2


async def test_a_unit_alone_is_not_moved_by_others_that_stand_elsewhere_while_the_spine_stays(
    autojump_clock: Clock,
) -> None:
    async with _donors() as donors, units_life(donors.world) as life:
        await donors.beat(life, SIDE)
        await trio.sleep(20.0)
        assert donors.sides[SIDE].theirs[-1].link.commit in life.services[SIDE].state.tree.nodes
        assert donors.stand(life, "ours") == [True, True]


class RefusingVector(HeadVector):
    """Its disk is full the first time."""

    num_moves = 0

    async def move(self, movers: Sequence[Mover]) -> None:
        self.num_moves += 1
        if self.num_moves == 1:
            raise StorageError("no space left on the disk", "some")
        await super().move(movers)


async def test_a_move_that_cannot_be_written_leaves_all_units_where_they_are_until_it_can(
    autojump_clock: Clock,
) -> None:
    async with _donors() as donors:
        vector = RefusingVector(MemoryStorage(donors.world.parties[0].disk))
        async with units_life(donors.world, vector=vector) as life:
            await donors.beat(life)
            await until(lambda: vector.num_moves == 1, 30.0)
            await trio.sleep(2.0)
            assert donors.stand(life, "ours") == [True, True]
            assert [life.services[unit].state.switching for unit in BOTH] == [None, None]
            for unit in BOTH:
                await life.assert_answers(unit)
            await donors.beat(life)
            await until(lambda: donors.stand(life, "theirs") == [True, True], 30.0)


async def test_a_unit_whose_bytes_cannot_be_had_lets_the_spine_go_and_follows_later(autojump_clock: Clock) -> None:
    async with _donors() as donors, units_life(donors.world) as life:
        disk = donors.world.parties[1].disk
        hidden = {name: disk.files[name] for name in list(disk.files) if name.startswith(f"{SIDE}/")}
        for name in hidden:
            del disk.files[name]
        await donors.beat(life)
        await until(lambda: donors.stand(life, "theirs")[0], 30.0 + 2 * GATHER_WITHIN_S)
        assert donors.stand(life, "ours") == [False, True]
        disk.files.update(hidden)
        await donors.beat(life)
        await until(lambda: donors.stand(life, "theirs") == [True, True], 30.0)


# --- without the spine --------------------------------------------------------------------------------------------------------


async def test_who_does_not_hold_the_spine_goes_where_a_holder_says_it_stands(autojump_clock: Clock) -> None:
    async with two_units(held=(SIDE,)) as life:
        made, donor = life.world.commits(2), life.world.parties[1]
        chain = chain_of(donor, UNIT)
        await apply_to(chain, *made)
        serve_units(donor, {UNIT: chain})
        await tell(donor, life.party, heads_at(donor, made[1].link))
        await until(lambda: life.services[SIDE].state.run_tokens == made[1].link.total_tokens, 5.0)
        assert life.rounds.spine is not None
        assert life.rounds.spine.head == made[1].link.commit
        for message in of_kind(Heartbeat, life.heard):
            assert [head.unit for head in message.heads] == [SIDE]


async def test_a_commit_of_the_spine_is_taken_from_whoever_brings_it_and_followed_once_a_holder_stands_there(
    autojump_clock: Clock,
) -> None:
    async with two_units(held=(SIDE,)) as life:
        (made,) = life.world.commits(1)
        teller, holder = life.world.parties[1:]
        await tell(teller, life.party, Committed(UNIT, made.certificate))
        await trio.sleep(2.0)
        assert life.rounds.spine is not None
        assert made.link.commit in life.rounds.spine.tree.nodes
        assert life.rounds.spine.head == life.world.genesis.head
        await tell(holder, life.party, heads_at(holder, made.link))
        await until(lambda: life.services[SIDE].state.run_tokens == made.link.total_tokens, 2.0)


async def test_records_of_the_spine_that_is_only_followed_are_served_and_its_bytes_are_not(
    autojump_clock: Clock,
) -> None:
    async with two_units(held=(SIDE,)) as life:
        (made,), holder = life.world.commits(1), life.world.parties[1]
        await tell(holder, life.party, Committed(UNIT, made.certificate))
        await tell(holder, life.party, heads_at(holder, made.link))
        await until(lambda: life.services[SIDE].state.run_tokens == made.link.total_tokens, 2.0)
        known = [life.world.genesis.head]
        raws = await fetch_commits(holder.network, life.party.peer, UNIT, known)
        assert raws == [encode_certificate(made.certificate)]
        part = made.record.slices[0]
        request = FetchResult(UNIT, made.record.parent, part.first_chunk, part.stop_chunk, part.result_hash)
        assert await ask_all(holder.network, life.party.peer, request, 1 << 20) == []


async def test_peers_that_the_directory_no_longer_names_do_not_decide_about_the_spine(autojump_clock: Clock) -> None:
    async with two_units(held=(SIDE,)) as life:
        (made,), holder = life.world.commits(1), life.world.parties[1]
        await tell(holder, life.party, heads_at(holder, made.link))
        await life.rounds.list_peers((life.party.peer, life.world.parties[2].peer))
        await tell(life.world.parties[2], life.party, Committed(UNIT, made.certificate))
        await trio.sleep(2.0)
        assert life.rounds.spine is not None
        assert life.rounds.spine.head == life.world.genesis.head


async def test_where_the_holders_of_the_spine_went_to_another_lineage_our_units_go_with_them(
    autojump_clock: Clock,
) -> None:
    async with _donors(held=(SIDE,)) as donors:
        party, spine = donors.world.parties[0], donors.sides[UNIT]
        log = UnitLog(storage_of(party, UNIT))
        for made in (spine.agreed, spine.ours):
            await log.log_certificate(made.record.parent, encode_certificate(made.certificate))
        async with units_life(donors.world, held=(SIDE,)) as life:
            assert life.rounds.spine is not None
            assert life.rounds.spine.head == spine.ours.link.commit
            await donors.beat(life)
            await until(lambda: donors.stand(life, "theirs") == [True], 30.0)
            assert life.rounds.spine.head == spine.theirs[-1].link.commit
            assert [report for report in life.reported if isinstance(report, HeadsMoved)] == [HeadsMoved(BOTH)]
        async with units_life(donors.world, held=(SIDE,)) as life:
            assert donors.stand(life, "theirs") == [True]
            assert life.rounds.spine is not None
            assert life.rounds.spine.head == spine.theirs[-1].link.commit


async def test_peer_that_is_gone_is_logged_once_by_its_name_until_it_answers_again(autojump_clock: Clock) -> None:
    async with two_units() as life:
        other = life.world.parties[2].peer
        with capture_logs() as said:
            for reply in (*[PeerUnreachable("refused")] * 3, b"", PeerUnreachable("refused")):
                await life.rounds._note_reply(other, reply)
    gone = [(entry["log_level"], entry["peer"]) for entry in said if entry["event"] == "peer_gone"]
    assert [level for level, _ in gone] == ["info", "debug", "debug", "info"]
    assert {name for _, name in gone} == {peer_name(other)}
