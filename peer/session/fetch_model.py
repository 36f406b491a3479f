"""`potluck checkpoint fetch`: download the run's newest model without training, from members and from the host.

A joiner's checks stand here, too: every certificate is verified on the one before it, from the host's signed start on, and a state
is taken only with a root that a later commit attests. No commit attests the state of the last round of a finished run. The host's
list of checkpoints names its root, over a connection that only the run's host can answer.

The parts that arrived stay on disk until the checkpoint is written, so a download that broke off goes on where it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.codecs import codec_by_name
from averaging.data.base_files import stored_adapter
from averaging.data.shards import HashedFile, ShardCache
from averaging.network.libp2p.libp2p_network import open_libp2p_network
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.interfaces import Network
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.fetching.answering_donors import answering
from averaging.rounds.fetching.download import MAX_DONORS, download_state, download_tools
from averaging.rounds.fetching.milestone_asking import ask_milestones
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.round_reports import DownloadProgress
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.directory_keys import keys_of
from averaging.rounds.traffic.discovery import DirectoryPoller
from averaging.state.generations import Generations
from averaging.state.run_model import ModelUnit, RunModel
from averaging.state.state import StateHeader, absent_state
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from averaging.trio_errors import run_single_error
from peer.holdings.own_model import DATA_FOLDER, read_template, read_tokenizer
from peer.holdings.training_text import check_weights
from peer.membership.coordinator_client import Caller, CoordinatorClient, CoordinatorEndpoint, open_coordinator_client
from peer.membership.credential_cache import CredentialCache
from peer.membership.joining import (
    Membership,
    admit,
    check_invite,
    come_back,
    fetch_data,
    invite_of_named_run,
    open_start_record,
    saved_membership,
)
from peer.membership.network_options import network_options
from peer.membership.own_ban import own_ban
from peer.membership.saved_membership import is_known, remember_start, run_folder, take_session
from peer.session.build import kept_milestones, result_codec
from peer.session.catch_up import BestLineage, own_lineage
from peer.session.session import SequenceNumbers
from peer.settings.config import PeerConfig
from protocol.errors import PotluckError, RefusedError, RunOverError, TemporaryError, UnreachableError
from protocol.identity.identity import Identity
from protocol.identity.identity_file import HeldIdentity, open_identity
from protocol.identity.invite import Invite, decode_invite
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.lineage.chain import attested_roots
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.wire import genesis_id
from protocol.rounds.schedule.asking_order import asking_order
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

log = structlog.get_logger()

FETCH_FOLDER: Final = "fetched"
"""In a run's folder: the unfinished download, by unit. Nothing else reads it."""

NEWS_WITHIN_S: Final = 10.0
LOOK_TIMES: Final = 3
LOOK_AGAIN_S: Final = 2.0
STATE_WITHIN_S: Final = 24 * 3600.0

OnProgress = Callable[[DownloadProgress], None]


def fetch_model(config: PeerConfig, invite_text: str, run: str, on_progress: OnProgress) -> tuple[RunModel, Path]:
    """The newest model that can be verified, of the invite's run or of one that was joined before. Also returns its folder. Blocks.

    Raises:
        ConfigError: no such run was joined.
        MachineError: another process has this identity.
        RefusedError, RunOverError: the host does not let us in.
        UnreachableError: nobody gave the model.
    """
    invite = decode_invite(invite_text) if invite_text else invite_of_named_run(config.state_dir, run)
    folder, clock = run_folder(config.state_dir, invite.run_id), SystemClock()
    if not is_known(folder):
        check_invite(invite, clock.unix_s())
    if ban := own_ban(config.state_dir, folder):
        raise ban
    with open_identity(config.state_dir / "identity") as held:
        session = take_session(config.state_dir, clock.unix_s())
        visit = _Visit(config.model_copy(update={"no_listen": True}), invite, held, folder, session, clock)
        return run_single_error(partial(_fetch, visit, on_progress)), folder


def forget_download(run_folder: Path) -> None:
    """Delete the files of a download whose model is kept elsewhere. Blocks."""
    shutil.rmtree(run_folder / FETCH_FOLDER, ignore_errors=True)


@dataclass(frozen=True)
class _Visit:
    """This process as a member that trains nothing and takes no connections."""

    config: PeerConfig
    invite: Invite
    held: HeldIdentity
    folder: Path
    session: int
    clock: SystemClock


@dataclass(frozen=True)
class _Run:
    """The run as it is fetched: who has it, its signed start, and the roots that the host names for its checkpoints."""

    network: Network
    membership: Membership
    donors: tuple[PeerId, ...]
    start: bytes
    host_roots: Mapping[CommitId, Root]
    folder: Path
    ca_certificate_der: bytes
    milestones: HeldMilestones


async def _fetch(visit: _Visit, on_progress: OnProgress) -> RunModel:
    async with AsyncExitStack() as stack:
        thread = await stack.enter_async_context(open_asyncio_thread())
        invite, identity = visit.invite, visit.held.identity
        endpoint = CoordinatorEndpoint(invite.coordinator_addresses, invite.ca_certificate_der, invite.run_id)
        caller = Caller(identity, SequenceNumbers(visit.session).take_soon, visit.clock)
        client = await stack.enter_async_context(open_coordinator_client(thread, endpoint, caller))
        arguments = (client, invite, identity, visit.folder, visit.clock)
        saved = saved_membership(visit.folder, identity, invite.run_id, visit.clock.unix_s())
        membership = await admit(*arguments) if saved is None else await _come_back(saved, *arguments)
        start = await _start_record(visit.folder, membership, client)
        roster = CredentialCache(
            membership.run_id,
            invite.ca_certificate_der,
            membership.coordinator,
            membership.saved.credential,
            Ed25519Verifier(),
            visit.clock,
            None,
            membership.saved.tls_key_pem,
        )
        options = network_options(
            visit.config,
            visit.held.path,
            membership,
            invite.ca_certificate_der,
            roster,
            Ed25519Verifier(),
            visit.clock,
            is_outbound_only=True,
        )
        network = await stack.enter_async_context(
            open_libp2p_network(thread, options, identity.peer_id, unix_s=visit.clock.unix_s)
        )
        roster.serve(network)
        donors = (*await _members(network, membership, roster), membership.coordinator)
        cache = ShardCache(visit.config.state_dir / DATA_FOLDER, visit.config.cache_bytes)
        dataset = membership.dataset
        check_weights(membership.manifest.config, dataset)
        files: list[HashedFile] = [*dataset.part("base")]
        files += [entry for entry in (dataset.tokenizer, dataset.template) if entry is not None]
        if files:
            await fetch_data(
                network, files, cache, lambda: donors, lambda sentence: log.info("fetching", what=sentence)
            )
        host_roots = await roots_of_host(client)
        kept = await kept_milestones(visit.folder, membership, start, Ed25519Verifier(invite.ca_certificate_der))
        root_der = invite.ca_certificate_der
        run = _Run(network, membership, donors, start, host_roots, visit.folder, root_der, kept.held)
        units, proof = await _fetch_units(run, on_progress)
        adapter = stored_adapter(membership.manifest.config, dataset)
        tokenizer, template = read_tokenizer(dataset, cache), read_template(dataset, cache)
        return RunModel(membership.manifest, units, tokenizer, proof, adapter, template)


async def _come_back(
    saved: Membership, client: CoordinatorClient, invite: Invite, identity: Identity, folder: Path, clock: SystemClock
) -> Membership:
    """The membership of an earlier session. After the end of a run the host renews no credential, and still serves its members."""
    try:
        membership, _ = await come_back(saved, client, invite, identity, folder, clock)
    except RunOverError as error:
        log.info("credential_not_renewed", reason=error.one_line())
        return saved
    return membership


async def _start_record(folder: Path, membership: Membership, client: CoordinatorClient) -> bytes:
    """The payload of the signed start record: saved, or from the host."""
    sealed = membership.saved.start_record
    if not sealed:
        with trio.move_on_after(NEWS_WITHIN_S):
            async with client.watch() as watch:
                sealed = (await watch.next()).start_record
        if not sealed:
            raise TemporaryError("the run has not started", "a run with a finished round", "try again later")
        open_start_record(sealed, membership.manifest)
        await ThreadOffload().run(partial(remember_start, folder, sealed))
    return open_start_record(sealed, membership.manifest)


async def _members(network: Network, membership: Membership, roster: CredentialCache) -> tuple[PeerId, ...]:
    """The other members that the directory lists. There may be none: after the end of a run only the host is there."""
    poller = DirectoryPoller(network, keys_of(membership.manifest))
    for attempt in range(LOOK_TIMES):
        entries = [entry for entry in await poller.poll() if entry.subkey != network.peer_id]
        members = tuple(peer for peer in roster.take_records(entries) if peer != membership.coordinator)
        if members:
            return asking_order(network.peer_id, members)
        if attempt + 1 < LOOK_TIMES:
            await trio.sleep(LOOK_AGAIN_S)
    return ()


async def roots_of_host(client: CoordinatorClient) -> dict[CommitId, Root]:
    """The roots of the host's checkpoints, by commit; none while the host is away. A refusal is an error, since members refuse a
    banned peer, too.
    """
    try:
        return {entry.commit: entry.state_root for entry in await client.list_checkpoints()}
    except RefusedError:
        raise
    except PotluckError:
        return {}


async def _fetch_units(run: _Run, on_progress: OnProgress) -> tuple[tuple[ModelUnit, ...], str]:
    """All units, each in its newest state that is attested; the stages of a pipeline in one round."""
    manifest = run.membership.manifest
    chains = [_chain(run, schema) for schema in manifest.unit_schemas().values()]
    lineages = [await _lineage(run, chain) for chain in chains]
    roots = [_roots(links, run.host_roots) for links in lineages]
    if manifest.config.stages is not None:
        roots = _of_one_round(lineages, roots)
    units = []
    for chain, schema, each in zip(chains, manifest.unit_schemas().values(), roots, strict=True):
        with trio.fail_after(STATE_WITHIN_S):
            tools = download_tools(run.network, chain.tools)
            state = await download_state(tools, run.donors, each, on_progress)
        units.append(ModelUnit(schema, chain.tools.grid, state, each[state.head]))
    spine = units[0].state
    is_attested = spine.head in attested_roots(lineages[0])
    return tuple(units), "as a later round attests it" if is_attested else "as the host's last checkpoint names it"


def _of_one_round(
    lineages: Sequence[Sequence[ChainLink]], roots: Sequence[Mapping[CommitId, Root]]
) -> list[dict[CommitId, Root]]:
    """The roots of all stages in the newest round that each has one of."""
    indexes = [
        {link.index: link.commit for link in links if link.commit in each}
        for links, each in zip(lineages, roots, strict=True)
    ]
    index = min(map(max, indexes))
    if any(index not in found for found in indexes):
        raise UnreachableError(f"the stages have no round {index} in common", "one of all stages", "try again later")
    return [{found[index]: each[found[index]]} for found, each in zip(indexes, roots, strict=True)]


def _roots(links: Sequence[ChainLink], host_roots: Mapping[CommitId, Root]) -> dict[CommitId, Root]:
    """The roots of the states that may be taken. The host's word counts only for a lineage's last commit, which none attests yet."""
    attested = attested_roots(links)
    found = {link.commit: attested[link.commit] for link in links if link.index and link.commit in attested}
    head = links[-1]
    if head.index and head.commit in host_roots:
        found.setdefault(head.commit, host_roots[head.commit])
    if not found:
        raise UnreachableError(
            f"no verified state of {head.unit} yet, at round {head.index}",
            "a run with two rounds, and the host or a member that has them",
            "try again later",
        )
    return found


async def _lineage(run: _Run, chain: UnitChain) -> Sequence[ChainLink]:
    """The longest verified lineage that a donor shows."""
    here = await answering(run.network, chain.tools.unit, run.donors[-MAX_DONORS:])  # the host is the last one
    await ask_milestones(run.network, chain, here.in_order)
    best = BestLineage(chain, await own_lineage(chain))
    reasons = []
    for donor in here.in_order:
        if best.index and donor in here.silent:
            break
        try:
            await best.ask(run.network, donor)
        except PotluckError as error:
            reasons.append(f"{short(donor)}: {error.one_line()}")
            log.info("commits_not_fetched", donor=short(donor), reason=error.one_line())
    if not best.index and reasons:
        raise UnreachableError(
            f"nobody showed the run's rounds ({'; '.join(reasons)})", "the host or a member of the run"
        )
    return best.lineage.links


def _chain(run: _Run, schema: TensorSchema) -> UnitChain:
    """The unit at the start of the run, with a folder for what arrives."""
    manifest, offload = run.membership.manifest, ThreadOffload()
    config = manifest.config
    grid = ChunkGrid(schema.num_elements, config.chunk_elements)
    storage = FileStorage(run.folder / FETCH_FOLDER / schema.unit, offload)
    tools = UnitContext(
        manifest.run_id,
        schema.unit,
        Ed25519Verifier(run.ca_certificate_der),
        codec_by_name(config.round.codec),
        grid,
        offload,
        UnitLog(storage),
        Generations(storage, grid, offload),
        results=result_codec(config),
        milestones=run.milestones,
    )
    header = StateHeader(schema.unit, genesis_id(run.start), 0, 0)
    # the chain only checks certificates here, so its state needs no values
    return UnitChain(tools, run.start, absent_state(header, schema.num_elements))
