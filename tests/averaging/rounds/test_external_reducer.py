from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL
from averaging.rounds.external_reducer import EXTRA_S, MAX_LENT, ExternalReducer, ExternalReducerContext, UnitShape
from averaging.rounds.lineage.round_context import Tasks
from averaging.rounds.traffic.result_ref import ref_of
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, ask_all, read_request
from protocol.errors import PeerUnreachable
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.messages import Member, Proposal, ResultReady, RoundMessage
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import ExchangeHello, FetchResult
from protocol.rounds.messages.wire import decode_body
from tests.averaging.rounds.exchange_world import Side, contribution_of, hello_of, running, talk
from tests.averaging.rounds.round_world import CODEC, GRID, RUN_ID, UNIT, VERIFIER, Party, RoundWorld, open_world
from tests.averaging.rounds.service_world import until
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
LONGEST_S = 600.0
OTHERS = tuple(UnitName(f"expert-{number}") for number in range(MAX_LENT))


@dataclass
class Scene:
    """Two holders, and a third peer that does not hold the unit and lends itself."""

    world: RoundWorld
    lender: ExternalReducer
    sent: list[tuple[tuple[PeerId, ...], RoundMessage]] = field(default_factory=list)

    @property
    def party(self) -> Party:
        """The lender's."""
        return self.world.parties[2]

    @property
    def holders(self) -> list[Party]:
        return self.world.parties[:2]

    def proposal(self, attempt: int = 0, unit: UnitName = UNIT) -> Proposal:
        """By the first holder: the lender reduces everything."""
        whole = self.world.proposal(((0, 6, 2),), attempt=attempt)
        return replace(whole, unit=unit, members=tuple(party.member for party in self.holders))

    def by_stranger(self, attempt: int) -> Proposal:
        """By a peer of the run that takes no part in those of the holders: the lender reduces everything."""
        stranger = self.world.stranger
        return replace(self.proposal(attempt), ballot=Ballot(attempt, stranger.peer), members=(stranger.member,))

    def without_us(self, proposal: Proposal) -> Proposal:
        """The same, with all slices given to its leader."""
        slices = tuple(replace(part, reducer=proposal.ballot.peer) for part in proposal.slices)
        return replace(proposal, slices=slices)

    def is_reducing(self, unit: UnitName = UNIT) -> bool:
        """Whether it has begun an exchange of that unit."""
        return unit in self.lender._jobs


@asynccontextmanager
async def _scene() -> AsyncIterator[Scene]:
    async with open_world() as world, trio.open_nursery() as nursery:
        tasks = Tasks(lambda _: None)
        tasks.use(nursery)
        party = world.parties[2]
        sent: list[tuple[tuple[PeerId, ...], RoundMessage]] = []

        async def send(to: tuple[PeerId, ...], message: RoundMessage) -> None:
            sent.append((to, message))

        shape = UnitShape(CODEC, GRID, LONGEST_S)
        tools = ExternalReducerContext(
            RUN_ID,
            Member(party.peer, 1, party.session),
            VERIFIER,
            party.network,
            InlineOffload(),
            party.seal,
            send,
            dict.fromkeys((UNIT, *OTHERS), shape),
        )
        lender = ExternalReducer(tools, tasks)

        async def exchange(sender: PeerId, stream: Stream) -> None:
            hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
            await lender.serve_exchange(sender, hello, stream)

        async def fetch(sender: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            assert isinstance(request, FetchResult)
            await lender.serve_result(request, stream)

        party.network.serve_streams(EXCHANGE_CHANNEL, exchange)
        party.network.serve_streams(FETCH_CHANNEL, fetch)
        yield Scene(world, lender, sent)
        nursery.cancel_scope.cancel()


async def test_it_sums_what_the_holders_bring_and_tells_them(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal = scene.proposal()
        scene.lender.take_proposal(scene.holders[0].peer, proposal)
        sides = [Side(party, contribution_of(party, n)) for n, party in enumerate(scene.holders)]
        async with running(sides, proposal):
            await until(lambda: bool(scene.sent), 5.0)
        (to, ready) = scene.sent[0]
        assert isinstance(ready, ResultReady)
        assert to == (proposal.ballot.peer,)
        one, data = sides[0].header(), sides[0].kept[0][1]
        assert sides[1].kept[0] == (ref_of(one), data)
        assert {entry.peer for entry in one.included} == {party.peer for party in scene.holders}
        request = FetchResult(UNIT, proposal.base, 0, 6, one.result_hash)
        assert b"".join(await ask_all(scene.holders[1].network, scene.party.peer, request, 1 << 20)) == data
        nothing = replace(request, result_hash=Root(bytes(32)))
        assert await ask_all(scene.holders[1].network, scene.party.peer, nothing, 1 << 20) == []


@pytest.mark.parametrize("wrong", ["unit", "sender", "stranger", "codec", "result codec", "grid", "nothing for us"])
async def test_what_does_not_fit_the_run_or_asks_for_nothing_is_not_lent_to(wrong: str, autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal, sender = scene.proposal(), scene.holders[0].peer
        mine = proposal.slices[0]
        proposals = {
            "unit": replace(proposal, unit=UnitName("expert-99")),
            "sender": replace(proposal, ballot=Ballot(0, scene.holders[1].peer)),
            "stranger": replace(proposal, members=proposal.members[1:]),
            "codec": replace(proposal, codec="fp16"),
            "result codec": replace(proposal, result_codec="int8"),
            "grid": replace(proposal, slices=(replace(mine, stop_chunk=5),)),
            "nothing for us": replace(proposal, slices=(replace(mine, reducer=sender),)),
        }
        scene.lender.take_proposal(sender, proposals[wrong])
        assert not scene.is_reducing()
        with pytest.raises(PeerUnreachable), trio.fail_after(10.0):
            await talk(scene.holders[0], scene.party, hello_of(proposal, contribution_of(scene.holders[0], 0)), [])


async def test_no_more_units_are_lent_to_at_a_time_than_its_own_can_spare(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        sender = scene.holders[0].peer
        for unit in OTHERS:
            scene.lender.take_proposal(sender, scene.proposal(unit=unit))
        scene.lender.take_proposal(sender, scene.proposal())
        assert all(map(scene.is_reducing, OTHERS))
        assert not scene.is_reducing()
        await trio.sleep(scene.proposal().reduce_within_s + EXTRA_S + 1.0)
        assert not any(map(scene.is_reducing, OTHERS)), "a loan ends by itself"
        scene.lender.take_proposal(sender, scene.proposal())
        assert scene.is_reducing()


async def test_a_loan_ends_when_a_member_says_so_and_not_on_a_strangers_word(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal = scene.proposal()
        scene.lender.take_proposal(scene.holders[0].peer, proposal)
        await trio.sleep(0.5)
        scene.lender.end(scene.party.peer, UNIT, proposal.base)
        await trio.sleep(0.5)
        assert scene.is_reducing()
        scene.lender.end(scene.holders[1].peer, UNIT, proposal.base)
        await trio.sleep(0.5)
        assert not scene.is_reducing()


async def test_no_loan_lasts_longer_than_a_round_may(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal = scene.proposal()
        scene.lender.take_proposal(scene.holders[0].peer, replace(proposal, reduce_within_s=86400.0))
        await trio.sleep(LONGEST_S + EXTRA_S - 1.0)
        assert scene.is_reducing()
        await trio.sleep(2.0)
        assert not scene.is_reducing()


async def test_a_mended_proposal_gives_a_loan_its_time_anew(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal, sender = scene.proposal(), scene.holders[0].peer
        scene.lender.take_proposal(sender, proposal)
        lasts_s = proposal.reduce_within_s + EXTRA_S
        await trio.sleep(lasts_s - 1.0)
        scene.lender.take_proposal(sender, proposal)
        await trio.sleep(lasts_s - 1.0)
        assert scene.is_reducing()
        await trio.sleep(2.0)
        assert not scene.is_reducing()


@pytest.mark.parametrize(
    ("again_s", "closes_s"), [((60.0,), 60.0), ((1.0,), 10.0), ((60.0, 1.0), 60.0), ((86400.0,), LONGEST_S)]
)
async def test_a_slice_that_is_lent_waits_longer_where_the_leader_says_so_and_never_less(
    again_s: tuple[float, ...], closes_s: float, autojump_clock: Clock
) -> None:
    async with _scene() as scene:
        proposal, sender = replace(scene.proposal(), reduce_within_s=10.0), scene.holders[0].peer
        began_s = trio.current_time()
        scene.lender.take_proposal(sender, proposal)
        for within_s in again_s:
            await trio.sleep(1.0)
            scene.lender.take_proposal(sender, replace(proposal, reduce_within_s=within_s))
        async with running([Side(scene.holders[0], contribution_of(scene.holders[0], 0))], proposal):
            await until(lambda: bool(scene.sent), 2 * LONGEST_S)
            assert trio.current_time() - began_s == pytest.approx(closes_s, abs=1.0)


async def test_a_loan_of_which_nothing_is_left_ends(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal, sender = scene.proposal(), scene.holders[0].peer
        scene.lender.take_proposal(sender, proposal)
        await trio.sleep(0.5)
        assert scene.is_reducing()
        scene.lender.take_proposal(sender, replace(proposal, slices=(replace(proposal.slices[0], reducer=sender),)))
        await trio.sleep(0.5)
        assert not scene.is_reducing()


@pytest.mark.parametrize("asks_us", [True, False], ids=["asks us", "asks nothing of us"])
async def test_a_proposal_of_who_takes_no_part_on_another_base_leaves_a_loan_alone(
    asks_us: bool, autojump_clock: Clock
) -> None:
    async with _scene() as scene:
        first = scene.proposal()
        scene.lender.take_proposal(scene.holders[0].peer, first)
        await trio.sleep(0.5)
        other = replace(scene.by_stranger(7), base=CommitId(b"?" * 32))
        scene.lender.take_proposal(other.ballot.peer, other if asks_us else scene.without_us(other))
        await trio.sleep(0.5)
        assert scene.lender._jobs[UNIT].exchange.proposal == first
        sides = [Side(party, contribution_of(party, n)) for n, party in enumerate(scene.holders)]
        async with running(sides, first):
            pass
        assert len(sides[0].header().included) == len(scene.holders)


async def test_a_stranger_who_knows_the_base_cannot_end_a_loan(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.lender.take_proposal(scene.holders[0].peer, scene.proposal())
        await trio.sleep(0.5)
        later = scene.without_us(scene.by_stranger(7))
        scene.lender.take_proposal(later.ballot.peer, later)
        await trio.sleep(0.5)
        assert scene.is_reducing()


async def test_one_member_on_another_base_that_asks_nothing_does_not_end_it_for_the_others(
    autojump_clock: Clock,
) -> None:
    """It may have gone to another lineage by itself; who takes part and has the commit sends that."""
    async with _scene() as scene:
        first = scene.proposal()
        scene.lender.take_proposal(scene.holders[0].peer, first)
        await trio.sleep(0.5)
        gone = replace(first, base=CommitId(b"?" * 32), ballot=Ballot(0, scene.holders[1].peer))
        scene.lender.take_proposal(scene.holders[1].peer, scene.without_us(gone))
        await trio.sleep(0.5)
        assert scene.lender._jobs[UNIT].exchange.proposal == first


async def test_who_takes_part_takes_the_lender_along_to_the_next_base(autojump_clock: Clock) -> None:
    """The word that the round before was committed may be lost."""
    async with _scene() as scene:
        first = scene.proposal()
        scene.lender.take_proposal(scene.holders[0].peer, first)
        await trio.sleep(0.5)
        following = replace(first, base=CommitId(b"n" * 32), index=2, ballot=Ballot(0, scene.holders[1].peer))
        scene.lender.take_proposal(scene.holders[1].peer, following)
        await trio.sleep(0.5)
        assert scene.lender._jobs[UNIT].exchange.proposal == following


async def test_others_on_another_base_are_lent_to_once_the_loan_is_over(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        first = scene.proposal()
        scene.lender.take_proposal(scene.holders[0].peer, first)
        other = replace(scene.by_stranger(0), base=CommitId(b"?" * 32))
        await trio.sleep(first.reduce_within_s + EXTRA_S + 1.0)
        scene.lender.take_proposal(other.ballot.peer, other)
        assert scene.lender._jobs[UNIT].exchange.proposal == other


async def test_a_later_attempt_may_be_led_by_who_was_out_of_reach_before(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.lender.take_proposal(scene.holders[0].peer, scene.proposal())
        await trio.sleep(0.5)
        later = scene.by_stranger(1)
        scene.lender.take_proposal(later.ballot.peer, later)
        await trio.sleep(0.5)
        assert scene.lender._jobs[UNIT].exchange.proposal == later


async def test_a_later_attempt_takes_over_what_was_brought_and_an_earlier_one_is_refused(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        first, sender = scene.proposal(), scene.holders[0].peer
        scene.lender.take_proposal(sender, first)
        sides = [Side(party, contribution_of(party, n)) for n, party in enumerate(scene.holders)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sides[0].begin(first).run)
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        second = scene.proposal(attempt=1)
        scene.lender.take_proposal(sender, second)
        scene.lender.take_proposal(sender, first)
        assert scene.lender._jobs[UNIT].exchange.proposal == second
        assert scene.lender._jobs[UNIT].offers.get(sender) is not None, "it is not sent again"
        async with running(sides, second):
            pass
        assert len(sides[0].header().included) == len(scene.holders)
