"""The host's daemon: one root nursery that owns the ledger, the bootstrap node, the gRPC port, the status page and the checkpoints.

It takes no part in rounds. Stopping it stops admissions, checkpoints and the status page, and nothing else.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.arithmetic.spare_memory import keep_cool
from averaging.data.base_files import stored_adapter
from averaging.data.shard_exchange import SHARD_CHANNEL, serve_shards
from averaging.data.shards import ShardCache
from averaging.host.hints import with_folder
from averaging.host.http import bind_http, serve_http
from averaging.host.http_client import kept_status_address, local_address
from averaging.host.log_file import LOG_FOLDER, keep_log
from averaging.host.progress import no_progress
from averaging.host.used_settings import remember_settings
from averaging.network.libp2p.libp2p_network import NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.asyncio_thread import AsyncioThread, open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.directory import member_record_rule
from averaging.network.seams.interfaces import Network, TrafficCount
from averaging.network.seams.offload import ThreadOffload
from averaging.notices.notifier import Notifier
from averaging.storage.disk_room import DiskMeter
from averaging.storage.full_disk import FULL_BYTES
from averaging.system.leave_signals import watch_signals
from averaging.system.process_record import running_here
from averaging.trio_errors import run_single_error
from coordinator.admission.addresses import (
    HostAddresses,
    keep_http_port,
    kept_http_port,
    public_url,
    settle_addresses,
)
from coordinator.admission.hosted_run import hosted_run
from coordinator.admission.invites import InviteAddresses, known_reach
from coordinator.admission.rpc import RpcServer, ServerTls, open_rpc_server
from coordinator.admission.service import CoordinatorService
from coordinator.audits.sum_judge import judge_sums
from coordinator.checkpoints.verify import verify_checkpoint
from coordinator.gate.loss_gate import opened_gate
from coordinator.helper.supervisor import keep_helper
from coordinator.host_view import (
    HostDaemon,
    Say,
    at_close,
    data_quota,
    direct_options,
    followed_checkpoints,
    greet,
    helper_context,
    leaders_now,
    listed,
    newest_events,
    note_events,
    noticed,
    opened_door,
    opened_history,
    opened_scores,
    public_source,
    pusher_of,
    shown_view,
    trust_now,
)
from coordinator.ledger.ledger import LEDGER_FILE, START_RECORD, open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.ledger.memory_keeper import MemoryKeeper
from coordinator.progress.tracker import RunTracker, TrackedRun
from coordinator.push.pusher import Pusher
from coordinator.run.run_files import (
    CHECKPOINT_FOLDER,
    DATA_FOLDER,
    IDENTITY_FILE,
    chat_template,
    open_run,
    run_tokenizer,
    start_units,
)
from coordinator.run.start_command import RunAtClose, StartCommand, closing_words, remember_command
from coordinator.scores.score_files import keep_score_files
from coordinator.status.card_list import CardList
from coordinator.status.host_notices import HostConditions
from coordinator.status.local_view import LOG_NAME
from coordinator.status.metrics.moment import Counts, Moment
from coordinator.status.screen import run_host_screen
from coordinator.status.status_page import RunSource, status_app
from protocol.errors import PotluckError
from protocol.estimates.estimates import run_size
from protocol.host.calls import START_DOMAIN, TLS_SERVER_NAME
from protocol.identity.credential import BACKDATE_S
from protocol.identity.envelope import open_envelope
from protocol.identity.identity_file import open_identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain import attested_roots
from protocol.rounds.messages.wire import genesis_id
from protocol.tensors.tensor_schema import ChunkGrid

if TYPE_CHECKING:
    from averaging.rounds.lineage.unit_chain import UnitChain
    from averaging.state.state import UnitState
    from coordinator.admission.open_door import OpenDoor
    from coordinator.checkpoints.checkpointer import Checkpointer
    from coordinator.experts.unit_keeper import UnitKeeper
    from coordinator.ledger.work_keeper import WorkKeeper
    from coordinator.policy.config import HostConfig
    from coordinator.policy.standing_core import PeerTrust
    from coordinator.status.leaders import Leader

_log = structlog.get_logger()

_TICK_S: Final = 1.0


def run_host(run_file: Path, config: HostConfig, command: StartCommand) -> int:
    """Host the run until SIGINT, SIGTERM or SIGHUP; returns the exit code. `command` is told as the one that goes on.

    Raises:
        ConfigError, MachineError, StorageError: the run cannot be hosted, with the reason.
    """
    # A failed service ends the daemon; its own error is what the user should read.
    run_single_error(partial(serve_run, run_file, config, command, say=_say))
    return 0


def _say(text: str) -> None:
    print(with_folder(text), flush=True)


async def serve_run(run_file: Path, config: HostConfig, command: StartCommand, *, say: Say) -> None:
    """Open the run and serve it until a signal comes; `say` gets the lines for the user's terminal.

    Raises:
        ConfigError, MachineError, StorageError: the run cannot be hosted, with the reason.
    """
    async with trio.open_nursery() as root:
        leaving, opened = trio.CancelScope(), list[HostDaemon]()

        def leave(reason: str) -> None:
            _log.info("host_leaving", reason=reason)
            say(closing_words(command, next(map(at_close, opened), RunAtClose.UNKNOWN)))
            leaving.cancel()

        # Outside of `leaving`, because a second signal must be heard while the daemon is leaving.
        root.start_soon(watch_signals, leave)
        with leaving:
            async with _open_host(run_file, config, command, say) as host:
                opened.append(host)
                notifier = Notifier(config.notify_url, config.state_dir, host.clock)
                run = host.run.manifest.config
                looked = HostConditions(run.round.longest_interval_s)
                with no_progress():
                    async with notifier.watch(lambda: run.run.name, partial(noticed, host, looked)):
                        await _serve(host, command, say)
        root.cancel_scope.cancel()


@asynccontextmanager
async def _open_host(run_file: Path, config: HostConfig, command: StartCommand, say: Say) -> AsyncIterator[HostDaemon]:
    clock, offload = SystemClock(), ThreadOffload()
    folder = config.state_dir
    with open_identity(folder / IDENTITY_FILE) as held, ExitStack() as kept:
        if held.was_created:
            say(f"made the host's identity; back this up: {held.path}")
            say("packing the data, once ...")
        log_path = folder / LOG_FOLDER / LOG_NAME
        say(f"log      {log_path}")
        disk = DiskMeter(folder, offload)
        kept.enter_context(keep_log(log_path, disk.hear))
        remember_command(folder, command)
        kept.enter_context(running_here(folder))
        remember_settings(folder, config.model_dump(mode="json"))
        opened = partial(open_run, is_open=config.open)
        run = await offload.run(lambda: opened(run_file, folder, held.identity, now_unix_s=clock.unix_s()))
        with open_ledger(folder / LEDGER_FILE) as ledger:
            units = await offload.run(lambda: start_units(run.manifest, ledger.get(START_RECORD), run.start_shards))
            writer = LedgerWriter(ledger, offload)
            verifier = Ed25519Verifier(run.authority.certificate_der)
            checkpoints = (folder / CHECKPOINT_FOLDER).absolute()
            fixed = (run.manifest, run.manifest.run_id, units, held.identity, verifier, checkpoints)
            tracked = TrackedRun(*fixed, run.dataset.heldout_shares)
            tracker = RunTracker(tracked, writer, clock, offload)
            await tracker.restore()
            tracker.gate = await opened_gate(tracker, run.authority, tracker.convictions.check, writer, clock)
            tracker.history = await opened_history(run, held.identity, units[0].unit, writer, offload)
            tokenizer = await offload.run(lambda: run_tokenizer(run))
            memory = MemoryKeeper(writer, clock)
            disk.needed_bytes = FULL_BYTES + run_size(run.manifest.config).state_bytes
            scores = await opened_scores(run, tokenizer, tracker, writer, offload)
            host = HostDaemon(config, held, run, writer, clock, offload, tracker, tokenizer, disk, memory, scores)
            host.events.restore(await memory.restore())
            yield host


async def _serve(host: HostDaemon, command: StartCommand, say: Say) -> None:
    config = host.config
    addresses = await host.writer.run(lambda ledger: settle_addresses(config, ledger))
    listener = await _bind_page(host, config.http_host, config.http_port)
    public = None
    if config.public_http_port is not None:
        public = await _bind_page(host, config.public_http_host, config.public_http_port, is_public=True)
    reach = await host.writer.run(known_reach)
    node = _Node(reach.bootstrap if reach is not None else ())
    door, work_days = await opened_door(host)
    async with (
        open_asyncio_thread() as thread,
        _open_rpc(host, thread, addresses, node, door) as server,
        trio.open_nursery() as services,
    ):
        pusher = pusher_of(host)
        best, trust = partial(leaders_now, host, door, work_days), partial(trust_now, door)
        look = partial(_look, host, node, server, pusher, best, trust)
        cards = CardList(host.clock.unix_s) if config.keep_list else None
        source = RunSource(look, partial(newest_events, host), verify_checkpoint, page=host.run.page, cards=cards)
        urls = await services.start(serve_http, listener, status_app(source))
        public_urls = []
        if public is not None:
            app = status_app(public_source(host, source), is_public=True)
            public_urls = await services.start(serve_http, public, app)
        with kept_status_address(config.state_dir, urls[0]):
            services.start_soon(_tick, host, work_days)
            say("starting the network: some seconds, or half a minute on a busy machine ...")
            async with _open_network(host, thread, addresses) as network:
                node.network = network
                await greet(host, command, addresses, network, local_address(urls[0]), say)
                for url in public_urls:
                    say(
                        f"public   {public_url(url, addresses.public_host)}   (read-only, for anybody who can reach it)"
                    )
                async with trio.open_nursery() as work:
                    work.start_soon(partial(run_host_screen, partial(shown_view, host), mode=config.screen))
                    work.start_soon(host.disk.keep_measured)
                    work.start_soon(keep_cool)
                    checkpoints = host.run.folder / CHECKPOINT_FOLDER
                    run_id_hex = host.run.manifest.run_id.hex()
                    work.start_soon(keep_score_files, host.scores, host.tracker, checkpoints, run_id_hex, host.offload)
                    if pusher is not None:
                        work.start_soon(pusher.run)
                    if door is not None and (config.list_at or config.announce_dht):
                        reach = InviteAddresses(addresses.grpc_addresses, network.addresses())
                        work.start_soon(listed, host, reach)
                    if config.helper:
                        reach = InviteAddresses(addresses.grpc_addresses, network.addresses())
                        work.start_soon(keep_helper, helper_context(host, addresses, reach, say))
                    keeper = await _unit_keeper(host, network) if host.run.manifest.num_parts else None
                    work.start_soon(_checkpointer(host, network, keeper).run, host.clock, host.offload)
                    accused, reach_peers = host.tracker.convictions, partial(_reach, host, network)
                    work.start_soon(judge_sums, host.run.manifest, accused, network, host.offload, reach_peers)
                    if keeper is not None:
                        work.start_soon(keeper.run)
                    _serve_checkpoints(host, network, keeper)


async def _bind_page(host: HostDaemon, http_host: str, port: int, *, is_public: bool = False) -> socket.socket:
    """Listen for a page on this port; for 0 on that of the last start, so that an address given to others stays right."""
    if not port:
        port = await host.writer.run(partial(kept_http_port, http_host=http_host, is_public=is_public))
    listener = bind_http(http_host, port, flag="--public-http-port" if is_public else "--http-port")
    await host.writer.run(partial(keep_http_port, port=int(listener.getsockname()[1]), is_public=is_public))
    return listener


@dataclass
class _Node:
    """The bootstrap node, which needs seconds to start. Reports and status pages do not wait for it. A peer admitted meanwhile gets
    the addresses of the last start: the node takes the same ports again.
    """

    known: tuple[str, ...]
    network: Network | None = None

    def addresses(self) -> tuple[str, ...]:
        return self.network.addresses() if self.network is not None else self.known

    def traffic(self) -> TrafficCount:
        return self.network.traffic() if self.network is not None else TrafficCount(0, 0, 0, 0)


@asynccontextmanager
async def _open_network(host: HostDaemon, thread: AsyncioThread, addresses: HostAddresses) -> AsyncIterator[Network]:
    run_id = host.run.manifest.run_id

    async def is_admitted(peer: PeerId) -> bool:
        return await host.writer.run(lambda ledger: ledger.is_admitted(peer))

    options = NetworkOptions(
        p2pd=P2pdOptions(host.held.path, addresses.p2p_listen, addresses.p2p_announce, serves_circuits=True),
        record_rule=member_record_rule(Ed25519Verifier(), run_id, host.run.authority.certificate_der),
        admits=is_admitted,
        direct=direct_options(host, addresses),
    )
    peer_id = host.held.identity.peer_id
    cache = ShardCache(host.run.folder / DATA_FOLDER)

    async def read_shard(shard_hash: bytes) -> bytes | None:
        return await host.offload.run(lambda: cache.read(shard_hash.hex()))

    async with open_libp2p_network(thread, options, peer_id, unix_s=host.clock.unix_s) as network:
        network.serve_streams(SHARD_CHANNEL, serve_shards(read_shard, is_admitted, data_quota(host).takes))
        yield network


@asynccontextmanager
async def _open_rpc(
    host: HostDaemon, thread: AsyncioThread, addresses: HostAddresses, node: _Node, door: OpenDoor | None
) -> AsyncIterator[RpcServer]:
    run, hosted = host.run, hosted_run(host.run, host.held.identity.peer_id, node.addresses)
    service = CoordinatorService(hosted, host.tracker, host.writer, host.clock, host.scores, door)
    names = (TLS_SERVER_NAME, *addresses.public_hosts)
    # Valid from the CA's own begin. A peer whose clock is behind then gets an error about its clock, not about a certificate.
    begin_unix_s = run.authority.certificate.not_valid_before_utc.timestamp() + BACKDATE_S
    tls = ServerTls(*run.authority.issue_server(names, now_unix_s=begin_unix_s))
    port = addresses.grpc_port
    async with open_rpc_server(service, thread, tls, host=addresses.listen_host, port=port) as server:
        yield server


def _look(
    host: HostDaemon,
    node: _Node,
    server: RpcServer,
    pusher: Pusher | None,
    leaders: Callable[[], Sequence[Leader]],
    trust: Callable[[], Mapping[PeerId, PeerTrust]],
) -> Moment:
    traffic = node.traffic()
    counts = Counts(
        calls=tuple((name, outcome, count) for (name, outcome), count in sorted(server.answered.items())),
        control_bytes_up=traffic.control_bytes_up,
        control_bytes_down=traffic.control_bytes_down,
        bulk_bytes_up=traffic.bulk_bytes_up,
        bulk_bytes_down=traffic.bulk_bytes_down,
        bulk=traffic.bulk,
        control=traffic.control,
    )
    now_s, past, reach = host.clock.monotonic_s(), replace(host.memory.past, trust=trust()), host.events.reach
    disk, scores, push = host.disk, host.scores.curves(), pusher.state if pusher is not None else None
    picture, energy = host.tracker.picture(), host.tracker.energy.sums()
    trouble = disk.sentence(now_s)
    return Moment(picture, counts, now_s, disk.room, trouble, past, reach, scores, push, energy, leaders())


async def _tick(host: HostDaemon, work_days: WorkKeeper | None) -> None:
    while True:
        await host.tracker.tick()
        if host.tracker.gate is not None:
            await host.tracker.gate.look()
        if work_days is not None:
            await work_days.look(host.tracker.chain)
        await note_events(host)
        await trio.sleep(_TICK_S)


def _checkpointer(host: HostDaemon, network: Network, keeper: UnitKeeper | None) -> Checkpointer:
    from averaging.codecs import codec_by_name
    from coordinator.checkpoints.checkpointer import Checkpointer, CheckpointPlace  # imports torch
    from coordinator.checkpoints.checkpoints import Companions
    from coordinator.checkpoints.state_fetcher import Replayer, StateFetcher
    from coordinator.checkpoints.thinning import CheckpointRules

    manifest, folder = host.run.manifest, host.run.folder
    schema, *others = manifest.unit_schemas().values()
    elements = manifest.config.chunk_elements
    place = CheckpointPlace(
        folder=folder / CHECKPOINT_FOLDER,
        run_name=manifest.config.run.name,
        run_id_hex=manifest.run_id.hex(),
        schema=schema,
        grid=ChunkGrid(schema.num_elements, elements),
        model=manifest.config.model.model_dump(),
        companions=Companions(
            host.tokenizer, stored_adapter(manifest.config, host.run.dataset), chat_template(host.run)
        ),
        others=tuple((other, ChunkGrid(other.num_elements, elements)) for other in others),
        whole=manifest.model_schema if others else None,
        mixture=manifest.config.mixture,
        first=partial(_first_state, host),
        are_stages=manifest.config.stages is not None,
    )
    if keeper is not None:
        place = replace(place, kept=keeper.newest)
    kept = manifest.config.checkpoint
    rules = CheckpointRules(kept.every_rounds, kept.keep, kept.keep_every)
    replayer = None
    if place.whole is None:
        codec, first = codec_by_name(manifest.config.result_codec), partial(_first_state, host, schema.unit)
        replayer = Replayer(network, host.tracker, host.offload, place.folder, schema, place.grid, codec, first)
    fetcher = StateFetcher(network, host.tracker, host.offload, replayer)
    return Checkpointer(place, rules, host.tracker, host.writer, fetcher.fetch)


async def _reach(host: HostDaemon, network: Network, peers: Sequence[PeerId]) -> None:
    """Make these peers' addresses known before they are asked."""
    with suppress(PotluckError):
        await network.add_addresses(host.tracker.addresses_of(peers))


def _first_state(host: HostDaemon, unit: UnitName) -> UnitState:
    """A unit's state at the start of the run. Blocks."""
    from averaging.state.start_state import start_state  # imports torch

    manifest = host.run.manifest
    schema, seed = manifest.unit_schemas()[unit], manifest.config.run.seed
    return start_state(schema, seed, genesis_id(_start_of(host)), host.run.start_shards, manifest.model_schema)


def _start_of(host: HostDaemon) -> bytes:
    """The start record as signed, without its envelope."""
    envelope = open_envelope(
        host.tracker.start_record,
        verifier=Ed25519Verifier(),
        domain=START_DOMAIN,
        run_id=host.run.manifest.run_id,
        now_unix_ms=None,
    )
    return envelope.payload


async def _unit_keeper(host: HostDaemon, network: Network) -> UnitKeeper:
    """The keeper of the experts' states, which is not running yet."""
    from coordinator.experts.unit_keeper import KeeperView, UnitKeeper
    from coordinator.experts.unit_stores import PlacementContext, kept_places  # imports torch

    async def is_admitted(peer: PeerId) -> bool:
        return await host.writer.run(lambda ledger: ledger.is_admitted(peer))

    reach = partial(_reach, host, network)
    verifier, history = Ed25519Verifier(host.run.authority.certificate_der), host.tracker.history
    tools = PlacementContext(host.run, verifier, host.offload, partial(_start_of, host))
    if history is not None:
        tools = replace(tools, milestones=history.of)

    async def settled(chain: UnitChain) -> None:
        if history is not None:
            roots = attested_roots(chain.links)
            await history.look_at(genesis_id(_start_of(host)), chain.links, roots.get)

    places = await host.offload.run(lambda: kept_places(tools))
    tracker = host.tracker
    view = KeeperView(
        tracker.unit_claims,
        is_admitted,
        tracker.units.note_kept,
        reach,
        tracker.spine_view,
        tracker.units.note_commits,
        tracker.units.note_not_counted,
        settled,
    )
    return UnitKeeper(network, places, view, host.run.manifest.config.checkpoint.every_rounds)


def _serve_checkpoints(host: HostDaemon, network: Network, keeper: UnitKeeper | None) -> None:
    """Serve the run's checkpoints to members, and with a keeper also the parts that it keeps."""
    from averaging.rounds.traffic.transfer import FETCH_CHANNEL  # imports torch
    from coordinator.checkpoints.checkpoint_donor import CheckpointDonor, CheckpointStates, DonorView

    manifest, tracker = host.run.manifest, host.tracker
    spine = next(iter(manifest.unit_schemas().values()))
    grid = ChunkGrid(spine.num_elements, manifest.config.chunk_elements)

    def lineage() -> list[CommitId]:
        chain = tracker.chain
        return [commit for commit, _ in chain.behind(chain.head.commit)] if chain is not None else []

    async def is_admitted(peer: PeerId) -> bool:
        return await host.writer.run(lambda ledger: ledger.is_admitted(peer))

    states = CheckpointStates(
        host.run.folder / CHECKPOINT_FOLDER, spine, grid, partial(followed_checkpoints, tracker), host.offload
    )
    history = tracker.history
    view = DonorView(is_admitted, lineage, milestones=history.newest if history is not None else tuple)
    if keeper is not None:
        view = replace(view, others=keeper.answer_fetch, kept_elsewhere=frozenset(manifest.parts))
    network.serve_streams(FETCH_CHANNEL, CheckpointDonor(spine.unit, states, host.writer, view).serve_fetch)
