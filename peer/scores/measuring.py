"""Measures commits for as long as the run goes on: held-out losses and scores on tasks, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import trio

from averaging.data.shards import ShardCache
from averaging.data.tasks.task_file import TaskFile, open_task
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.unit_service import RoundService
from peer.scores.scoring_core import TimeBudget
from peer.scores.task_scoring import ScoringTools, TaskScoring
from peer.session.build import read_anchors
from peer.session.session import JoinedSession
from peer.status.duties_core import EvaluationTurns
from peer.status.health import OFFLINE_AFTER_S
from peer.status.reporting import ExpertLosses, evaluate_commits
from peer.training.peer_trainer import PeerTrainer
from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.evaluators import NUM_EVALUATORS
from protocol.rounds.queries import idle_patience_s, is_alive
from protocol.run.host_sections import has_loss_gate
from protocol.scores.score_result import SCORE_DOMAIN


async def measure_commits(
    joined: JoinedSession,
    service: RoundService,
    chains: Sequence[UnitChain],
    trainer: PeerTrainer,
    is_over: Callable[[], bool],
    cache: ShardCache,
) -> None:
    """Measure the commits of the spine's `service` that fall to this peer, until the run is over and its last one is measured."""
    life, held = joined.life, joined.experts.held
    losses = ExpertLosses(held, joined.roster.listed_experts) if held else None
    config = joined.membership.manifest.config
    seats = NUM_EVALUATORS if has_loss_gate(config.round, config.admission, config.run.shards) else 1
    run_id, heard = joined.membership.run_id, partial(_is_heard, joined, service)
    turns = EvaluationTurns(run_id, life.identity.peer_id, heard, seats)
    read = partial(read_anchors, chains)
    scoring = TaskScoring(_tools(joined, chains, trainer, turns, cache), TimeBudget(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scoring.run, service, is_over)
        silent = partial(_is_host_silent, joined)
        await evaluate_commits(service, trainer, turns, life.board, is_over, read, losses, silent)


async def _copied(chains: Sequence[UnitChain], commit: CommitId) -> list[torch.Tensor]:
    anchors = [torch.empty(chain.tools.grid.num_elements) for chain in chains]
    await read_anchors(chains, commit, anchors)
    return anchors


def _tools(
    joined: JoinedSession,
    chains: Sequence[UnitChain],
    trainer: PeerTrainer,
    turns: EvaluationTurns,
    cache: ShardCache,
) -> ScoringTools:
    life, membership = joined.life, joined.membership
    config = membership.manifest.config

    async def read_task(name: str) -> TaskFile:
        entry = membership.dataset.task(name)
        data = await trio.to_thread.run_sync(cache.read, entry.sha256)
        if data is None:
            raise RemoteProtocolError(f"task {name!r} is not on this disk", "a file of the run's data", "join again")
        return await trio.to_thread.run_sync(open_task, data)

    async def signed(payload: bytes) -> bytes:
        number = life.sequence.take()
        return seal(life.identity, SCORE_DOMAIN, membership.run_id, number, NEVER_MS, payload)

    return ScoringTools(
        tasks=config.evaluate,
        read_task=read_task,
        score=trainer.score,
        copied=partial(_copied, chains),
        signed=signed,
        send=joined.client.send_score,
        turns=turns,
        board=life.board,
        context_tokens=config.model.context_tokens,
        total_tokens=config.run.total_tokens,
    )


def _is_host_silent(joined: JoinedSession) -> bool:
    return joined.life.clock.unix_s() - joined.roster.host_heard_s > OFFLINE_AFTER_S


def _is_heard(joined: JoinedSession, service: RoundService, peer: PeerId) -> bool:
    """Whether a peer's heartbeats come, as far as they can come to us in turn."""
    state = service.state
    return is_alive(state, peer, joined.life.clock.monotonic_s(), idle_patience_s(state))
