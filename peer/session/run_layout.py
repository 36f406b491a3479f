"""The layout of a peer's cards for its run: chosen by what is known of the cards, and timed where two fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog
import torch
import trio

from averaging.network.seams.interfaces import Offload
from averaging.network.seams.offload import ThreadOffload
from peer.cards.card_return import watch_for_return
from peer.cards.card_status import watched_cards
from peer.cards.layout_of import layout_of, one_replica_of, task_of, world_without
from peer.cards.layout_speeds import LayoutSpeeds
from peer.cards.layout_trial import Trial, settle_by_trial
from peer.cards.own_cards import OwnCards
from peer.session.session import PeerSession
from peer.status.status_board import StatusBoard
from peer.training.islands.open_trainer import open_trainer
from peer.training.peer_trainer import PeerTrainer
from peer.training.plan.card_state import CardState
from peer.training.plan.layout import Layout, World
from peer.training.plan.layout_core import LayoutChoice
from peer.training.trainer import WorkerTrainer
from peer.training.training_plan import TrainingPlan
from protocol.run.manifest import RunConfig

log = structlog.get_logger()


async def run_layout(
    life: PeerSession,
    run: RunConfig,
    plan: TrainingPlan | None,
    anchor_N: torch.Tensor | None,
    experts: Sequence[int],
    stage: int | None = None,
) -> Layout:
    """The layout to train with. The board and the sensors know its cards from then on.

    Args:
        plan: of the whole peer, None for a stage.
        anchor_N: (N,) float32, where a trial begins; None for a stage.
        stage: the one held here, in a run of stages.

    Raises:
        ConfigError: the owner's split does not suit the model or the cards.
    """
    offload, board = ThreadOffload(), life.board
    choice = await offload.run(partial(layout_of, board.own_cards, life.config, run, experts, stage))
    if choice.rival is not None and plan is not None and anchor_N is not None and not plan.is_paused:
        board.say("catching up", "two ways to train on these cards are timed")
        task = task_of(life.config, run, experts, choice.cards[0][0].card.kind)
        speeds = LayoutSpeeds(life.config.state_dir)
        trial = Trial(partial(_open, plan, anchor_N), speeds, lambda: life.controls.decision.may_compute, offload)
        choice = await settle_by_trial(choice, task, trial)
    _show(board, choice)
    return choice.layout


def _show(board: StatusBoard, choice: LayoutChoice) -> None:
    board.layout, watched = choice, watched_cards(choice)
    board.machine.watches = lambda: watched
    if choice.layout.reason:
        log.info("layout", reason=choice.layout.reason)
        print(f"cards: {choice.layout.reason}", flush=True)


async def keep_cards(
    board: StatusBoard,
    choose: Callable[[OwnCards], LayoutChoice],
    at_work: Callable[[], Sequence[CardState]],
    regroup: Callable[[World], None] | None,
    begin_anew: Callable[[], None],
    offload: Offload,
) -> None:
    """Have cards that were left out train again once they can, until cancelled.

    A replica takes them from the next round on. If they would have a replica of their own, the peer hands its work over, and begins
    anew with all cards. It does so only for cards that were not there when it began; an island that is left out is tried again by
    itself.

    Args:
        choose: the layout for cards that were read anew.
        at_work: the cards of all replicas, also those that are left out.
        regroup: goes on with these cards as one replica, from the next round on; None for a peer with islands.
        begin_anew: has the peer leave and come back. The board has the cards by then.
    """

    def take(own: OwnCards, choice: LayoutChoice) -> bool:
        worlds, before = choice.layout.worlds, {card.number for card in board.own_cards.cards}
        if regroup is not None and len(worlds) == 1:
            log.info("cards_back", devices=", ".join(worlds[0].devices), reason=choice.layout.reason)
            board.own_cards = own
            _show(board, choice)
            regroup(worlds[0])
            return True
        new = [card.words for card in own.cards if card.number not in before]
        if not new or board.state != "training":
            return False
        log.info("cards_back", cards=", ".join(new), reason="the peer begins anew with them")
        board.own_cards = own
        board.say("leaving", f"to come back with {', '.join(new)}, which can train now")
        begin_anew()
        return True

    def devices() -> list[str]:
        return [card.device for card in at_work() if not card.left_out]

    await watch_for_return(board.own_cards, choose, devices, take, offload)


@asynccontextmanager
async def trainer_on_cards(
    life: PeerSession, run: RunConfig, plan: TrainingPlan, anchor_N: torch.Tensor
) -> AsyncIterator[PeerTrainer]:
    """A running trainer on this peer's cards that begins at `anchor_N`, (N,) float32. The board and the sensors know its cards.

    Raises:
        ConfigError: as `run_layout`.
    """
    layout, board = await run_layout(life, run, plan, anchor_N, plan.experts), life.board
    is_shared = len(layout.worlds) == 1 and layout.worlds[0].mesh.num_ranks > 1

    def without(left: Sequence[str]) -> World | None:
        return world_without(board.own_cards, life.config, run, plan.experts, left)

    def choose(own: OwnCards) -> LayoutChoice:
        if is_shared:
            return one_replica_of(own, life.config, run, plan.experts)
        return layout_of(own, life.config, run, plan.experts)

    async with open_trainer(plan, layout, anchor_N, life.worker, without) as trainer:
        del anchor_N
        board.machine.trains_on = lambda: trainer.card
        board.card_report, board.cards = lambda: trainer.card_report, lambda: trainer.cards
        async with trio.open_nursery() as nursery:
            regroup = trainer.regroup if isinstance(trainer, WorkerTrainer) else None
            begin_anew = life.departure.begin_anew
            nursery.start_soon(keep_cards, board, choose, lambda: trainer.cards, regroup, begin_anew, ThreadOffload())
            yield trainer
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _open(plan: TrainingPlan, anchor_N: torch.Tensor, layout: Layout) -> AsyncIterator[PeerTrainer]:
    """A trainer that begins at the anchor and leaves nothing behind."""
    async with open_trainer(plan.model_copy(update={"moments_file": None}), layout, anchor_N) as trainer:
        yield trainer
