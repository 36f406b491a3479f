"""A pipeline peer once it has a state: its stage's rounds, its training process and its seats in lanes, until the run is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import structlog
import trio

from averaging.data.shards import ShardCache
from averaging.network.seams.interfaces import DirectoryEntry
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.parting import STAYS_WITHIN_S
from averaging.rounds.peer_rounds import PeerRounds
from averaging.rounds.spine_follower import SpineFollower
from averaging.rounds.traffic.discovery import Rhythm, list_peers
from averaging.rounds.unit_service import RoundService
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.cards.layout_of import layout_of, stage_world_without
from peer.cards.own_cards import OwnCards
from peer.holdings.held_stage import HORIZON_S, OwnStage
from peer.holdings.move_costs import MoveCosts
from peer.membership.joining import open_start_record
from peer.pipeline.lane_rounds import StageRounds
from peer.pipeline.lane_service import LaneRole, LaneService
from peer.pipeline.lane_shares import StageShares
from peer.pipeline.stage.lane_compute import LaneShape
from peer.pipeline.stage.process_work import ProcessWork
from peer.pipeline.stage.stage_process import StageProcess, StageProcessDied, open_stage_process
from peer.pipeline.stage_moves import MoveRole, StageMoves
from peer.pipeline.transport.lane_network import OwnLoop
from peer.pipeline.transport.lane_work import LaneContext
from peer.session.await_state import HELD_BECAUSE, FirstState
from peer.session.build import stage_plan
from peer.session.build_rounds import GOODBYE_WITHIN_S, finish, peer_rounds, unit_service
from peer.session.isolation import watch_isolation
from peer.session.run_layout import keep_cards, run_layout
from peer.session.session import JoinedSession, PeerSession
from peer.status.status_of import status_of
from peer.training.plan.card_report import with_notes
from peer.training.plan.card_state import CardState
from peer.training.plan.layout import World
from peer.training.plan.layout_core import LayoutChoice
from peer.training.trainer import OWNER_HOLDS
from protocol.errors import LocalProtocolError
from protocol.host.reports import HeldoutResult
from protocol.ids import PeerId, RunId, UnitName
from protocol.pipeline.lanes import endings as last_round
from protocol.pipeline.placement.rebalancing import SETTLED_S
from protocol.pipeline.stage_machine import LaneConfig
from protocol.rounds.lineage.chain_link import genesis_link
from protocol.rounds.queries import idle_patience_s, is_alive, is_over
from protocol.rounds.state import OpenRound
from protocol.run.manifest import RunConfig
from protocol.run.pipeline_section import PipelineSection
from protocol.tensors.stage_schema import StageMap, stage_of, stage_unit

log = structlog.get_logger()

LOOK_EVERY_S: Final = 0.5
MEASURED_WITHIN_S: Final = 30.0

Holders = Callable[[int], Sequence[PeerId]]
"""Returns the live holders of a stage, including this peer."""


class LaneControl:
    """The owner's controls, applied to lanes (peer/owner/controls.py)."""

    def __init__(self, process: StageProcess, shares: StageShares, first: FirstState) -> None:
        self.process = process
        self.first = first
        self.shares = shares
        self._is_paused = False

    def why_not(self) -> str:
        """Why no seat is taken now; empty if one may be."""
        if self._is_paused:
            return "its owner paused it"
        if self.first.is_missing:
            return HELD_BECAUSE
        return "" if self.process.is_ready else "the training process is starting"

    async def pause(self) -> None:
        """Take no seat, and give back the current one."""
        self._is_paused = True

    async def resume(self) -> None:
        """Take seats again."""
        self._is_paused = False

    async def set_slowdown(self, factor: float) -> None:
        """Work at 1 / factor of full speed."""
        with suppress(
            StageProcessDied
        ):  # the next process starts with the plan's value, and gets this one at the next change
            await self.process.ask("slow", {"factor": factor})

    def hold(self, is_held: bool) -> None:
        """Whether contributions are held back for now."""
        self.shares.hold(OWNER_HOLDS if is_held else "")


@dataclass(frozen=True)
class StageRun:
    """A pipeline run, as seen by one stage."""

    config: RunConfig
    pipeline: PipelineSection
    stages: StageMap
    stage: int

    @property
    def form(self) -> LaneConfig:
        """The lane settings."""
        return self.pipeline.lane_config(self.config.model, self.config.inner)

    def shape(self, run_id: RunId) -> LaneShape:
        """Shape and type of what passes between stages."""
        pipeline, context = self.pipeline, self.config.model.context_tokens
        sequences = self.config.inner.batch_tokens // context // pipeline.micro_batches
        codecs = (pipeline.forward_codec, pipeline.backward_codec)
        return LaneShape(run_id, self.form, self.stages, (sequences, context), *codecs)


def stage_run(config: RunConfig, unit: UnitName) -> StageRun:
    """How this unit's run works.

    Raises:
        LocalProtocolError: it is not a pipeline run.
    """
    pipeline, stages = config.pipeline, config.stages
    if pipeline is None or stages is None:
        raise LocalProtocolError(f"lanes in a run of {config.run.shards} shards", "a pipeline run")
    return StageRun(config, pipeline, stages, stage_of(unit, stages))


async def train_in_lanes(
    joined: JoinedSession, cache: ShardCache, chain: UnitChain, open_round: OpenRound, first: FirstState
) -> None:
    """Run rounds, training process and lanes of this peer's stage until the run is over or the peer is asked to leave."""
    sources, run = joined.life.sources, stage_run(joined.membership.manifest.config, chain.tools.unit)
    follower = await _follower(joined, stage_unit(0)) if run.stage else None
    rounds = peer_rounds(joined, follower)
    ended = partial(_is_after_the_end, rounds, chain, run.config.run.total_tokens)
    shares = StageShares(chain, run.form, ended, partial(_measured, joined, rounds))
    (world,) = (await run_layout(joined.life, run.config, None, None, (), run.stage)).worlds
    plan = stage_plan(joined.life.config, joined.membership, cache, run.stage)
    if world.devices != ("auto",):
        plan = plan.model_copy(update={"device": world.devices[0], "mesh": world.mesh})

    def without(left: Sequence[str]) -> World | None:
        return stage_world_without(joined.life.board.own_cards, joined.life.config, run.config, run.stage, left)

    devices = world.devices if world.mesh.num_ranks > 1 else ()
    async with open_stage_process(plan, joined.life.worker, devices, without) as process:
        _show(joined.life, process, shares)
        control = LaneControl(process, shares, first)
        holders = _holders(joined, run, rounds)
        moves = _moves(joined, run, holders, control)
        lanes = LaneService(_lane_tools(joined, run, control), _lane_role(joined, run, holders, control, moves))
        stage_rounds = StageRounds(shares, lanes, lambda: process.restarts)
        service = unit_service(joined, chain, open_round, stage_rounds, rounds)
        rounds.add(service)
        sources.begin_rounds(stage_rounds, service, follower=follower)
        sources.lanes = lanes.status
        rounds.serve()
        lanes.serve()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_cards, joined.life, run, process, lanes)
            await _run(joined, rounds, service, lanes, control, moves)
            nursery.cancel_scope.cancel()


async def _keep_cards(life: PeerSession, run: StageRun, process: StageProcess, lanes: LaneService) -> None:
    """Have cards that were left out hold the stage again, from the end of a round on if this peer has a seat."""

    def choose(own: OwnCards) -> LayoutChoice:
        return layout_of(own, life.config, run.config, (), run.stage)

    def regroup(world: World) -> None:
        process.regroup(world, now=not lanes.is_in_lane)

    begin_anew = life.departure.begin_anew
    await keep_cards(life.board, choose, lambda: process.cards(0.0, 0), regroup, begin_anew, ThreadOffload())


def _show(life: PeerSession, process: StageProcess, shares: StageShares) -> None:
    """Let the owner and the sensors see the cards that hold the stage."""
    board = life.board

    def cards() -> tuple[CardState, ...]:
        progress = shares.progress(0, 0)
        return process.cards(progress.tokens_per_s, progress.tokens_trained)

    board.machine.trains_on, board.cards = lambda: process.card, cards
    board.card_report = lambda: with_notes(process.card_report, process.compile_note)


def _measured(joined: JoinedSession, rounds: PeerRounds, round_: int, nats: float) -> None:
    """Publish the held-out loss of the parameters with which a lane began this round."""
    nodes = rounds.spine.tree.nodes.values() if rounds.spine is not None else ()
    for link in (node.link for node in nodes):
        if link.index == round_:
            log.info("measured", index=round_, nats=round(nats, 4))
            joined.life.board.heldout.append(HeldoutResult(link.commit, link.index, link.total_tokens, nats))


async def _follower(joined: JoinedSession, spine: UnitName) -> SpineFollower:
    """Follows the records of the first stage, which is the run's spine, at a peer that does not hold it."""
    start = open_start_record(joined.reporter.start_record, joined.membership.manifest)
    log_ = UnitLog(FileStorage(joined.life.folder / spine, ThreadOffload()))
    held = joined.reporter.milestones.held if joined.reporter.milestones is not None else None
    follower = SpineFollower(spine, start, log_, joined.network, joined.verifier, joined.membership.run_id, held)
    await follower.restore()
    return follower


def _lane_tools(joined: JoinedSession, run: StageRun, control: LaneControl) -> LaneContext:
    process, shares = control.process, control.shares

    def work_of(lane: int, stage: int) -> ProcessWork:
        return ProcessWork(process, lane, shares.newest, shares)

    return LaneContext(
        OwnLoop(joined.network),
        ThreadOffload(),
        run.shape(joined.membership.run_id),
        work_of,
        shares.average,
        shares.take_gift,
        shares.begins,
    )


def _holders(joined: JoinedSession, run: StageRun, rounds: PeerRounds) -> Holders:
    """Maps a stage to its holders: peers that are listed or founded the run, and are alive as far as our rounds know, including
    this peer.
    """
    start = open_start_record(joined.reporter.start_record, joined.membership.manifest)
    began = [genesis_link(start, stage_unit(stage)).roster for stage in range(run.stages.num_stages)]

    def holders(stage: int) -> Sequence[PeerId]:
        now_s, me = joined.life.clock.monotonic_s(), joined.life.identity.peer_id
        (service,) = rounds.services
        state, patience_s = service.state, idle_patience_s(service.state)
        claims = {
            **{p: (s,) for s, of in enumerate(began) for p in of},
            **{p: held for p, held in joined.roster.listed_experts().items() if held},
        }
        listed = [peer for peer, held in claims.items() if stage in held and peer != me]
        return [
            *(peer for peer in listed if is_alive(state, peer, now_s, patience_s)),
            *([me] if stage == run.stage else []),
        ]

    return holders


def _lane_role(
    joined: JoinedSession, run: StageRun, holders: Holders, control: LaneControl, moves: StageMoves
) -> LaneRole:
    start, shares = open_start_record(joined.reporter.start_record, joined.membership.manifest), control.shares
    return LaneRole(
        run.stage,
        joined.life.session,
        genesis_link(start, stage_unit(0)).commit,
        holders,
        lambda: shares.index,
        control.why_not,
        lambda: shares.capacity_tokens_per_s,
        lambda: shares.owed_tokens,
        lambda: moves.reason,
    )


def _moves(joined: JoinedSession, run: StageRun, holders: Holders, control: LaneControl) -> StageMoves:
    own, board, shares = joined.experts, joined.life.board, control.shares
    if not isinstance(own, OwnStage):
        raise LocalProtocolError("a run of stages where experts are held", "a stage")

    def horizon_s() -> float:
        eta_s = status_of(joined.life.sources).eta_s
        return HORIZON_S if eta_s is None else min(HORIZON_S, eta_s)

    async def move(stage: int) -> None:
        board.say("leaving", f"to come back with stage {stage}, of which the run has less")
        await own.move_to(stage)
        joined.life.departure.begin_anew()

    def costs() -> MoveCosts:
        started_s, first_s = control.process.started_in_s, shares.first_pass_s
        warm_up_s = None if started_s is None or first_s is None else started_s + first_s
        return MoveCosts(board.download_rate.bytes_per_s, warm_up_s)

    me = joined.life.identity.peer_id
    role = MoveRole(me, run.stage, run.stages, own.fits, holders, lambda: shares.index, horizon_s, costs)
    return StageMoves(role, move)


async def _run(
    joined: JoinedSession,
    rounds: PeerRounds,
    service: RoundService,
    lanes: LaneService,
    control: LaneControl,
    moves: StageMoves,
) -> None:
    """Work in lanes and average until the run is over or the peer is asked to leave. Then say goodbye."""
    life, membership, reporter = joined.life, joined.membership, joined.reporter

    async def listed(entries: Sequence[DirectoryEntry]) -> None:
        await rounds.list_peers(tuple(p for p in joined.roster.take_records(entries) if p != membership.coordinator))

    async with trio.open_nursery() as nursery:
        await nursery.start(rounds.run)
        nursery.start_soon(watch_isolation, joined, rounds)
        # the other stages' throughputs are in their records, and moves need a recent read of them
        rhythm = Rhythm(settled_every_s=SETTLED_S - joined.poller.patience_s, bytes_per_s=inf)
        nursery.start_soon(list_peers, joined.poller, listed, rhythm)
        with life.departure.ends():
            async with trio.open_nursery() as work:
                work.start_soon(_begin, life, control)
                work.start_soon(lanes.run)
                work.start_soon(_move, moves, lanes, control)
                await _until_over(rounds, service)
                await _until_measured(lanes, control.shares)
                control.shares.say_owed()
                await finish(
                    joined, service
                )  # the lanes continue: a member that is behind still measures the last parameters
                work.cancel_scope.cancel()
        with trio.move_on_after(STAYS_WITHIN_S + GOODBYE_WITHIN_S):
            reporter.is_leaving = True
            await rounds.leave(life.config.parting_s)
            await reporter.report_once()
        nursery.cancel_scope.cancel()


async def _begin(life: PeerSession, control: LaneControl) -> None:
    """Begin to work once there is a state, as the owner allows."""
    await control.first.wait()
    life.board.say("training", "training")
    await life.controls.order(control)


async def _move(moves: StageMoves, lanes: LaneService, control: LaneControl) -> None:
    """Move to another stage once this peer has its own state whole."""
    await control.first.wait()
    await moves.run(lanes)


async def _until_measured(lanes: LaneService, shares: StageShares) -> None:
    """Wait until our part in measuring the last parameters is done, if we serve in a lane."""
    with trio.move_on_after(MEASURED_WITHIN_S):
        while lanes.is_in_lane and shares.measured_round < shares.index:
            await trio.sleep(LOOK_EVERY_S)


async def _is_after_the_end(rounds: PeerRounds, chain: UnitChain, total_tokens: int, round_: int) -> bool:
    """Whether the run had all its tokens before this round of lanes."""
    began_s = trio.current_time()
    while True:
        found = last_round.is_after_the_end(
            own_tokens=chain.head.total_tokens,
            total_tokens=total_tokens,
            spine=None if rounds.spine is None else (rounds.spine.link.index, rounds.spine.link.total_tokens),
            round_=round_,
            waited_s=trio.current_time() - began_s,
        )
        if found is not None:
            return found
        await trio.sleep(LOOK_EVERY_S)


async def _until_over(rounds: PeerRounds, service: RoundService) -> None:
    """Wait until the run's tokens are committed and this stage has its last round, or will not get it."""
    ending = last_round.Ending()
    while True:
        spine = rounds.spine
        found = last_round.decide(
            ending,
            is_run_over=spine is not None and spine.link.total_tokens >= service.config.total_tokens,
            has_last_round=is_over(service.state),
            now_s=trio.current_time(),
        )
        if found.missing:
            log.warning("last_round_missed", reason=found.missing)
        if found.is_done:
            return
        ending = found.state
        await trio.sleep(LOOK_EVERY_S)
