"""The peer daemon, in the order of a volunteer's session: identity, admission, network, data, start, state, training and rounds,
goodbye.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog
import trio

from averaging.arithmetic.spare_memory import keep_cool
from averaging.codecs.compiled import BLOCKS
from averaging.data.shard_exchange import SHARD_CHANNEL, read_cached, serve_shards
from averaging.data.shards import ShardCache
from averaging.data.start_weights import start_shards
from averaging.host.http import bind_http, serve_http
from averaging.host.http_client import kept_status_address
from averaging.host.log_file import LOG_FOLDER, keep_log
from averaging.network.libp2p.libp2p_network import open_libp2p_network
from averaging.network.seams.asyncio_thread import open_asyncio_thread, open_plain_nursery
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.interfaces import DirectoryEntry
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.parting import STAYS_WITHIN_S
from averaging.rounds.peer_rounds import PeerRounds
from averaging.rounds.traffic.directory_keys import keys_of
from averaging.rounds.traffic.discovery import IN_ROUNDS, DirectoryPoller, announce, list_peers
from averaging.rounds.unit_service import RoundService
from averaging.storage.disk_room import DiskMeter
from averaging.storage.file_storage import FileStorage, clear_unfinished
from averaging.system.leave_signals import watch_signals
from averaging.trio_errors import run_single_error
from peer.audits.audited_run import audit_work
from peer.cards.own_cards import OwnCards, own_cards
from peer.checks.reach import find_outbound_only
from peer.gate.host_gate import opened_gate, take_host_commits
from peer.history.round_log import history_path, keep_history, recall_history
from peer.holdings.held_experts_core import of_founders
from peer.holdings.held_parts import own_parts
from peer.holdings.host_backup import take_kept
from peer.holdings.training_text import check_data, check_weights
from peer.holdings.verified_holders import ASK_WITHIN_S, CommitProof, present
from peer.holdings.verified_holders_core import everybody
from peer.machine.device import check_can_limit, choose_device
from peer.membership.addresses import check_listen_address
from peer.membership.coordinator_client import Caller, CoordinatorEndpoint, open_coordinator_client
from peer.membership.credential_cache import CREDENTIAL_CHANNEL, CredentialCache, recent_voters
from peer.membership.host_ways import host_ways, watch_host_ports
from peer.membership.incarnation import take_incarnation
from peer.membership.joining import (
    Membership,
    admit,
    come_back,
    fetch_data,
    open_start_record,
    saved_membership,
    usable_invite,
)
from peer.membership.kept_addresses import keep_addresses, with_kept
from peer.membership.network_options import network_options
from peer.membership.process_takeover import DirectoryClaim
from peer.membership.revocations import Revocations
from peer.membership.saved_membership import host_heard_s, remember_last_run, run_folder, take_session
from peer.owner.controls import open_controls
from peer.owner.disk_use import keep_measured
from peer.pipeline.lane_training import train_in_lanes
from peer.profile.profile_service import serve_profiles
from peer.scores.measuring import measure_commits
from peer.session.await_state import HELD_BECAUSE, FirstState
from peer.session.build import kept_milestones, open_chains, text_plan, training_plan, whole_anchor
from peer.session.build_rounds import GOODBYE_WITHIN_S, finish, peer_rounds, unit_service
from peer.session.catch_up import catch_up_all
from peer.session.damaged_logs import lost_index, set_aside
from peer.session.isolation import watch_isolation
from peer.session.lone_parts import hand_over_lone_parts
from peer.session.notices import notices_of
from peer.session.own_process import own_process
from peer.session.reducing import reduce_for_others
from peer.session.run_layout import trainer_on_cards
from peer.session.session import JoinedSession, PeerSession, SequenceNumbers, data_quota, upkeep_of
from peer.session.start_record import StartSearch
from peer.settings.config import PeerConfig
from peer.status.local_view import LOG_NAME
from peer.status.reporting import Reporter
from peer.status.screen import run_screen
from peer.status.status import kept_final_status
from peer.status.status_board import StatusBoard
from peer.status.status_http import peer_app
from peer.status.status_of import Sources, known_peers, latest_rounds, status_of
from peer.training.mode_rules import standing_still_s
from peer.training.peer_trainer import PeerTrainer
from peer.training.unit_trainer import UnitTrainer
from peer.training.worker_process import EarlyWorker
from protocol.host.reports import HELPING
from protocol.identity.identity_file import HeldIdentity, open_identity
from protocol.identity.invite import Invite
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from protocol.rounds.messages.start import StartRecord
from protocol.rounds.messages.wire import decode_body
from protocol.rounds.schedule.asking_order import asking_order
from protocol.rounds.state import OpenRound

log = structlog.get_logger()


def run_peer(config: PeerConfig, invite_text: str, worker: EarlyWorker | None = None, run: str = "") -> int:
    """Take part in a run until it ends or the user stops it; without an invite in the one called `run`, or in the last one. Returns
    the exit code 0.

    A peer that moves to another stage, or to more cards, leaves and joins again, in this process. `worker` is a training process that
    is already running.

    Raises:
        PotluckError: with its exit code: a bad invite, a refusal, an unreachable host, an identity in use.
    """
    clock = SystemClock()
    invite = usable_invite(config.state_dir, invite_text, clock.unix_s(), run)
    folder = run_folder(config.state_dir, invite.run_id)
    check_listen_address(with_kept(config))
    device = choose_device(config.device)
    if config.max_gpu_memory_gb is not None:
        check_can_limit(device)
    with open_identity(config.state_dir / "identity") as held:
        if held.was_created:
            print(f"new identity in {held.path}: back this file up, it is you", flush=True)
        log_path = config.state_dir / LOG_FOLDER / LOG_NAME
        print(f"log: {log_path}", flush=True)
        with keep_log(log_path), own_process(config, folder), own_cards(config, device) as cards:
            if BLOCKS is None:
                log.warning("codecs_not_compiled", costs="more processor time", mend="`potluck doctor` says how")
            own: OwnCards | None = cards
            while own is not None:
                session = take_session(config.state_dir, clock.unix_s())
                own = run_single_error(
                    partial(_main, with_kept(config), invite, held, folder, session, clock, worker, own)
                )
                worker = None
    return 0


async def _main(
    config: PeerConfig,
    invite: Invite,
    held: HeldIdentity,
    folder: Path,
    session: int,
    clock: SystemClock,
    worker: EarlyWorker | None,
    cards: OwnCards,
) -> OwnCards | None:
    """One life of the peer. Returns the cards of the one that follows; None if there is none."""
    disk = DiskMeter(config.state_dir, ThreadOffload())
    clear_unfinished(folder)
    found = set_aside(folder)
    incarnation = take_incarnation(folder)
    board = StatusBoard(held.identity.peer_id, clock, clock.unix_s(), incarnation=incarnation)
    board.own_cards, board.g_per_kwh = cards, config.grid_g_per_kwh
    for sentence in found:
        board.has_restarted(sentence)
    sources = Sources(board, disk, chosen=config.chosen)
    read_status = partial(status_of, sources)
    controls = open_controls(config, board, clock)
    await controls.update()
    life = PeerSession(
        config, invite, held, folder, incarnation, session, SequenceNumbers(session), clock, sources, worker, controls
    )
    listener = bind_http(config.http_host, config.http_port)
    http_port = int(listener.getsockname()[1])
    async with trio.open_nursery() as nursery:
        app = peer_app(read_status, partial(known_peers, sources), partial(latest_rounds, sources), board.latest_spans)
        addresses = await nursery.start(serve_http, listener, app)
        print(f"status page: {addresses[0]}", flush=True)
        nursery.start_soon(partial(run_screen, read_status, mode=config.screen))
        nursery.start_soon(controls.keep)
        nursery.start_soon(disk.keep_measured)
        final = kept_final_status(config.state_dir, read_status)
        with final, kept_status_address(config.state_dir, addresses[0]), life.departure.ends():

            def leave(reason: str) -> None:
                board.say("leaving", reason)
                life.departure.order()

            await nursery.start(watch_signals, leave)
            async with notices_of(life):
                await _take_part(life, http_port)
        nursery.cancel_scope.cancel()
    return board.own_cards if life.departure.comes_back else None


async def _take_part(life: PeerSession, http_port: int) -> None:
    async with AsyncExitStack() as stack:
        thread = await stack.enter_async_context(open_asyncio_thread())
        saved = saved_membership(life.folder, life.identity, life.invite.run_id, life.clock.unix_s())
        endpoint = CoordinatorEndpoint(
            life.invite.coordinator_addresses, life.invite.ca_certificate_der, life.invite.run_id
        )
        caller = Caller(life.identity, life.sequence.take_soon, life.clock)
        client = await stack.enter_async_context(open_coordinator_client(thread, endpoint, caller))
        life.sources.host = client
        arguments = (client, life.invite, life.identity, life.folder, life.clock)
        if saved is not None:
            membership, is_host_there = await come_back(saved, *arguments)
        else:
            say = partial(life.board.say, "joining")
            say("asking the host for admission")
            membership, is_host_there = await admit(*arguments, say), True
        watch = await stack.enter_async_context(open_plain_nursery())
        if is_host_there:
            ways = host_ways(membership.saved, membership.coordinator)
            watch.start_soon(watch_host_ports, ways, client.answers_at, life.board.health.hears_of_ports)
        is_outbound_only = await find_outbound_only(
            life.config, client, membership.saved.credential, is_host_there=is_host_there
        )
        experts = own_parts(life.config, membership.manifest.config, life.folder, ThreadOffload())
        await trio.to_thread.run_sync(remember_last_run, life.folder)
        run, life.sources.experts = membership.manifest.config.run, experts
        life.board.takes_part_in(run.name, run.total_tokens, is_outbound_only=is_outbound_only, grid=run.grid)
        roster = _roster(life, membership, is_host_there=is_host_there)
        life.sources.has_joined(roster, membership.saved.ways_in, life.session)
        revocations = await _revocations(life, membership, roster)
        life.board.say("joining", "starting the network")
        ca_certificate_der = life.invite.ca_certificate_der
        options = network_options(
            life.config,
            life.held.path,
            membership,
            ca_certificate_der,
            roster,
            Ed25519Verifier(),
            life.clock,
            is_outbound_only=is_outbound_only,
        )
        network = await stack.enter_async_context(
            open_libp2p_network(thread, options, life.identity.peer_id, unix_s=life.clock.unix_s)
        )
        print(await keep_addresses(life.config, network, http_port), flush=True)
        roster.serve(network)
        revocations.serve(network)
        life.board.network = network
        life.board.convicted.expel = partial(roster.ban, by_host=False)
        life.controls.cap(network)
        reporter = Reporter(client, life.sources, roster.host_was_heard, lambda: roster.own_credential, revocations)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(revocations.end_when_banned)
            nursery.start_soon(revocations.gossip, network)
            keys = keys_of(membership.manifest)
            poller = DirectoryPoller(network, keys, held=lambda: roster.own_experts)
            await _train(
                JoinedSession(life, membership, client, network, roster, reporter, is_outbound_only, experts, poller)
            )
            nursery.cancel_scope.cancel()


def _roster(life: PeerSession, membership: Membership, *, is_host_there: bool) -> CredentialCache:
    return CredentialCache(
        membership.run_id,
        life.invite.ca_certificate_der,
        membership.coordinator,
        membership.saved.credential,
        Ed25519Verifier(),
        life.clock,
        None if is_host_there else host_heard_s(life.folder) or None,
        membership.saved.tls_key_pem,
    )


async def _revocations(life: PeerSession, membership: Membership, roster: CredentialCache) -> Revocations:
    host_public_key = bytes.fromhex(membership.manifest.host_public_key)
    verifier, me = Ed25519Verifier(), life.identity.peer_id
    revocations = Revocations(life.folder, membership.run_id, host_public_key, verifier, roster, me, ThreadOffload())
    await revocations.restore()
    return revocations


def _cache(life: PeerSession) -> ShardCache:
    return ShardCache(life.config.state_dir.absolute() / "data", life.config.cache_bytes)


async def _train(joined: JoinedSession) -> None:
    """Fetch the data for training, find the run's newest state, then train and average."""
    life, membership = joined.life, joined.membership
    cache = _cache(life)
    read, quota = partial(read_cached, cache), data_quota(joined)
    joined.network.serve_streams(SHARD_CHANNEL, serve_shards(read, joined.roster.is_member, quota.takes))
    async with trio.open_nursery() as nursery:
        if life.config.reduce_only:
            life.board.say(HELPING, "reducing for peers to which nobody can connect")
            _keep_up(joined, nursery)
            await reduce_for_others(joined)
            nursery.cancel_scope.cancel()
            return
        _keep_up(joined, nursery)
        await _bring_data(joined, cache, joined.experts.wanted)
        chains = await _open_chains(joined, cache)
        open_rounds, first = await _catch_up(joined, chains)
        if membership.manifest.config.stages is not None:
            await train_in_lanes(joined, cache, chains[0], open_rounds[0], first)
            nursery.cancel_scope.cancel()
            return
        is_paused = first.is_missing or not life.controls.decision.may_compute
        held, me = joined.experts.held, life.identity.peer_id
        reads = text_plan(membership.dataset, cache, held, membership.manifest.config.data.weights)
        plan = training_plan(life.config, me, membership, reads, chains, held, is_paused=is_paused)
        async with trainer_on_cards(life, membership.manifest.config, plan, whole_anchor(chains)) as trainer:
            trainer.hold(life.controls.decision.is_held)
            if first.is_missing:
                trainer.hold(True, HELD_BECAUSE)
            await _average(joined, chains, open_rounds, trainer, first)
        nursery.cancel_scope.cancel()


def _keep_up(joined: JoinedSession, nursery: trio.Nursery) -> None:
    """Start the services of a member, independent of training: reports, our directory record, and connections."""
    life, membership, network = joined.life, joined.membership, joined.network
    own = DirectoryClaim(
        life.identity, membership.run_id, life.session, life.sequence.take, joined.verifier, joined.roster
    )
    nursery.start_soon(joined.reporter.run)
    make, changed = partial(own.make, joined.poller), lambda: joined.roster.own_changed
    nursery.start_soon(announce, joined.poller, life.clock, make, changed)
    nursery.start_soon(keep_measured, FileStorage(life.folder, ThreadOffload()), life.board)
    nursery.start_soon(keep_cool)
    nursery.start_soon(recall_history, history_path(life.folder), life.board)
    nursery.start_soon(keep_history, history_path(life.folder), life.board, partial(status_of, life.sources))
    upkeep = upkeep_of(joined)
    nursery.start_soon(upkeep.keep_host_heard)
    nursery.start_soon(upkeep.keep_peers)
    nursery.start_soon(upkeep.keep_reached, network, membership.saved.ways_in)
    nursery.start_soon(upkeep.keep_credential, joined.client.renew)


async def _open_chains(joined: JoinedSession, cache: ShardCache) -> tuple[UnitChain, ...]:
    """Open this machine's state of the run from its signed start record, with the text of the experts that it takes up now."""
    life, membership, reporter = joined.life, joined.membership, joined.reporter
    search = StartSearch(life.folder, membership, joined.poller, joined.roster, ThreadOffload(), life.board)
    sealed_start = reporter.start_record = await search.find(joined.client, reporter)
    start = open_start_record(sealed_start, membership.manifest)
    reporter.milestones = await kept_milestones(life.folder, membership, start, joined.verifier)
    reporter.gate = await opened_gate(life.folder, membership, start, joined.verifier, life.clock)
    held = await _settle_experts(joined, start)
    if held:
        await _bring_data(joined, cache, held)  # not wanted before all founders were there
    given, milestones = start_shards(membership.dataset, cache.path), reporter.milestones.held
    me, restarted = life.identity.peer_id, life.board.has_restarted
    chains = await open_chains(life.folder, membership, start, joined.verifier, me, restarted, given, held, milestones)
    joined.roster.rely_on(lambda: frozenset[PeerId]().union(*(recent_voters(chain.links) for chain in chains)))
    return chains


async def _settle_experts(joined: JoinedSession, start: bytes) -> tuple[int, ...]:
    """Choose the experts that we hold from now on, by their present holders; none in a run without experts."""
    if not joined.experts.num_parts:
        return ()
    await _members_listed(joined)
    me, listed = joined.life.identity.peer_id, joined.roster.listed_experts()
    record, seen = decode_body(StartRecord, start), everybody(listed)
    if not joined.experts.wanted and me not in record.roster:
        ask = partial(joined.network.call, channel=CREDENTIAL_CHANNEL, request=b"", timeout_s=ASK_WITHIN_S)
        membership, units = joined.membership, tuple(joined.membership.manifest.parts)
        kept = joined.reporter.milestones.held if joined.reporter.milestones is not None else None
        prove = CommitProof(joined.network, ThreadOffload(), joined.verifier, membership.run_id, start, units, kept)
        reachable, index = joined.roster.taking_connections(), joined.reporter.reported_index
        seen = await present(listed, reachable, ask, prove, units, index, of_founders(record, joined.experts.num_parts))
    held = await joined.experts.settle(record, me, seen)
    joined.roster.hold(held)
    return held


async def _catch_up(joined: JoinedSession, chains: Sequence[UnitChain]) -> tuple[list[OpenRound], FirstState]:
    """Fetch the run's newest state if ours is far behind. Returns our votes on the heads, and whether there is any state."""
    board, reporter = joined.life.board, joined.reporter
    board.say("catching up", "looking for the run's newest state")
    told, members = (board.downloading, board.lacks_donor), partial(_members_listed, joined)
    reached = await catch_up_all(joined.network, chains, members, joined.roster.is_member, *told)
    spine = chains[0]
    for chain, index in zip(chains, reached, strict=True):
        # none of the listed members has commits that are not here
        if chain.tools.unit in joined.membership.manifest.parts and not index:
            await take_kept(joined.network, chain, joined.membership.coordinator)
    if not spine.head.index and reporter.last_reply is None:
        await reporter.report_once()  # only the host can say whether the run is still at its start
    open_rounds = [await chain.votes_on_head() for chain in chains]  # a downloaded state has moved the head
    lost = [await lost_index(joined.life.folder, chain) for chain in chains]

    def still_lost() -> int:
        return max((index for chain, index in zip(chains, lost, strict=True) if not chain.head.index), default=0)

    return open_rounds, FirstState(
        spine, open_rounds[0], lambda: reporter.reported_index, reached[0], board, still_lost
    )


async def _average(
    joined: JoinedSession,
    chains: Sequence[UnitChain],
    open_rounds: Sequence[OpenRound],
    trainer: PeerTrainer,
    first: FirstState,
) -> None:
    """Run the rounds of all units and their services, until the run is over."""
    board, rounds = joined.life.board, peer_rounds(joined)
    still_s = standing_still_s(joined.membership.manifest.config)
    services = [
        unit_service(joined, chain, open_round, UnitTrainer(trainer, place, still_s), rounds)
        for place, (chain, open_round) in enumerate(zip(chains, open_rounds, strict=True))
    ]
    for service in services:
        rounds.add(service)
    trainer.record = board.spans.record
    joined.life.sources.begin_rounds(trainer, services[0], services[1:])
    rounds.serve()
    await _rounds(joined, rounds, services, trainer, first)


async def _rounds(
    joined: JoinedSession,
    rounds: PeerRounds,
    services: Sequence[RoundService],
    trainer: PeerTrainer,
    first: FirstState,
) -> None:
    """Train and average until the run is over or we are asked to leave. Then say goodbye, while all services for it still run."""
    life, membership, reporter = joined.life, joined.membership, joined.reporter
    total_tokens, service = membership.manifest.config.run.total_tokens, services[0]
    chains = [each.chain for each in services]

    def is_over() -> bool:
        return service.chain.head.total_tokens >= total_tokens

    async def listed(entries: Sequence[DirectoryEntry]) -> None:
        await rounds.list_peers(tuple(p for p in joined.roster.take_records(entries) if p != membership.coordinator))

    async with trio.open_nursery() as nursery:
        # the rounds do not wait for the start of training, since voting and fetching need none
        nursery.start_soon(_begin_training, life, services, trainer, first)
        await nursery.start(rounds.run)
        nursery.start_soon(watch_isolation, joined, rounds)
        nursery.start_soon(audit_work, joined, service, trainer)
        if reporter.gate is not None:
            reporter.gate.take_commits = take_host_commits(service)
            nursery.start_soon(reporter.gate.pass_on, joined.network, joined.roster.listed, joined.roster.check_member)
        nursery.start_soon(list_peers, joined.poller, listed, IN_ROUNDS)
        with life.departure.ends():
            await measure_commits(joined, service, chains, trainer, is_over, _cache(life))
            await finish(joined, service)
        with trio.move_on_after(STAYS_WITHIN_S + GOODBYE_WITHIN_S):
            await rounds.leave(life.config.parting_s)
        if not is_over():
            await hand_over_lone_parts(joined, rounds, services)
        with trio.move_on_after(GOODBYE_WITHIN_S):
            reporter.is_leaving = True
            await reporter.report_once()
        nursery.cancel_scope.cancel()


async def _begin_training(
    life: PeerSession, services: Sequence[RoundService], trainer: PeerTrainer, first: FirstState
) -> None:
    """Wait until the training process has the anchors of all units. Start training, within the owner's limits, once there is a
    state.
    """
    life.board.say("catching up", "the training process is starting")
    for service in services:
        await service.wait_adopted()
    await first.wait()
    life.board.say("training", "training")
    async with open_plain_nursery() as beside:
        beside.start_soon(serve_profiles, life.config.state_dir, trainer, life.clock, ThreadOffload())
        await life.controls.order(trainer)


async def _bring_data(joined: JoinedSession, cache: ShardCache, held: Sequence[int]) -> None:
    """Fetch the missing data of these parts' holder from the host and from members listed meanwhile, and check it."""
    membership, network, roster = joined.membership, joined.network, joined.roster
    check_weights(membership.manifest.config, membership.dataset)
    listed = list(await _members_listed(joined))

    async def relisted(entries: Sequence[DirectoryEntry]) -> None:
        listed[:] = roster.take_records(entries)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(list_peers, joined.poller, relisted)
        files, say = joined.experts.files(membership.dataset, held), partial(joined.life.board.say, "joining")
        await fetch_data(network, files, cache, lambda: (*listed, membership.coordinator), say)
        nursery.cancel_scope.cancel()
    await ThreadOffload().run(partial(check_data, membership.manifest.config, membership.dataset, cache))


async def _members_listed(joined: JoinedSession) -> tuple[PeerId, ...]:
    me = joined.network.peer_id
    entries = [e for e in await joined.poller.poll() if e.subkey != me]
    return asking_order(me, joined.roster.take_records(entries))
