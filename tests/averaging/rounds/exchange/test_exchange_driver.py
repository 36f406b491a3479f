from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.arithmetic.error_feedback import FedDelta
from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange.contribution_sender import OFFER, SEND_ON
from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL
from averaging.rounds.exchange.exchange_driver import (
    FETCHED_WITHIN_S,
    SNAPSHOT_WITHIN_S,
    WAIT_FOR_PROPOSAL_S,
    ExchangeDriver,
)
from averaging.rounds.lineage.round_reports import Contributed
from averaging.state.log_entries import LoggedContribution
from protocol.errors import LocalProtocolError, PeerUnreachable
from protocol.identity.envelope import open_envelope
from protocol.ids import PeerId, Root
from protocol.rounds.bad_results import open_result
from protocol.rounds.events import ContributionFailed, ContributionReady, ExchangeMeasured
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import decode_claim
from protocol.rounds.messages.messages import ResultHeader, ResultReady
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import ContributionHeader, ExchangeHello, StepsTaken
from protocol.rounds.messages.wire import decode_body, encode_body
from tests.averaging.rounds.exchange_world import (
    Side,
    all_frames,
    contribution_of,
    hello_of,
    running,
    talk,
    theta,
)
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    RUN_ID,
    TOKENS,
    UNIT,
    VERIFIER,
    MadeCommit,
    Party,
    RoundWorld,
    open_world,
)
from tests.averaging.rounds.service_world import Bench, bench_in, proposal_by, until, with_feedback

Clock = trio.testing.MockClock


@pytest.fixture(autouse=True, params=[False, True], ids=["encoded at once", "growing"])
def grows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether chunks leave while others are still to be encoded, as those of a long vector do."""
    grows: bool = request.param
    monkeypatch.setattr("averaging.rounds.exchange.exchange_driver.GROWS_FROM_ELEMENTS", GRID.num_elements + 1 - grows)
    return grows


@dataclass
class Scene:
    """The exchanging of the first party; the second is a reducer that notes what comes and never sums it.

    Attributes:
        hellos: what said what is offered.
        ahead: frames of chunks that came before that.
    """

    world: RoundWorld
    bench: Bench
    exchanging: ExchangeDriver
    hellos: list[ExchangeHello]
    ahead: list[bytes]

    @property
    def party(self) -> Party:
        return self.bench.party

    async def logged(self) -> tuple[LoggedContribution, ...]:
        known = (await self.party.log.load()).bases.get(self.party.chain.head.commit)
        return known.contributions if known is not None else ()

    async def commit(self, commit: MadeCommit) -> None:
        """A commit that is applied, and on its way to the trainer."""
        applied = await self.party.apply(commit)
        await self.bench.adopter.commit(commit.link, commit.record, applied, self.exchanging.contribution)

    async def uploaded(self) -> ExchangeMeasured:
        """The reported duration of a whole exchange."""
        self.prepare()
        await self.bench.until_reported(ContributionReady)
        self.exchanging.begin(proposal_by(self.world, 1))
        await until(lambda: bool(self.hellos), 5.0)
        await trio.sleep(8.0)
        self.exchanging.end()
        return await self.bench.until_reported(ExchangeMeasured)

    def prepare(self) -> None:
        """As the machine orders it on its head."""
        self.exchanging.prepare(self.party.chain.head.commit, self.bench.adopter)


def _reduce(party: Party) -> tuple[list[ExchangeHello], list[bytes]]:
    hellos, ahead = list[ExchangeHello](), list[bytes]()

    async def take(sender: PeerId, stream: Stream) -> None:
        hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
        await stream.send_frame(SEND_ON if hello.follows else bytes(GRID.num_chunks))
        while hello.follows:
            frame = await stream.receive_frame()
            if frame == OFFER:
                hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
            else:
                ahead.append(frame or b"")
        hellos.append(hello)
        while await stream.receive_frame() is not None:
            pass

    party.network.serve_streams(EXCHANGE_CHANNEL, take)
    return hellos, ahead


@asynccontextmanager
async def _scene(beta: float = 0.0) -> AsyncIterator[Scene]:
    async with open_world() as world, bench_in(world) as (bench, _):
        if beta:
            with_feedback(bench.party, beta)
        party = bench.party
        exchanging = ExchangeDriver(bench.config, party.chain, bench.tools, bench.tasks, bench.tell, bench.send)

        async def serve(sender: PeerId, stream: Stream) -> None:
            await exchanging.serve(sender, decode_body(ExchangeHello, await stream.receive_frame() or b""), stream)

        party.network.serve_streams(EXCHANGE_CHANNEL, serve)
        bench.trainer.theta_N = theta(1)
        yield Scene(world, bench, exchanging, *_reduce(world.parties[1]))


def _header(hello: ExchangeHello) -> ContributionHeader:
    envelope = open_envelope(
        hello.contribution, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None
    )
    return decode_claim(envelope.payload)


# --- the delta ----------------------------------------------------------------------------------------------------------------


async def test_a_residual_goes_into_the_delta_and_what_the_codec_leaves_of_both_is_pending(
    autojump_clock: Clock,
) -> None:
    async with _scene(beta=0.5) as scene:
        chain, feedback = scene.party.chain, scene.party.chain.tools.feedback
        assert feedback is not None
        left_N = theta(3)
        before = FedDelta((), left_N, (1.0,) * GRID.num_chunks)
        feedback.offer(Root(b"b" * 32), before)
        feedback.switch(feedback.state.counted(Root(b"b" * 32), range(GRID.num_chunks)), chain.head.commit)
        scene.prepare()
        ready = await scene.bench.until_reported(ContributionReady)
        offered, pending = scene.exchanging.contribution, feedback.state.pending
        assert offered is not None
        assert pending is not None
        assert set(pending.roots) == {ready.root}
        sent_N = torch.cat([CODEC.decode(chunk, 10) for chunk in offered.chunks])
        assert torch.equal(sent_N, torch.add(torch.mul(left_N, 0.5), chain.state.anchor_N - theta(1)))
        assert not pending.values_N.any(), "float32 leaves nothing"
        assert torch.equal(feedback.state.residual.values_N, left_N), "until a commit counts it"


async def test_the_root_of_a_contribution_is_on_disk_when_the_machine_hears_of_it(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.bench.trainer.next_step = 7
        scene.prepare()
        ready = await scene.bench.until_reported(ContributionReady)
        assert await scene.logged() == (LoggedContribution(ready.root, TOKENS, 7, 1),)
        assert (ready.base, ready.tokens) == (scene.world.genesis.head, TOKENS)
        assert Contributed(ready.root) in scene.bench.published
        scene.exchanging.begin(proposal_by(scene.world, 1))
        await until(lambda: bool(scene.hellos), 5.0)
        header = _header(scene.hellos[0])
        assert (header.root, header.tokens, header.member) == (ready.root, TOKENS, scene.party.member)
        assert (header.attested, header.attested_root) == (scene.world.genesis.head, scene.party.chain.root)


@pytest.mark.parametrize("num_readers", [1, 2])
async def test_auditors_are_told_the_steps_of_a_contribution_unless_those_of_another_replica_lie_between(
    num_readers: int, autojump_clock: Clock
) -> None:
    async with _scene() as scene:
        scene.bench.trainer.next_step, scene.bench.trainer.num_readers = 7, num_readers
        scene.prepare()
        ready = await scene.bench.until_reported(ContributionReady)
        told = StepsTaken(ready.root, 6, 1) if num_readers == 1 else None
        assert scene.party.chain.offered.steps_of(ready.root) == told


async def test_a_delta_asked_for_while_a_commit_is_being_adopted_waits_for_the_adoption(autojump_clock: Clock) -> None:
    """Or it would be taken from parameters that still stand on the anchor before."""
    async with _scene() as scene:
        trainer, commit = scene.bench.trainer, scene.world.commits(1)[0]
        trainer.hold("shift")
        await scene.commit(commit)
        scene.prepare()
        await trio.sleep(5.0)
        assert (scene.bench.events, "snapshot" in trainer.done) == ([], False)
        trainer.let_go("shift")
        ready = await scene.bench.until_reported(ContributionReady)
        assert ready.base == commit.link.commit
        assert trainer.done[-2:] == ["shift", "snapshot"]
        contribution = scene.exchanging.contribution
        assert contribution is not None
        delta_N = torch.cat([CODEC.decode(chunk, 10) for chunk in contribution.chunks])
        torch.testing.assert_close(delta_N, -theta(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("moment", ["snapshot", "seal"])
async def test_a_head_that_moves_while_the_delta_is_taken_makes_it_fail_and_no_header_leaves(
    moment: str, grows: bool, autojump_clock: Clock
) -> None:
    async with _scene() as scene:
        bench, released = scene.bench, trio.Event()
        scene.exchanging.begin(proposal_by(scene.world, 1))
        if moment == "snapshot":
            bench.trainer.hold("snapshot")
        else:
            bench.sealing = released
        scene.prepare()
        await trio.sleep(1.0)
        await scene.commit(scene.world.commits(1)[0])
        if moment == "snapshot":
            bench.trainer.let_go("snapshot")
        released.set()
        await until(lambda: bool(bench.events), 5.0)
        assert bench.events == [ContributionFailed(scene.world.genesis.head)]
        assert (scene.exchanging.contribution, await scene.logged()) == (None, ())
        await trio.sleep(5.0)
        assert scene.hellos == []
        assert (scene.ahead != []) == (grows and moment == "seal"), "what is encoded leaves, and counts for nothing"


async def test_a_head_that_moves_after_the_delta_was_taken_leaves_no_contribution(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.prepare()
        await scene.bench.until_reported(ContributionReady)
        assert scene.exchanging.contribution is not None
        await scene.commit(scene.world.commits(1)[0])
        assert scene.exchanging.contribution is None


@pytest.mark.parametrize("cause", ["trainer is away", "nothing trained", "not finite", "disk is full"])
async def test_without_a_delta_the_machine_hears_so_and_the_others_are_told_that_nothing_comes(
    cause: str, autojump_clock: Clock
) -> None:
    async with _scene() as scene:
        trainer = scene.bench.trainer
        match cause:
            case "trainer is away":
                trainer.failing["snapshot"] = LocalProtocolError("the worker is being brought back", "a snapshot")
            case "nothing trained":
                trainer.tokens = 0
            case "not finite":
                trainer.theta_N[7] = float("nan")
            case "disk is full":
                scene.party.disk.fail_with_disk_full_after(10)
        scene.exchanging.begin(proposal_by(scene.world, 1))
        scene.prepare()
        await scene.bench.until_reported(ContributionFailed)
        assert (scene.hellos, await scene.logged()) == ([], ())
        scene.exchanging.begin(proposal_by(scene.world, 1))
        await until(lambda: bool(scene.hellos), 5.0)
        assert (scene.hellos[0].contribution, scene.hellos[0].chunk_hashes) == (b"", b"")
        await trio.sleep(5.0)
        assert len(scene.hellos) == 1


async def test_a_trainer_that_gives_no_snapshot_is_not_waited_for_for_ever(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.bench.trainer.hold("snapshot")
        scene.prepare()
        await scene.bench.until_reported(ContributionFailed, within_s=SNAPSHOT_WITHIN_S + 1.0)
        assert trio.current_time() >= SNAPSHOT_WITHIN_S


async def test_a_snapshot_is_waited_for_as_long_as_the_trainer_says_that_it_may_take(autojump_clock: Clock) -> None:
    """An evaluation may hold it for longer than a step."""
    async with _scene() as scene:
        trainer = scene.bench.trainer
        trainer.answers_within_s = 3 * SNAPSHOT_WITHIN_S
        trainer.hold("snapshot")
        scene.prepare()
        await trio.sleep(2 * SNAPSHOT_WITHIN_S)
        trainer.let_go("snapshot")
        await scene.bench.until_reported(ContributionReady)


async def test_no_snapshot_is_waited_for_on_a_base_that_was_left(autojump_clock: Clock) -> None:
    """Else a trainer that was held through several rounds would make one for each of them."""
    async with _scene() as scene:
        trainer, commit = scene.bench.trainer, scene.world.commits(1)[0]
        trainer.hold("snapshot")
        scene.prepare()
        await trio.sleep(1.0)
        await scene.commit(commit)
        scene.prepare()
        failed = await scene.bench.until_reported(ContributionFailed)
        assert failed.base == scene.world.genesis.head
        trainer.let_go("snapshot")
        ready = await scene.bench.until_reported(ContributionReady)
        assert ready.base == commit.link.commit
        assert trainer.done.count("snapshot") == 1


async def test_after_a_restart_a_session_contributes_again_on_the_base_and_both_are_on_disk(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        earlier = LoggedContribution(Root(b"c" * 32), 700, 9)
        await scene.party.log.log_contribution(scene.world.genesis.head, earlier)
        scene.prepare()
        ready = await scene.bench.until_reported(ContributionReady)
        assert await scene.logged() == (earlier, LoggedContribution(ready.root, TOKENS, 1, 1))


# --- a contribution and its exchange ------------------------------------------------------------------------------------------


async def test_an_exchange_gets_the_contribution_that_came_after_it_began(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.bench.trainer.hold("snapshot")
        proposal = proposal_by(scene.world, 1)
        scene.prepare()
        scene.exchanging.begin(proposal)
        await trio.sleep(3.0)
        assert scene.hellos == []
        scene.bench.trainer.let_go("snapshot")
        ready = await scene.bench.until_reported(ContributionReady)
        scene.exchanging.begin(proposal)
        await until(lambda: bool(scene.hellos), 5.0)
        assert _header(scene.hellos[0]).root == ready.root
        await trio.sleep(5.0)
        assert len(scene.hellos) == 1, "it goes on with the exchange that runs"


async def test_a_base_without_a_delta_does_not_cost_the_next_base_its_own(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        trainer = scene.bench.trainer
        trainer.failing["snapshot"] = LocalProtocolError("the worker is being brought back", "a snapshot")
        scene.prepare()
        await scene.bench.until_reported(ContributionFailed)
        del trainer.failing["snapshot"]
        await scene.commit(scene.world.commits(1)[0])
        proposal = replace(proposal_by(scene.world, 1), base=scene.party.chain.head.commit, index=2)
        scene.prepare()
        scene.exchanging.begin(proposal)  # in the same step of the machine
        ready = await scene.bench.until_reported(ContributionReady)
        scene.exchanging.begin(proposal)
        await until(lambda: bool(scene.hellos), 5.0)
        assert scene.hellos[0].contribution != b""
        assert _header(scene.hellos[0]).root == ready.root


async def test_a_delta_that_failed_late_does_not_speak_for_the_next_base(autojump_clock: Clock) -> None:
    """The head moved while it was taken, and the next round is under way when that comes out."""
    async with _scene() as scene:
        scene.bench.trainer.hold("snapshot")
        scene.prepare()
        await trio.sleep(1.0)
        await scene.commit(scene.world.commits(1)[0])
        proposal = replace(proposal_by(scene.world, 1), base=scene.party.chain.head.commit, index=2)
        scene.exchanging.begin(proposal)
        scene.bench.trainer.let_go("snapshot")
        with capture_logs() as logs:
            await scene.bench.until_reported(ContributionFailed)
        assert [each["log_level"] for each in logs if each["event"] == "no_contribution"] == ["info"], (
            "nothing is wrong"
        )
        scene.exchanging.begin(proposal)  # its slices have moved
        await trio.sleep(2.0)
        assert scene.hellos == [], "our delta on this base may still come"


async def test_a_second_try_on_one_base_is_offered_in_the_attempt_that_asked_for_it(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        trainer = scene.bench.trainer
        trainer.failing["snapshot"] = LocalProtocolError("the worker is being brought back", "a snapshot")
        scene.prepare()
        await scene.bench.until_reported(ContributionFailed)
        del trainer.failing["snapshot"]
        proposal = proposal_by(scene.world, 1, attempt=1)
        scene.prepare()
        scene.exchanging.begin(proposal)  # in the same step of the machine
        ready = await scene.bench.until_reported(ContributionReady)
        scene.exchanging.begin(proposal)
        await until(lambda: bool(scene.hellos), 5.0)
        assert scene.hellos[0].contribution != b""
        assert _header(scene.hellos[0]).root == ready.root


async def test_one_contribution_serves_all_attempts_on_a_base(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.prepare()
        await scene.bench.until_reported(ContributionReady)
        for attempt in (1, 2):
            scene.exchanging.begin(proposal_by(scene.world, 1, attempt))
            await trio.sleep(3.0)
        assert len(scene.hellos) == 2
        assert scene.hellos[0].contribution == scene.hellos[1].contribution != b""
        assert [hello.ballot.attempt for hello in scene.hellos] == [1, 2]


async def test_what_was_offered_on_a_base_takes_no_memory_once_the_head_has_moved(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.prepare()
        await scene.bench.until_reported(ContributionReady)
        offered = [weakref.ref(scene.exchanging.contribution)]
        scene.exchanging.head_moved()
        assert scene.exchanging.contribution is not None, "it has not"
        await scene.party.apply(scene.world.commits(1)[0])
        scene.exchanging.head_moved()
        gc.collect()
        assert [reference() for reference in offered] == [None]


async def test_within_one_ballot_an_exchange_is_mended_and_its_kept_slices_go_on(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        others, _ = _reduce(scene.world.parties[2])
        scene.prepare()
        await scene.bench.until_reported(ContributionReady)
        first = scene.world.proposal(((0, 4, 1), (4, 6, 0)), reduce_within_s=60.0)
        scene.exchanging.begin(first)
        await trio.sleep(2.0)
        scene.exchanging.begin(replace(first, slices=scene.world.proposal(((0, 4, 1), (4, 6, 2))).slices))
        await until(lambda: bool(others), 5.0)
        await trio.sleep(2.0)
        assert [hello.first_chunk for hello in scene.hellos] == [0]
        assert [hello.first_chunk for hello in others] == [4]


async def test_how_long_an_upload_took_is_told_when_its_exchange_ends(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        measured = await scene.uploaded()
        assert 0.01 < measured.seconds < 10.0
        assert scene.exchanging.upload_bytes_per_s > 0


async def test_an_upload_that_no_other_needed_is_not_measured(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.prepare()
        await scene.bench.until_reported(ContributionReady)
        scene.exchanging.begin(scene.world.proposal(((0, 6, 0),), reduce_within_s=60.0))
        await trio.sleep(2.0)
        scene.exchanging.end()
        await trio.sleep(1.0)
        assert scene.bench.events == []


@pytest.mark.parametrize(("took_long", "is_thin"), [(False, True), (True, False), (True, True)])
async def test_a_short_vector_leaves_while_it_is_encoded_where_the_upload_before_took_long_over_a_thin_line(
    took_long: bool, is_thin: bool, grows: bool, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _scene() as scene:
        measured = await scene.uploaded()
        await scene.commit(scene.world.commits(1)[0])
        scene.exchanging.head_moved()
        scene.ahead.clear()
        limit_s = measured.seconds * (0.9 if took_long else 1.1)
        monkeypatch.setattr("averaging.rounds.exchange.exchange_driver.GROWS_FROM_UPLOAD_S", limit_s)
        limit_bytes_per_s = scene.exchanging.upload_bytes_per_s * (1.1 if is_thin else 0.9)
        monkeypatch.setattr("averaging.rounds.exchange.exchange_driver.GROWS_BELOW_BYTES_PER_S", limit_bytes_per_s)
        proposal = replace(proposal_by(scene.world, 1), base=scene.party.chain.head.commit, index=2)
        scene.exchanging.begin(proposal)
        scene.bench.sealing = released = trio.Event()
        scene.prepare()
        await trio.sleep(5.0)
        assert (scene.ahead != []) == (grows or (took_long and is_thin))
        released.set()
        await scene.bench.until_reported(ContributionReady)
        scene.exchanging.begin(proposal)
        await until(lambda: len(scene.hellos) == 2, 5.0)


# --- members that come to us --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leader", [0, 1])
async def test_a_leader_hears_of_a_result_that_came_on_its_own_stream(leader: int, autojump_clock: Clock) -> None:
    """Its reducer said so to all, perhaps while the leader's network was away; nobody says it twice."""
    async with _scene() as scene:
        reducer = scene.world.parties[1]
        proposal = replace(
            proposal_by(scene.world, 1),
            ballot=Ballot(0, scene.world.parties[leader].peer),
            members=(scene.party.member, reducer.member),
        )
        side = Side(reducer, contribution_of(reducer, 2))
        async with running([side], proposal):
            scene.prepare()
            await scene.bench.until_reported(ContributionReady)
            scene.exchanging.begin(proposal)
            await until(lambda: not scene.exchanging.is_exchanging(proposal.base), 5.0)
        heard = [(to, message) for to, message in scene.bench.sent if isinstance(message, ResultReady)]
        assert [to for to, _ in heard] == ([(scene.party.peer,)] if leader == 0 else [])
        for _, message in heard:
            header = open_result(scene.bench.config, proposal, message)
            assert header == side.kept[0][0]


async def test_a_stream_that_comes_before_its_proposal_waits_for_it(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal = replace(
            scene.world.proposal(((0, 6, 0),)), members=(scene.party.member, scene.world.parties[2].member)
        )
        early, mine = scene.world.parties[2], contribution_of(scene.world.parties[2], 3)
        answers: list[bytes] = []

        async def come() -> None:
            answers.extend(await talk(early, scene.party, hello_of(proposal, mine), all_frames(mine)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come)
            await trio.sleep(WAIT_FOR_PROPOSAL_S - 1.0)
            scene.prepare()
            await scene.bench.until_reported(ContributionReady)
            scene.exchanging.begin(proposal)
            await until(lambda: bool(scene.bench.sent), 5.0)
        to, ready = scene.bench.sent[0]
        assert isinstance(ready, ResultReady)
        assert to == (ready.ballot.peer,)
        header = decode_body(
            ResultHeader,
            open_envelope(
                ready.header, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None
            ).payload,
        )
        assert await scene.party.log.read_result(proposal.base, header.result_hash) == b"".join(answers[2:])
        assert [entry.peer for entry in header.included] == sorted([scene.party.peer, early.peer])


@pytest.mark.parametrize("of", ["another attempt", "another base", "an exchange that ended"])
async def test_a_stream_for_an_exchange_that_does_not_run_is_reset(of: str, autojump_clock: Clock) -> None:
    async with _scene() as scene:
        late, proposal = scene.world.parties[2], scene.world.proposal(((0, 6, 0),))
        scene.exchanging.begin(proposal)
        hello = hello_of(proposal, contribution_of(late, 3))
        if of == "another attempt":
            hello = replace(hello, ballot=Ballot(7, scene.party.peer))
        elif of == "another base":
            hello = replace(hello, base=scene.world.commits(1)[0].link.commit)
        else:
            scene.exchanging.end()
        with pytest.raises(PeerUnreachable), trio.fail_after(WAIT_FOR_PROPOSAL_S + 2.0):
            await talk(late, scene.party, hello, [])


@pytest.mark.parametrize("takes_s", [FETCHED_WITHIN_S / 2, 10.0])
async def test_a_result_that_is_fetched_elsewhere_when_its_reducer_offers_it_is_taken_once_unless_that_takes_long(
    takes_s: float, autojump_clock: Clock
) -> None:
    async with _scene() as scene:
        reducer = scene.world.parties[1]
        proposal = replace(proposal_by(scene.world, 1), members=(scene.party.member, reducer.member))
        side = Side(reducer, contribution_of(reducer, 2))
        waited = list[Root]()

        async def until_fetched(result_hash: Root) -> None:
            waited.append(result_hash)
            await trio.sleep(takes_s)
            (_, data), *_ = side.kept.values()
            await scene.party.log.write_result(proposal.base, result_hash, data)

        scene.exchanging.until_fetched = until_fetched
        async with running([side], proposal):
            scene.prepare()
            await scene.bench.until_reported(ContributionReady)
            scene.exchanging.begin(proposal)
            await until(lambda: not scene.exchanging.is_exchanging(proposal.base), 8.0)
        header, data = side.kept[0]
        assert waited == [header.result_hash]
        assert await scene.party.log.read_result(proposal.base, header.result_hash) == data
        came = [count for count in scene.party.network.traffic().bulk if count.kind.channel == EXCHANGE_CHANNEL]
        assert (sum(count.bytes_down for count in came) > len(data)) == (takes_s > FETCHED_WITHIN_S)


async def test_an_exchange_may_bring_bytes_until_every_slice_is_done(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        proposal = replace(scene.world.proposal(((0, 6, 0),)), members=(scene.party.member,))
        assert not scene.exchanging.is_exchanging(proposal.base)
        scene.bench.trainer.hold("snapshot")
        scene.prepare()
        scene.exchanging.begin(proposal)
        await trio.sleep(1.0)
        assert scene.exchanging.is_exchanging(proposal.base)
        assert not scene.exchanging.is_exchanging(scene.world.commits(1)[0].link.commit)
        scene.bench.trainer.let_go("snapshot")
        await scene.bench.until_reported(ContributionReady)
        scene.exchanging.begin(proposal)
        await until(lambda: not scene.exchanging.is_exchanging(proposal.base), 5.0)


async def test_whoever_waits_for_a_change_hears_of_an_exchange_and_of_its_results(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.prepare()
        await scene.bench.until_reported(ContributionReady)
        proposal = replace(scene.world.proposal(((0, 6, 0),)), members=(scene.party.member,))
        changes: list[int] = []

        async def watch() -> None:
            while True:
                await scene.exchanging.changes.wait()
                changes.append(len(await scene.party.log.list_results(proposal.base)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(1.0)
            scene.exchanging.begin(proposal)
            await until(lambda: not scene.exchanging.is_exchanging(proposal.base), 5.0)
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        assert changes == [0, 1]


async def test_a_dropped_member_is_not_waited_for(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        late = scene.world.parties[2]
        scene.exchanging.drop(late.peer, "lost")  # nothing runs yet
        scene.prepare()
        await scene.bench.until_reported(ContributionReady)
        proposal = replace(
            scene.world.proposal(((0, 6, 0),), reduce_within_s=60.0), members=(scene.party.member, late.member)
        )
        scene.exchanging.begin(proposal)
        await trio.sleep(1.0)
        scene.exchanging.drop(late.peer, "lost")
        await until(lambda: bool(scene.bench.sent), 5.0)


async def test_a_greeting_must_fit_the_running_exchange(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.exchanging.begin(scene.world.proposal(((0, 6, 0),)))
        hello = ExchangeHello(UNIT, scene.world.genesis.head, Ballot(0, scene.party.peer), 0, b"x", b"")
        with pytest.raises(PeerUnreachable), trio.fail_after(5.0):
            await talk(scene.world.parties[2], scene.party, hello, [encode_body(hello)])
