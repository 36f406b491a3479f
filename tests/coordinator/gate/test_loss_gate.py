"""The host's loss gate over its real ledger and tracker.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from coordinator.audits.loss_gate_core import HOLD_S, MEASURED_WITHIN_S, MOST_AGAIN, STILL_S
from coordinator.gate.loss_gate import LossGate, opened_gate
from coordinator.ledger.ledger import Ledger
from coordinator.progress.run_events import EventBook
from protocol.errors import StorageError
from protocol.host.host_statements import NO_GATE_NEWS, GateNews
from protocol.host.report_bytes import decode_report_reply
from protocol.host.reports import HeldoutResult, PeerReport, ReportReply
from protocol.identity.identity import Identity
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.hold import Hold, open_hold
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from protocol.rounds.messages.wire import decode_certificate, encode_certificate
from tests.coordinator.admission.test_service import chain_of
from tests.coordinator.chain_world import PEERS, VERIFIER, Chain
from tests.coordinator.host_world import RUN_TOML, UNIT, HostWorld, open_host

GATED = RUN_TOML.replace("total_tokens = 1000", "total_tokens = 100000000").replace(
    "chunk_elements = 256", "chunk_elements = 256\nloss_gate = true"
)
READY = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)
LEVEL, BAD = 3.0, 5.0
NUM_GOOD = 12


@dataclass
class GatedRun:
    """A host with a gate, and the lineage that its peers report."""

    host: HostWorld
    gate: LossGate
    chain: Chain

    async def round(self, nats: Sequence[float | None]) -> None:
        """One more commit, which each peer reports with its loss; None for a peer that has not measured."""
        self.chain.commit()
        await self.measured(nats)

    async def measured(self, nats: Sequence[float | None]) -> None:
        """All peers report the newest commit."""
        for peer, loss in zip(PEERS, nats, strict=True):
            await self.report(peer, loss)
        await self.gate.look()

    async def report(self, peer: Identity, loss: float | None = None) -> GateNews:
        """One peer's report, and the words of the gate in the answer."""
        heldout = () if loss is None else (HeldoutResult(*self.chain.head, loss),)
        said = replace(self.at_head(*heldout), certificates=tuple(self.chain.certificates[-1:]))
        reply = await self.host.tracker.report(peer.peer_id, said)
        assert isinstance(reply, ReportReply)
        return self.gate.news(self.chain.head[0])

    async def good_rounds(self, number: int = NUM_GOOD) -> None:
        for place in range(number):
            await self.round([LEVEL + 0.01 * (place % 3)] * 3)

    async def bad_rounds(self, number: int = 2) -> None:
        for _ in range(number):
            await self.round([BAD] * 3)

    async def go_back_if_due(self) -> None:
        """The hold has lasted until no round is under way any more."""
        await trio.sleep(STILL_S + 1)
        await self.gate.look()

    def at_head(self, *heldout: HeldoutResult) -> PeerReport:
        """The report of a peer that stands at the newest commit."""
        commit, index, total = self.chain.head
        return PeerReport("training", "", UNIT, head=commit, index=index, total_tokens=total, heldout=heldout)

    def hold_in(self, news: GateNews) -> Hold:
        return open_hold(news.hold, check=self.host.tracker.convictions.check, genesis=self.chain.genesis.commit)

    @property
    def head(self) -> ChainLink:
        assert self.host.tracker.chain is not None
        return self.host.tracker.chain.head

    def follow(self, news: GateNews) -> None:
        """The peers go back."""
        (raw,) = news.rewinds
        certificate, chain = decode_certificate(raw), self.host.tracker.chain
        assert chain is not None
        link = chain.link(self.head.commit)
        assert link is not None
        self.chain.certificates.append(raw)
        self.chain.commits.append((link.commit, link.index, link.total_tokens))
        assert link.parent is not None
        parent = chain.link(link.parent)
        assert parent is not None
        assert verify_certificate(certificate, parent, verifier=VERIFIER, run_id=self.host.run_id) == link


@asynccontextmanager
async def gated_run(folder: Path, toml: str = GATED) -> AsyncIterator[GatedRun]:
    """A run that has started, with a gate."""
    with open_host(folder, toml=toml) as host:
        await host.tracker.restore()
        for peer in PEERS:
            await host.tracker.report(peer.peer_id, READY)
        yield GatedRun(host, await _gate_of(host), chain_of(host))


async def _gate_of(host: HostWorld) -> LossGate:
    tracker = host.tracker
    gate = await opened_gate(tracker, host.authority, tracker.convictions.check, host.writer, host.clock)
    assert gate is not None
    tracker.gate = gate
    return gate


async def test_a_rise_holds_the_run_and_then_takes_it_back_to_the_last_good_commit(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        good = run.head
        assert await run.report(PEERS[0]) == NO_GATE_NEWS
        assert run.host.tracker.gate is run.gate
        await run.bad_rounds(1)
        assert (await run.report(PEERS[0])).hold == b""
        await run.bad_rounds(1)
        news = await run.report(PEERS[0])
        hold = run.hold_in(news)
        assert (hold.number, hold.good_index, hold.bad_index, hold.lasts_s) == (1, good.index, good.index + 2, HOLD_S)
        assert "held-out loss rose from 3" in run.host.tracker.reason
        assert news.rewinds == ()
        await run.go_back_if_due()
        assert (run.head.rewind, run.head.parent, run.head.index) == (1, good.commit, good.index + 1)
        assert max(point.nats for point in run.host.tracker.curves.points) < BAD
        recorded = await run.host.writer.run(lambda ledger: ledger.loss_points())
        assert max(point.nats for point in recorded) < BAD, "the curve is that of the rounds that stand"
        news = await run.report(PEERS[1])
        run.follow(news)
        assert (await run.report(PEERS[1])).rewinds == (), "it stands there"
        await run.round([LEVEL] * 3)
        assert run.host.tracker.state.index == good.index + 2
        assert run.gate.words == ""


async def test_a_loss_that_is_down_again_lifts_the_hold(tmp_path: Path, autojump_clock: object) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        await run.bad_rounds()
        first = run.hold_in(await run.report(PEERS[0]))
        await run.round([LEVEL] * 3)  # the round that was under way
        lifted = run.hold_in(await run.report(PEERS[0]))
        assert (lifted.number, lifted.lasts_s) == (first.number, 0)
        assert lifted.unix_s > first.unix_s
        await run.go_back_if_due()
        assert run.head.rewind == 0


async def test_one_liar_of_three_evaluators_neither_holds_the_run_nor_hides_a_rise(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        for _ in range(4):
            await run.round([900.0, LEVEL, LEVEL])
        assert (await run.report(PEERS[0])).hold == b""
        for _ in range(2):
            await run.round([LEVEL, BAD, BAD])
        assert (await run.report(PEERS[0])).hold != b""


async def test_a_single_value_of_a_commit_holds_nothing(tmp_path: Path, autojump_clock: object) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        for _ in range(3):
            await run.round([900.0, None, None])
        assert (await run.report(PEERS[0])).hold == b""


async def test_the_newest_round_is_awaited_for_a_while_and_then_the_others_decide(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        good = run.head
        await run.bad_rounds()
        await run.round([None] * 3)
        await trio.sleep(STILL_S + 1)
        await run.measured([None] * 3)
        assert run.head.rewind == 0
        await trio.sleep(MEASURED_WITHIN_S)
        await run.measured([None] * 3)
        assert (run.head.rewind, run.head.parent) == (1, good.commit)


async def test_a_host_that_restarts_between_hold_and_rewind_goes_on_with_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        good = run.head
        await run.bad_rounds()
        first, chain = run.hold_in(await run.report(PEERS[0])), run.chain
    with open_host(tmp_path, toml=GATED) as host:
        await host.tracker.restore()
        again = GatedRun(host, await _gate_of(host), chain)
        await again.gate.look()
        for peer in PEERS:
            assert again.hold_in(await again.report(peer)) == first
        await again.go_back_if_due()
        assert (again.head.rewind, again.head.parent) == (1, good.commit)
        news = again.gate.news(chain.head[0])
        assert len(news.rewinds) == 1
    with open_host(tmp_path, toml=GATED) as host:
        await host.tracker.restore()
        later = GatedRun(host, await _gate_of(host), chain)
        await later.gate.look()
        assert later.head.rewind == 1
        assert later.gate.news(chain.head[0]).rewinds == news.rewinds


async def test_one_evaluators_word_is_no_more_after_a_restart_of_the_host_and_outweighs_no_earlier_median(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        for _ in range(2):
            await run.round([900.0, None, None])
        await run.round([LEVEL] * 3)
        await run.round([900.0, None, None])
        await run.round([900.0, None, None])
        chain = run.chain
    with open_host(tmp_path, toml=GATED) as host:
        await host.tracker.restore()
        again = GatedRun(host, await _gate_of(host), chain)
        await again.gate.look()
        assert (await again.report(PEERS[0])).hold == b"", "the host has nobody else's word on these rounds"
        await again.round([LEVEL] * 3)
    with open_host(tmp_path, toml=GATED) as host:
        await host.tracker.restore()
        later = GatedRun(host, await _gate_of(host), chain)
        before = {point.index: point.nats for point in host.tracker.curves.points if point.kind == "heldout"}
        assert before[later.head.index] == LEVEL
        await later.report(PEERS[0], 900.0)
        after = {point.index: point.nats for point in host.tracker.curves.points if point.kind == "heldout"}
        assert after == before


async def test_a_ledger_that_refuses_leaves_everything_as_it_was_until_it_takes_the_word(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        with _refusing(monkeypatch), capture_logs() as logs:
            await run.bad_rounds()
        assert "loss_gate_failed" in [line["event"] for line in logs]
        assert (await run.report(PEERS[0])).hold == b""
        await run.gate.look()
        assert (await run.report(PEERS[0])).hold != b""


@contextmanager
def _refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(_ledger: Ledger, _name: str, _value: bytes) -> None:
        raise StorageError("the ledger could not be used (disk full)", "a writable file")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "put", refuse)
        yield


async def test_a_run_that_is_spoiled_again_and_again_is_only_told_of_after_some_rewinds(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        for number in range(1, MOST_AGAIN + 1):
            await run.bad_rounds()
            await run.go_back_if_due()
            assert run.head.rewind == number
            run.follow(await run.report(PEERS[0]))
            await run.good_rounds(2)
        await run.bad_rounds()
        assert "that did not help" in run.host.tracker.reason
        await run.go_back_if_due()
        assert run.head.rewind == 0


async def test_a_rewind_that_no_peer_follows_is_not_signed_again_and_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The host follows live peers after a while. They stand on the lineage that it took back, which is as bad as ever."""
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        await run.bad_rounds()
        await run.go_back_if_due()
        assert run.head.rewind == 1
        for _ in range(40):
            await trio.sleep(2.0)
            await run.round([BAD] * 3)
            await run.host.tracker.tick()
        await run.gate.look()
        assert run.head.index == run.chain.head[1], "it shows where the peers are"
        news = await run.report(PEERS[0])
        assert (run.hold_in(news).number, len(news.rewinds)) == (1, 1)
        assert "have not followed yet" in run.host.tracker.reason


async def test_a_run_without_the_setting_has_no_gate(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        tracker = host.tracker
        assert await opened_gate(tracker, host.authority, tracker.convictions.check, host.writer, host.clock) is None


async def test_events_and_status_tell_that_rounds_were_taken_back_and_count_no_second_branch(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        events = EventBook()
        await run.good_rounds()
        events.note(run.host.tracker.picture(), 0.0, 0)
        await run.bad_rounds()
        events.note(run.host.tracker.picture(), 1.0, 1)
        await run.go_back_if_due()
        picture = run.host.tracker.picture()
        told = [event.text for event in events.note(picture, 2.0, 2)]
        assert picture.num_forks == 0
        assert not any("branches" in text for text in told)
        assert f"the host took rounds back: the run goes on from round {NUM_GOOD}" in told


async def test_the_words_of_the_gate_come_with_answers_to_reports(tmp_path: Path, autojump_clock: object) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        await run.bad_rounds()
        run.host.invite()
        await run.host.service.admit(run.host.admit_request(PEERS[0]))
        reply = decode_report_reply(await run.host.service.report(run.host.report(PEERS[0], run.at_head())))
        assert reply.gate == run.gate.news(run.chain.head[0])
        assert reply.gate.hold != b""


async def test_of_two_rewinds_of_one_number_the_one_that_is_followed_counts(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A host with an old copy of its ledger signs a number again, and peers bring it the rewind that it forgot."""
    async with gated_run(tmp_path) as run:
        await run.good_rounds(NUM_GOOD)
        tracker, good = run.host.tracker, run.head
        assert tracker.chain is not None
        older = tracker.chain.link(good.parent or good.commit)
        assert older is not None
        for place in (older, good):
            certificate = seal_rewind(run.host.authority.signer, run.host.run_id, place, Rewind(1, good.commit, 1))
            await tracker.go_back(encode_certificate(certificate))
        assert (run.head.rewind, run.head.parent) == (1, good.commit)
        await run.gate.look()
        assert run.gate.words == ""
        run.follow(run.gate.news(good.commit))
        await run.good_rounds(2)
        await run.bad_rounds()
        news = await run.report(PEERS[0])
        assert run.hold_in(news).number == 2, "the number of a rewind that the ledger does not know is not used again"
        assert news.rewinds == ()


async def test_a_hold_ends_with_its_rewind_although_that_goes_further_back_than_was_thought(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with gated_run(tmp_path) as run:
        await run.good_rounds()
        good = run.head
        await run.round([LEVEL, None, None])
        last = run.chain.head
        await run.bad_rounds()
        assert run.hold_in(await run.report(PEERS[0])).good_index == good.index + 1
        for peer in PEERS[1:]:
            await run.host.tracker.report(peer.peer_id, run.at_head(HeldoutResult(*last, BAD)))
        await run.go_back_if_due()
        assert (run.head.rewind, run.head.parent) == (1, good.commit)
        assert run.host.tracker.chain is not None
        hold = run.hold_in(await run.report(PEERS[0]))
        assert hold.is_followed(run.host.tracker.chain.tree.behind(run.head.commit))
