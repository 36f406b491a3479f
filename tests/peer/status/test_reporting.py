from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trio
import trio.testing

from averaging.network.seams.interfaces import HeldoutLosses, ReadAnchors, Snapshot, TrainerProgress
from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.rounds.lineage.round_reports import RoundCommitted, VoterConvicted
from peer.owner.controls_core import TrainingAllowance
from peer.status.duties_core import NUM_BRINGERS, EvaluationTurns, is_bringer
from peer.status.reporting import (
    CATCH_UP_EVERY_S,
    EVALUATE_WITHIN_S,
    GIVE_WAY_S,
    REPORT_EVERY_S,
    UNHEARD_WITHIN_S,
    ExpertLosses,
    Reporter,
    evaluate_commits,
    left_behind,
    make_report,
)
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources
from protocol.errors import (
    PotluckError,
    RefusedError,
    RemoteProtocolError,
    StorageError,
    SupersededError,
    TemporaryError,
    UnreachableError,
)
from protocol.host.host_statements import RevocationNews
from protocol.host.report_bytes import encode_report
from protocol.host.report_delta import made_whole, report_digest
from protocol.host.report_pace import IDLE_EVERY_S, again_in_s
from protocol.host.reports import AckPair, HeldoutResult, PeerReport, ReportReply
from protocol.identity.envelope import superseded
from protocol.identity.identity import Identity
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import tree_of
from protocol.rounds.messages.wire import decode_certificate, decode_record
from tests.coordinator.chain_world import Chain
from tests.peer.moving_head import MovingHead
from tests.virtual import VirtualClock

ME, OTHER = PeerId("me"), PeerId("other")
TURNS = EvaluationTurns(RunId(b"r" * 32), ME, lambda peer: peer == OTHER)
ALONE = EvaluationTurns(RunId(b"r" * 32), ME, lambda peer: False)
UNIT = UnitName("whole")
REPLY = ReportReply("training", CommitId(bytes(32)), 3, want_from_index=4)
Clock = trio.testing.MockClock


def _link(index: int) -> ChainLink:
    return ChainLink(UNIT, CommitId(bytes([index]) * 32), index, (ME, OTHER), 100 * index, 100)


def _mine(index_from: int, *, is_mine: bool = True) -> ChainLink:
    """The first commit from here on whose measuring is ours, or somebody else's."""
    return next(link for i in range(index_from, 200) if TURNS.is_commit_ours(link := _link(i)) is is_mine)


class _Client:
    """A coordinator that answers as it is told to."""

    def __init__(self) -> None:
        self.reports: list[PeerReport] = []
        self.credentials: list[bytes] = []
        self.answer: Callable[[], ReportReply] = lambda: REPLY

    async def report(self, report: PeerReport, credential: bytes = b"") -> ReportReply:
        await trio.lowlevel.checkpoint()
        self.reports.append(report)
        self.credentials.append(credential)
        return self.answer()


def _raiser(error: PotluckError) -> Callable[[], ReportReply]:
    def answer() -> ReportReply:
        raise error

    return answer


def _reporter() -> tuple[Reporter, _Client, StatusBoard]:
    client, board = _Client(), StatusBoard(ME, VirtualClock(), 0.0)
    return Reporter(client, Sources(board), lambda: None), client, board  # type: ignore[arg-type]


async def test_a_report_says_where_we_are_and_what_the_coordinator_asked_for_is_remembered(
    autojump_clock: Clock,
) -> None:
    reporter, client, board = _reporter()
    board.say("joining", "fetching data " + "x" * 300)
    assert reporter.reported_index == 0
    assert await reporter.report_once()
    assert reporter.reported_index == REPLY.index
    assert (client.reports[0].state, len(client.reports[0].reason)) == ("joining", 200)
    assert reporter.last_reply == REPLY


async def test_measured_losses_are_told_until_they_have_arrived(autojump_clock: Clock) -> None:
    reporter, client, board = _reporter()
    first, second = (HeldoutResult(_link(i).commit, i, 100 * i, 2.0) for i in (1, 2))
    board.heldout.append(first)
    client.answer = _raiser(UnreachableError("nobody answers", "a coordinator"))
    assert not await reporter.report_once()
    assert board.heldout == [first]

    def late() -> ReportReply:
        board.heldout.append(second)  # measured while the report was on its way
        return REPLY

    client.answer = late
    assert await reporter.report_once()
    assert client.reports[1].heldout == (first,)
    assert board.heldout == [second]


async def test_a_proof_of_a_double_vote_is_sent_until_the_host_has_it(autojump_clock: Clock) -> None:
    reporter, client, board = _reporter()
    board.publish(VoterConvicted(OTHER, b"one", b"two"))
    client.answer = _raiser(UnreachableError("nobody answers", "a coordinator"))
    assert not await reporter.report_once()
    client.answer = lambda: REPLY
    for _ in range(2):
        assert await reporter.report_once()
    assert [report.double_votes for report in client.reports] == [*[(AckPair(b"one", b"two"),)] * 2, ()]


async def test_a_refusal_is_said_once_and_the_reports_go_on(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, client, _ = _reporter()
    client.answer = _raiser(RefusedError("banned", "a member"))
    with trio.move_on_after(REPORT_EVERY_S * 3.5):
        await reporter.run()
    assert len(client.reports) == 4
    assert capsys.readouterr().out.count("report_refused") == 1


async def test_reports_end_the_older_of_two_processes_with_one_identity(autojump_clock: Clock) -> None:
    reporter, client, _ = _reporter()
    client.answer = _raiser(superseded())
    with pytest.raises(SupersededError, match="newer session"):
        await reporter.run()
    assert len(client.reports) == 1


class _Bans:
    """Takes what the coordinator sends, or finds it forged."""

    def __init__(self, error: PotluckError | None = None) -> None:
        self.known = b"known at"
        self.taken: list[tuple[bytes, ...]] = []
        self.error = error

    def missing_at(self, known: bytes) -> tuple[bytes, ...]:
        return (b"lacking " + known,)

    async def take(self, offered: tuple[bytes, ...]) -> None:
        await trio.lowlevel.checkpoint()
        self.taken.append(offered)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, RemoteProtocolError("a revocation that the host did not sign")])
async def test_a_report_tells_which_bans_we_know_and_the_answer_brings_the_others(
    autojump_clock: Clock, error: PotluckError | None
) -> None:
    client, bans = _Client(), _Bans(error)
    client.answer = lambda: replace(REPLY, bans=RevocationNews((b"entry",)))
    reporter = Reporter(client, Sources(StatusBoard(ME, VirtualClock(), 0.0)), lambda: None, revocations=bans)  # type: ignore[arg-type]
    assert await reporter.report_once()
    assert client.reports[0].known_revocations == b"known at"
    assert bans.taken == [(b"entry",)]


async def test_a_coordinator_that_lost_bans_is_brought_them_once_it_asks(autojump_clock: Clock) -> None:
    client = _Client()
    reporter = Reporter(client, Sources(StatusBoard(ME, VirtualClock(), 0.0)), lambda: None, revocations=_Bans())  # type: ignore[arg-type]
    client.answer = lambda: replace(REPLY, bans=RevocationNews((), True, b"at host."))
    await reporter.report_once()
    client.answer = lambda: REPLY
    for _ in range(2):
        await reporter.report_once()
    assert [report.revocations for report in client.reports] == [(), (b"lacking at host.",), ()]


class _Milestones:
    """Notes what the host sends, and has one from after the host's head."""

    def __init__(self) -> None:
        self.known = b"known at"
        self.taken: list[tuple[bytes, ...]] = []

    def to_bring(self, spine: UnitName, host_index: int) -> tuple[bytes, ...]:
        return (b"%s after %d" % (spine.encode(), host_index),) if host_index < 8 else ()

    async def take(self, offered: tuple[bytes, ...], source: str) -> None:
        await trio.lowlevel.checkpoint()
        self.taken.append(offered)


async def test_a_report_tells_which_milestones_we_have_and_the_answer_brings_newer_ones(
    autojump_clock: Clock,
) -> None:
    reporter, client, _ = _reporter()
    milestones = _Milestones()
    reporter.milestones = milestones  # type: ignore[assignment]
    client.answer = lambda: replace(REPLY, milestones=(b"newer",))
    assert await reporter.report_once()
    assert (client.reports[0].known_milestones, client.reports[0].milestones) == (b"known at", ())
    assert milestones.taken == [(b"newer",)]


async def test_a_host_whose_head_is_before_our_milestone_is_brought_it_until_it_has_it(autojump_clock: Clock) -> None:
    reporter, client, _ = _reporter()
    chain = _grown(Chain(), 9)
    reporter._sources.service = _Rounds(chain)  # type: ignore[assignment]
    reporter.milestones = _Milestones()  # type: ignore[assignment]
    for index in (3, 3, 9):
        client.answer = lambda index=index: replace(REPLY, phase="training", index=index)  # type: ignore[misc]
        await reporter.report_once()
    assert [report.milestones for report in client.reports] == [(), (b"fragment-0 after 3",), (b"fragment-0 after 3",)]
    await reporter.report_once()
    assert client.reports[-1].milestones == ()


async def test_the_last_report_says_that_we_left(autojump_clock: Clock) -> None:
    reporter, client, board = _reporter()
    board.say("training", "training")
    reporter.is_leaving = True
    await reporter.report_once()
    assert client.reports[0].state == "left"


async def test_a_report_before_the_rounds_names_no_certificates() -> None:
    report = make_report(Sources(StatusBoard(ME, VirtualClock(), 0.0)), is_ready_to_start=True, want_from_index=9)
    assert (report.certificates, report.is_ready_to_start) == ((), True)


# --- what the coordinator asks for ---------------------------------------------------------------------------------------------


class _Rounds:
    """The parts of the rounds that a reporter reads: the followed lineage, and the tree that it is a part of."""

    unit = UNIT

    def __init__(self, follows: Chain, *others: Chain) -> None:
        tree, links = tree_of(follows.genesis), {follows.genesis.commit: follows.genesis}
        for raw in (raw for chain in (*others, follows) for raw in chain.certificates):
            certificate = decode_certificate(raw)
            record = decode_record(certificate.record)
            link = link_after(links[record.parent], certificate.record)
            links[link.commit] = link
            tree = tree.add(link, certificate)
        mine = [follows.genesis.commit, *(commit for commit, _, _ in follows.commits)]
        followed = [links[commit] for commit in mine]
        kept = SimpleNamespace(refused="", num_refused=0, num_damaged=0)
        self.chain = SimpleNamespace(
            tools=SimpleNamespace(generations=kept, log=SimpleNamespace(bound_bytes=0)),
            line=FollowedLine(followed, [decode_certificate(raw) for raw in follows.certificates]),
            links=followed,
            head=followed[-1],
            root=Root(bytes(32)),
            rooted=followed[-1].commit,
            is_sound=True,
            disk_bound_bytes=0,
        )
        is_over = {"run_tokens": 0, "config": SimpleNamespace(total_tokens=0, me=SimpleNamespace(peer=ME)), "peers": {}}
        is_over["barred"] = SimpleNamespace(standings={})
        self.state = SimpleNamespace(tree=tree, open=SimpleNamespace(proposal=None, exchange=None), **is_over)
        self.reason = self.waiting = ""


def _grown(chain: Chain, rounds: int, tokens: int = 10) -> Chain:
    for _ in range(rounds):
        chain.commit((tokens, tokens, tokens))
    return chain


def test_commits_of_a_side_that_was_left_are_told_of_parents_first() -> None:
    trunk = _grown(Chain(), 2)
    ours, theirs = _grown(trunk.clone(), 3), _grown(trunk.clone(), 2, tokens=7)
    rounds = _Rounds(ours, theirs)
    left = left_behind(rounds, set())  # type: ignore[arg-type]
    assert list(left.items()) == [(c[0], raw) for c, raw in zip(theirs.commits, theirs.certificates, strict=True)][2:]
    assert list(left_behind(rounds, {theirs.commits[2][0]})) == [theirs.head[0]]  # type: ignore[arg-type]
    assert not left_behind(_Rounds(ours), set())  # type: ignore[arg-type]


def test_a_lone_commit_on_our_head_that_we_do_not_follow_is_told_of() -> None:
    ours = _grown(Chain(), 2)
    theirs = ours.clone()
    theirs.commit(lone=True)
    assert list(left_behind(_Rounds(ours, theirs), set())) == [theirs.head[0]]  # type: ignore[arg-type]
    next_one = _grown(ours.clone(), 1)
    assert not left_behind(_Rounds(ours, next_one), set()), "a commit of a quorum is about to be applied"  # type: ignore[arg-type]


def _reporter_on(rounds: _Rounds) -> tuple[Reporter, _Client]:
    client, sources = _Client(), Sources(StatusBoard(ME, VirtualClock(), 0.0), service=rounds)  # type: ignore[arg-type]
    return Reporter(client, sources, lambda: None, lambda: b"credential"), client  # type: ignore[arg-type]


def _asks(want_from_index: int, phase: str = "training") -> Callable[[], ReportReply]:
    return lambda: ReportReply(phase, CommitId(bytes(32)), 3, want_from_index)


async def test_both_sides_of_a_fork_are_told_once_and_again_to_a_coordinator_that_forgot(autojump_clock: Clock) -> None:
    trunk = _grown(Chain(), 2)
    ours, theirs = _grown(trunk.clone(), 3), _grown(trunk.clone(), 2, tokens=7)
    reporter, client = _reporter_on(_Rounds(ours, theirs))
    client.answer = _asks(6)
    for _ in range(3):
        await reporter.report_once()
    left = tuple(theirs.certificates[2:])
    assert [report.certificates for report in client.reports] == [tuple(ours.certificates), left, ()]
    client.answer = _asks(3)  # an old copy of its ledger
    await reporter.report_once()
    client.answer = _asks(6)
    for _ in range(2):
        await reporter.report_once()
    assert [report.certificates for report in client.reports[4:]] == [tuple(ours.certificates[2:]), left]


async def test_what_was_missed_is_brought_at_once_and_what_nobody_takes_without_hurry(autojump_clock: Clock) -> None:
    reporter, client = _reporter_on(_Rounds(_grown(Chain(), 200)))
    wants = iter((6, 70, 134, 6, 6, 6, 6))

    def answer() -> ReportReply:
        return _asks(next(wants))()

    client.answer = answer
    with trio.move_on_after(4 * CATCH_UP_EVERY_S + 0.1):
        await reporter.run()
    assert [len(report.certificates) for report in client.reports] == [64, 64, 64, 64, 64]
    with trio.move_on_after(REPORT_EVERY_S + CATCH_UP_EVERY_S):
        await reporter.run()
    assert len(client.reports) == 7


async def test_a_coordinator_that_lost_the_start_is_shown_it_and_our_credential_always(autojump_clock: Clock) -> None:
    reporter, client = _reporter_on(_Rounds(_grown(Chain(), 1)))
    reporter.start_record = b"sealed"
    await reporter.report_once()
    client.answer = _asks(1, phase="gathering")
    await reporter.report_once()
    client.answer = _asks(2)
    for _ in range(2):
        await reporter.report_once()
    assert [report.start_record for report in client.reports] == [b"", b"", b"sealed", b""]
    assert client.credentials == [b"credential"] * 4


# --- what is not said again ----------------------------------------------------------------------------------------------------


class _Knowing(_Client):
    """A coordinator that knows the last report, until it is restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.known: PeerReport | None = None
        self.at_s: list[float] = []
        self.phase = "training"
        self.num_peers = 0
        """0 for a host that does not say when to report again."""

    async def report(self, report: PeerReport, credential: bytes = b"") -> ReportReply:
        answer = await super().report(report, credential)
        self.at_s.append(trio.current_time())
        if report.like and (self.known is None or report_digest(self.known) != report.like):
            raise RemoteProtocolError("a short report like none that is known here", "a whole one")
        self.known = made_whole(self.known, report) if report.like and self.known else report
        reply = replace(answer, phase=self.phase, like=report_digest(self.known))
        if not self.num_peers:
            return reply
        again = again_in_s(self.num_peers, is_under_way=self.phase == "training")
        return replace(reply, again_in_s=again, live_others=self.num_peers - 1 if self.phase == "training" else 0)

    def restart(self) -> None:
        self.known = None


def _known_reporter() -> tuple[Reporter, _Knowing, StatusBoard]:
    client, board = _Knowing(), StatusBoard(ME, VirtualClock(), 0.0)
    board.say("training", "training")
    return Reporter(client, Sources(board), lambda: None, lambda: b"credential"), client, board  # type: ignore[arg-type]


async def _play(reporter: Reporter, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await reporter.run()


async def test_what_the_host_knows_is_not_said_again_and_needs_no_credential(autojump_clock: Clock) -> None:
    reporter, client, board = _known_reporter()
    for _ in range(2):
        assert await reporter.report_once()
    assert [bool(report.like) for report in client.reports] == [False, True]
    assert client.credentials == [b"credential", b""]
    board.say("paused", "paused by its owner")
    assert await reporter.report_once()
    assert (client.reports[-1].like, client.reports[-1].state) == (b"", "paused")
    assert client.credentials[-1] == b"", "it knew us a moment ago"


async def test_a_host_that_no_longer_knows_who_was_admitted_is_shown_the_credential_with_the_same_report(
    autojump_clock: Clock,
) -> None:
    reporter, client, board = _known_reporter()
    assert await reporter.report_once()
    answer = client.answer

    def forgetful() -> ReportReply:
        if not client.credentials[-1]:
            raise RefusedError("a peer that was never admitted", "an admitted one")
        return answer()

    client.answer = forgetful
    board.say("paused", "paused by its owner")
    assert await reporter.report_once()
    assert [(report.state, credential) for report, credential in zip(client.reports, client.credentials, strict=True)][
        1:
    ] == [("paused", b""), ("paused", b"credential")]


async def test_an_idle_peer_is_heard_of_every_ten_seconds_and_a_change_within_two(autojump_clock: Clock) -> None:
    reporter, client, board = _known_reporter()
    begun_s = trio.current_time()

    async def change() -> None:
        await trio.sleep(5 * IDLE_EVERY_S + 3.0)
        board.say("paused", "paused by its owner")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await _play(reporter, 6 * IDLE_EVERY_S)
    after_s = [at_s - begun_s for at_s in client.at_s]
    assert after_s == pytest.approx([*(n * IDLE_EVERY_S for n in range(6)), 5 * IDLE_EVERY_S + 4.0], abs=0.1)


@pytest.mark.parametrize("phase", ["training", "gathering"])
async def test_in_a_large_run_a_change_waits_for_the_peers_turn(autojump_clock: Clock, phase: str) -> None:
    reporter, client, board = _known_reporter()
    client.phase, client.num_peers = phase, 2000
    begun_s = trio.current_time()

    async def change() -> None:
        for number in range(30):
            await trio.sleep(3.0)
            board.say("paused", f"paused for the {number}th time")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await _play(reporter, 100.0)
        nursery.cancel_scope.cancel()
    after_s = [at_s - begun_s for at_s in client.at_s]
    assert after_s == pytest.approx([0.0, 40.0, 80.0], abs=0.6)


async def test_a_host_that_has_no_time_is_not_asked_again_before_the_peers_turn(autojump_clock: Clock) -> None:
    reporter, client, board = _known_reporter()
    client.num_peers = 2000
    await _play(reporter, 1.0)
    client.answer = _raiser(TemporaryError("the host is overloaded", "room for a call"))
    board.say("paused", "paused by its owner")
    await _play(reporter, 100.0)
    assert len(client.reports) <= 4


async def test_a_commit_of_a_large_run_is_brought_at_once_though_no_turn_is_due(autojump_clock: Clock) -> None:
    members = _Members()
    for line in members.lines:
        line.num_peers = 2000
    link, at_s = await _heard_of(members, span_s=45.0)
    bringers = {board.peer for board in members.boards if is_bringer(link, board.peer)}
    assert sorted(members.host.brought_by) == sorted(bringers)
    assert members.host.has_shown_at_s[2] - at_s <= CATCH_UP_EVERY_S + 0.1
    others = [line for line in members.lines if line._peer not in bringers]
    reported_s = sorted(next(t for t, _ in line.said if t > at_s) - at_s for line in others)
    assert reported_s[-1] - reported_s[0] > 15.0, "the others' reports are spread over a turn of all"


async def test_a_host_that_was_restarted_is_told_the_whole_at_once(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, client, _ = _known_reporter()
    for _ in range(2):
        await reporter.report_once()
    client.restart()
    assert await reporter.report_once()
    assert [bool(report.like) for report in client.reports] == [False, True, True, False]
    assert client.credentials[-1] == b"credential"
    assert "report_refused" not in capsys.readouterr().out


@pytest.mark.parametrize("phase", ["gathering", "finished"])
async def test_reports_are_frequent_while_everybody_waits_for_the_start_or_the_end(
    autojump_clock: Clock, phase: str
) -> None:
    reporter, client, _ = _known_reporter()
    client.phase = phase
    await _play(reporter, IDLE_EVERY_S - 1.0)
    assert len(client.reports) == 5


async def test_a_measured_loss_and_a_report_that_did_not_arrive_do_not_wait(autojump_clock: Clock) -> None:
    reporter, client, board = _known_reporter()
    await _play(reporter, 1.0)
    board.heldout.append(HeldoutResult(_link(1).commit, 1, 100, 2.0))
    await _play(reporter, 1.0)
    assert len(client.reports) == 2
    failing = Reporter(_Client(), Sources(board), lambda: None)  # type: ignore[arg-type]
    failing._client.answer = _raiser(UnreachableError("nobody answers", "a coordinator"))  # type: ignore[attr-defined]
    await _play(failing, 3 * REPORT_EVERY_S + 1.0)
    assert len(failing._client.reports) == 4  # type: ignore[attr-defined]


# --- a commit of many ---------------------------------------------------------------------------------------------------------

NUM_MEMBERS = 16
CREDENTIAL = bytes(650)
SPAN_S = 47.0
"""So long after a commit idle peers were measured."""


class _Host:
    """Hears of all members; knows the commits whose certificates came, and when it could show the newest."""

    def __init__(self, chain: Chain) -> None:
        self.num_known = len(chain.certificates)
        self.has_shown_at_s: dict[int, float] = {}
        self.unknown_heads: list[PeerId] = []
        self.brought_by: list[PeerId] = []


class _Line(_Knowing):
    """One member's line to it."""

    def __init__(self, host: _Host, peer: PeerId) -> None:
        super().__init__()
        self._host, self._peer = host, peer
        self.said: list[tuple[float, int]] = []

    async def report(self, report: PeerReport, credential: bytes = b"") -> ReportReply:
        await trio.sleep(0.02)
        host, now_s = self._host, trio.current_time()
        self.said.append((now_s, len(encode_report(report)) + len(credential)))
        reply = await super().report(report, credential)
        assert self.known is not None
        if report.certificates:
            host.brought_by.append(self._peer)
            host.num_known = max(host.num_known, self.known.index)
        if self.known.index > host.num_known:
            host.unknown_heads.append(self._peer)
        host.has_shown_at_s.setdefault(host.num_known, now_s)
        return replace(reply, want_from_index=host.num_known + 1, index=host.num_known)


class _Members:
    """Sixteen who take part in one run, each with a reporter, and what the host hears of them."""

    def __init__(self) -> None:
        identities = tuple(sorted((Identity(bytes([n]) * 32) for n in range(NUM_MEMBERS)), key=lambda i: i.peer_id))
        self.chain = Chain(members=identities)
        self._commit()
        self.host = _Host(self.chain)
        self.boards = [StatusBoard(identity.peer_id, VirtualClock(), 0.0) for identity in identities]
        self.lines = [_Line(self.host, board.peer) for board in self.boards]
        for board in self.boards:
            board.say("training", "training")
        rounds: Any = _Rounds(self.chain)
        self.sources = [Sources(board, service=rounds) for board in self.boards]

    def _commit(self) -> None:
        self.chain.commit((100,) * NUM_MEMBERS, voters=NUM_MEMBERS // 2 + 1)

    def reporters(self) -> list[Reporter]:
        return [
            Reporter(line, sources, lambda: None, lambda: CREDENTIAL)  # type: ignore[arg-type]
            for line, sources in zip(self.lines, self.sources, strict=True)
        ]

    def commit(self) -> ChainLink:
        """One more, which all apply at once."""
        self._commit()
        rounds: Any = _Rounds(self.chain)
        head: ChainLink = rounds.chain.head
        for sources in self.sources:
            sources.service = rounds
            sources.board.publish(RoundCommitted(head))
        return head


async def _heard_of(
    members: _Members, *, are_bringers_there: bool = True, span_s: float = SPAN_S
) -> tuple[ChainLink, float]:
    """A commit, when it was, and what the host heard in the time after it; bringers may be gone by then."""
    async with trio.open_nursery() as nursery:
        scopes = []
        for number, reporter in enumerate(members.reporters()):
            scopes.append(trio.CancelScope())

            async def run(reporter: Reporter = reporter, number: int = number) -> None:
                with scopes[number]:
                    await trio.sleep(0.03 * number)
                    await reporter.run()

            nursery.start_soon(run)
        await trio.sleep(3 * IDLE_EVERY_S + 0.7)  # all have just looked whether there is anything new
        members.host.brought_by.clear()
        members.host.unknown_heads.clear()
        link, at_s = members.commit(), trio.current_time()
        for scope, board in zip(scopes, members.boards, strict=True):
            if not are_bringers_there and is_bringer(link, board.peer):
                scope.cancel()
        await trio.sleep(span_s)
        nursery.cancel_scope.cancel()
    return link, at_s


async def test_a_commit_comes_to_the_host_at_once_from_two_of_its_members_and_from_the_others_by_name_alone(
    autojump_clock: Clock,
) -> None:
    members = _Members()
    link, at_s = await _heard_of(members)
    host, bringers = members.host, {board.peer for board in members.boards if is_bringer(link, board.peer)}
    assert len(bringers) == NUM_BRINGERS
    assert sorted(host.brought_by) == sorted(bringers), "each certificate once from each"
    assert host.unknown_heads == [], "nothing seems to be missing meanwhile"
    assert host.has_shown_at_s[2] - at_s <= CATCH_UP_EVERY_S + 0.1
    reported_s = [next(t for t, size in line.said if t > at_s and size > 100) - at_s for line in members.lines]
    assert max(reported_s) <= 2 * GIVE_WAY_S + REPORT_EVERY_S + 0.1


async def test_what_an_idle_member_says_to_the_host_after_a_commit_of_sixteen_is_forty_bytes_a_second_at_most(
    autojump_clock: Clock,
) -> None:
    """Of sixteen daemons one said 187: the certificate of the commit, which every one of them brought, fell into that time."""
    members = _Members()
    _, at_s = await _heard_of(members)
    said = [sum(size for t, size in line.said if t > at_s + CATCH_UP_EVERY_S + 0.1) for line in members.lines]
    assert max(said) / SPAN_S <= 40.0


async def test_a_commit_whose_bringers_are_gone_comes_from_the_others_within_seconds(autojump_clock: Clock) -> None:
    members = _Members()
    _, at_s = await _heard_of(members, are_bringers_there=False)
    assert members.host.has_shown_at_s[2] - at_s <= 2 * GIVE_WAY_S + REPORT_EVERY_S + 2 * CATCH_UP_EVERY_S
    assert len(members.host.brought_by) <= NUM_MEMBERS // 2


# --- measuring ----------------------------------------------------------------------------------------------------------------


class _Trainer:
    """Evaluates at a word; everything else is not asked of it here."""

    def __init__(self) -> None:
        self.num_evaluated = 0
        self.prose_nats: float | None = None
        self.error: PotluckError | None = None

    async def evaluate(
        self, read: ReadAnchors, experts: Sequence[int] = (), *, has_prose: bool = True
    ) -> HeldoutLosses:
        await read([torch.zeros(1)])
        self.num_evaluated += 1
        if self.error is not None:
            raise self.error
        nats = tuple(1.0 + expert for expert in experts) or (1.5,)
        return HeldoutLosses(nats, self.prose_nats if has_prose else None)

    async def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def progress(self) -> TrainerProgress:
        raise NotImplementedError


async def _read(commit: CommitId, rooms: Sequence[torch.Tensor]) -> None:
    await trio.lowlevel.checkpoint()


async def _measure(
    service: MovingHead,
    trainer: _Trainer,
    board: StatusBoard,
    story: Callable[[], object],
    losses: ExpertLosses | None = None,
    turns: EvaluationTurns = TURNS,
) -> None:
    is_over = False

    async def tell() -> None:
        nonlocal is_over
        await trio.testing.wait_all_tasks_blocked()
        story()
        await trio.testing.wait_all_tasks_blocked()
        is_over = True

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            await evaluate_commits(service, trainer, turns, board, lambda: is_over, _read, losses)  # type: ignore[arg-type]


async def test_each_commit_is_measured_by_one_member_and_the_last_one_before_the_end(autojump_clock: Clock) -> None:
    _, _, board = _reporter()
    ours = _mine(1)
    others = _mine(ours.index + 1, is_mine=False)
    last = _mine(others.index + 1)
    service, trainer = MovingHead(ours), _Trainer()

    def story() -> None:
        service.move(others)
        service.move(last)

    await _measure(service, trainer, board, story)
    assert [result.index for result in board.heldout] == [ours.index, last.index]
    assert board.heldout[0].nats == 1.5
    spans = [(span.name, span.unit, span.round_index) for span in board.spans.newest()]
    assert spans == [("evaluate", "", ours.index), ("evaluate", "", last.index)]


@pytest.mark.parametrize(("is_silent", "within_s"), [(True, UNHEARD_WITHIN_S), (False, EVALUATE_WITHIN_S)])
async def test_last_commit_is_measured_for_a_shorter_time_while_the_host_is_silent(
    is_silent: bool, within_s: float, autojump_clock: Clock
) -> None:
    class Slow(_Trainer):
        async def evaluate(
            self, read: ReadAnchors, experts: Sequence[int] = (), *, has_prose: bool = True
        ) -> HeldoutLosses:
            await trio.sleep_forever()
            raise AssertionError

    _, _, board = _reporter()
    begun_s = trio.current_time()
    await evaluate_commits(
        MovingHead(_mine(1)),
        Slow(),
        TURNS,
        board,
        lambda: True,
        _read,
        is_host_silent=lambda: is_silent,  # type: ignore[arg-type]
    )
    assert trio.current_time() - begun_s == within_s
    assert not board.heldout


async def test_prose_is_measured_beside_the_held_out_text_where_there_is_any(autojump_clock: Clock) -> None:
    for prose_nats in (None, 2.25):
        _, _, board = _reporter()
        service, trainer = MovingHead(_mine(1)), _Trainer()
        trainer.prose_nats = prose_nats
        await _measure(service, trainer, board, lambda: None)
        assert [(result.nats, result.prose_nats) for result in board.heldout] == [(1.5, prose_nats)]


async def test_a_measurement_that_fails_is_left_out_and_training_goes_on(autojump_clock: Clock) -> None:
    _, _, board = _reporter()
    ours = _mine(1)
    service, trainer = MovingHead(ours), _Trainer()
    trainer.error = StorageError("the worker died", "a worker")
    await _measure(service, trainer, board, lambda: None)
    assert trainer.num_evaluated == 1
    assert board.heldout == []


async def test_a_state_that_lags_behind_its_head_is_not_measured_as_the_head(autojump_clock: Clock) -> None:
    _, _, board = _reporter()
    ours = _mine(1)
    service, trainer = MovingHead(ours), _Trainer()
    service.chain.state = replace(service.chain.state, head=_link(0).commit)
    with trio.move_on_after(20):
        await evaluate_commits(service, trainer, TURNS, board, lambda: False, _read)  # type: ignore[arg-type]
    assert trainer.num_evaluated == 0


async def test_while_no_training_is_allowed_nothing_is_measured_either(autojump_clock: Clock) -> None:
    _, _, board = _reporter()
    service, trainer = MovingHead(_mine(1)), _Trainer()
    board.allowed = TrainingAllowance(0.0, "paused by its owner")
    await _measure(service, trainer, board, lambda: None)
    assert trainer.num_evaluated == 0


def _losses(held: tuple[int, ...], of_other: tuple[int, ...]) -> ExpertLosses:
    return ExpertLosses(held, lambda: {OTHER: of_other})


async def test_a_commit_of_a_peer_that_is_not_heard_is_measured_by_the_next_one(autojump_clock: Clock) -> None:
    _, _, board = _reporter()
    others = _mine(1, is_mine=False)
    service, trainer = MovingHead(others), _Trainer()
    await _measure(service, trainer, board, lambda: None, turns=ALONE)
    assert [result.index for result in board.heldout] == [others.index]


def test_an_expert_is_measured_by_the_holder_whose_turn_it_is_and_one_that_only_we_hold_always_by_us() -> None:
    shared, alone = _losses((0,), (0, 1)), _losses((0,), (1,))
    links = [_link(index) for index in range(1, 40)]
    ours = [link for link in links if shared.ours(link, TURNS) == (0,)]
    assert 0 < len(ours) < len(links)
    assert all(alone.ours(link, TURNS) == (0,) for link in links)
    for link in (link for link in links if link not in ours):
        absent = replace(link, roster=(ME,))
        assert shared.ours(absent, TURNS) == (0,), "a holder that was not in the round is not waited for"
        assert shared.ours(link, ALONE) == (0,), "nor is one that is not heard"
        assert shared.ours(replace(link, roster=(OTHER,)), ALONE) == (), "we were not in the round ourselves"


async def test_a_holder_measures_its_experts_and_the_prose_where_the_commit_is_its_to_measure(
    autojump_clock: Clock,
) -> None:
    others = _mine(1, is_mine=False)
    for link, prose_nats in ((_mine(1), 2.25), (others, None)):
        _, _, board = _reporter()
        trainer = _Trainer()
        trainer.prose_nats = 2.25
        losses = _losses((0, 2), ())
        await _measure(MovingHead(link), trainer, board, lambda: None, losses)
        (result,) = board.heldout
        assert (result.commit, result.of_experts) == (link.commit, ((0, 1.0), (2, 3.0)))
        assert (result.nats, result.prose_nats) == (2.0, prose_nats)
        assert trainer.num_evaluated == 1


async def test_a_round_that_is_nowhere_but_here_is_told_within_a_quarter_of_a_second(autojump_clock: Clock) -> None:
    reporter, client, board = _reporter()
    link = replace(_link(3), unit=UnitName("expert-1"), content=decode_record(_record_bytes()))
    for roster, within_s in (((ME, OTHER), REPORT_EVERY_S), ((ME,), CATCH_UP_EVERY_S)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reporter.run)
            await trio.testing.wait_all_tasks_blocked()
            reported, begin_s = len(client.reports), trio.current_time()
            board.publish_other_unit(RoundCommitted(replace(link, roster=roster)))
            while len(client.reports) == reported:
                await trio.sleep(0.01)
            assert trio.current_time() - begin_s == pytest.approx(within_s, abs=0.02)
            nursery.cancel_scope.cancel()


def _record_bytes() -> bytes:
    chain = Chain()
    chain.commit((10, 10, 10))
    return decode_certificate(chain.certificates[0]).record
