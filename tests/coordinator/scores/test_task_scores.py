"""Scores as the host takes them: over a ledger on disk, with commits that were verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coordinator.admission.service import CoordinatorService
from coordinator.scores.score_core import ScoredTask
from coordinator.scores.task_scores import MAX_ANSWER_LETTERS, TaskScores, decoder_of, shown_text
from protocol.errors import RefusedError, RemoteProtocolError, StorageError, TemporaryError
from protocol.host.reports import PeerReport
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.ids import CommitId
from protocol.pb import coordinator_pb2 as pb
from protocol.run.evaluate_section import EvaluateSection
from protocol.scores.score_result import SCORE_DOMAIN, ScoreResult, encode_score
from protocol.scores.task_turns import turn_order
from tests.coordinator.admission.test_service import chain_of
from tests.coordinator.chain_world import PEERS, VERIFIER, Chain
from tests.coordinator.host_world import UNIT, HostWorld, open_host

FACTS = ScoredTask(EvaluateSection(name="facts", file="f", every_rounds=1, parts=2), 9, 0.25)
WORDS = ScoredTask(
    EvaluateSection(name="words", file="w", kind="prompts", every_rounds=1), 1, vocab_size=257, prompts=("Once",)
)
READY = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)


def _scores(host: HostWorld) -> TaskScores:
    tasks = {"facts": FACTS, "words": WORDS}
    return TaskScores(tasks, decoder_of(None), host.tracker, host.manifest, host.writer, VERIFIER)


async def _with_commits(host: HostWorld, rounds: int) -> Chain:
    for peer in PEERS:
        await host.tracker.report(peer.peer_id, READY)
    chain = chain_of(host)
    for _ in range(rounds):
        chain.commit((10, 10, 10))
    commit, index, total = chain.head
    report = PeerReport("training", "", UNIT, commit, index, total, certificates=tuple(chain.certificates))
    for peer in PEERS:
        await host.tracker.report(peer.peer_id, report)
    return chain


def _order(host: HostWorld, task: str, index: int, part: int = 0) -> list[Identity]:
    peers = {peer.peer_id: peer for peer in PEERS}
    return [peers[peer] for peer in turn_order(host.run_id, UNIT, task, index, part, peers)]


def _sealed(host: HostWorld, peer: Identity, commit: CommitId, index: int = 1, part: int = 0, right: int = 3) -> bytes:
    result = ScoreResult("facts", commit, index, part, len(FACTS.items_of(part)), right, right)
    return seal(peer, SCORE_DOMAIN, host.run_id, 1, NEVER_MS, encode_score(result))


def _said(host: HostWorld, commit: CommitId, tokens: Sequence[int]) -> bytes:
    result = ScoreResult("words", commit, 1, 0, 1, answers=(tuple(tokens),))
    return seal(_order(host, "words", 1)[0], SCORE_DOMAIN, host.run_id, 1, NEVER_MS, encode_score(result))


async def test_parts_of_two_peers_make_a_point_that_is_there_after_a_restart(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        commit, _, tokens = (await _with_commits(host, 1)).commits[0]
        scores = _scores(host)
        await scores.take(_sealed(host, _order(host, "facts", 1, 0)[0], commit, part=0))
        assert scores.curves()[0].points[0].missing == (2,)
        await scores.take(_sealed(host, _order(host, "facts", 1, 1)[0], commit, part=1))
        (point,) = scores.curves()[0].points
        assert (point.index, point.total_tokens, point.acc, point.missing) == (1, tokens, 6 / 9, ())
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        again = _scores(host)
        await again.restore()
        assert again.curves()[0].points == (point,)
        assert [row.part for row, _ in again.signed()] == [0, 1]


async def test_answers_are_shown_as_plain_text_of_bounded_length(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        commit = (await _with_commits(host, 1)).head[0]
        scores = _scores(host)
        await scores.take(_said(host, commit, b"<b>\x1b[2J\n\xff"))
        assert scores.curves()[1].answers == (("Once", "<b> [2J\n\N{REPLACEMENT CHARACTER}"),)
    assert len(shown_text("x" * 10_000)) == MAX_ANSWER_LETTERS


async def test_a_stand_in_has_to_wait_and_gives_its_place_to_the_peer_before_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain = await _with_commits(host, 3)
        first, second, _ = _order(host, "facts", 1)
        scores, commit = _scores(host), chain.commits[0][0]
        newest, (early, late, _) = chain.head[0], _order(host, "facts", 3)
        with pytest.raises(TemporaryError, match=f"{late.peer_id} measured facts at round 3, and it is the turn of"):
            await scores.take(_sealed(host, late, newest, index=3))
        await scores.take(_sealed(host, second, commit, right=1))
        await scores.take(_sealed(host, first, commit, right=2))
        await scores.take(_sealed(host, second, commit, right=1))
        assert [row.peer for row, _ in scores.signed()] == [first.peer_id]
        assert early is not late


async def test_a_forged_score_and_one_of_a_stranger_are_refused_and_named_once(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        commit = (await _with_commits(host, 1)).head[0]
        scores, good = _scores(host), _sealed(host, _order(host, "facts", 1)[0], (commit))
        with pytest.raises(RemoteProtocolError, match="a bad signature in the name of"):
            await scores.take(good[:-1] + bytes([good[-1] ^ 1]))
        stranger = Identity(b"x" * 32)
        with capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(RefusedError, match=f"{stranger.peer_id} measured facts at round 1"):
                    await scores.take(_sealed(host, stranger, commit))
        assert [log["event"] for log in logs] == ["score_refused"]
        with pytest.raises(TemporaryError, match="which is not known here"):
            await scores.take(_sealed(host, PEERS[0], CommitId(b"?" * 32)))
        assert scores.signed() == []


async def test_a_score_that_the_ledger_refuses_is_not_shown_and_is_taken_when_it_comes_again(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_host(tmp_path) as host:
        commit = (await _with_commits(host, 1)).head[0]
        scores, good = _scores(host), _sealed(host, _order(host, "facts", 1)[0], commit)
        host.ledger._db.execute("CREATE TRIGGER full BEFORE INSERT ON scores BEGIN SELECT RAISE(FAIL, 'full'); END")
        with pytest.raises(StorageError):
            await scores.take(good)
        assert scores.curves()[0].points == ()
        host.ledger._db.execute("DROP TRIGGER full")
        await scores.take(good)
        assert len(scores.curves()[0].points) == 1


async def test_the_call_takes_scores_of_admitted_peers_alone(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        host.invite()
        commit = (await _with_commits(host, 1)).head[0]
        scores, first = _scores(host), _order(host, "facts", 1)[0]
        hosted = host.service._run
        service = CoordinatorService(hosted, host.tracker, host.writer, host.clock, scores)
        request = pb.Sealed(envelope=_sealed(host, first, commit)).SerializeToString()
        with pytest.raises(RefusedError, match="is not admitted to this run"):
            await service.score(request)
        await service.admit(host.admit_request(first))
        for _ in range(2):  # it may be brought again
            assert await service.score(request) == b""
        assert len(scores.signed()) == 1
        with pytest.raises(RefusedError, match="a score in a run without tasks"):
            await host.service.score(request)
