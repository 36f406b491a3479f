"""The words and views of the host's daemon: its greeting, screen, events and public page, and the tools of its helper."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from averaging.data.shards import ShardCache
from averaging.network.direct.direct import DirectOptions
from averaging.network.direct.tls_identity import TlsCredential, credential_check
from averaging.network.pacing.byte_quota import ByteQuota
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.interfaces import Network
from averaging.network.seams.offload import ThreadOffload
from averaging.notices.conditions import Condition
from averaging.open_runs.card_directory import directory_addresses
from averaging.storage.disk_room import DiskMeter
from coordinator.admission.addresses import (
    HostAddresses,
    wider_note,
)
from coordinator.admission.greeting import WITHDRAWN_NOTE, address_lines, complete_lines, invite_lines, open_lines
from coordinator.admission.invites import (
    InviteAddresses,
    IssuedInvite,
    invite_of_start,
    issue_invite,
    known_reach,
    open_line,
    remember_reach,
)
from coordinator.admission.open_door import OpenDoor, door_rules, standing_rules
from coordinator.admission.own_card import OwnCard, card_of, keep_in_directory, keep_listed
from coordinator.admission.qr_code import qr_at_start
from coordinator.audits.step_watch import watched_steps
from coordinator.checkpoints.verify import export_sentence
from coordinator.helper.supervisor import HELPER_FOLDER, HelperContext
from coordinator.history.certificate_archive import ARCHIVE_FOLDER
from coordinator.history.run_history import HistoryPlace, RunHistory
from coordinator.ledger.ledger import CheckpointRow, Ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.ledger.memory_keeper import MemoryKeeper
from coordinator.ledger.work_keeper import WorkKeeper
from coordinator.policy.door import DAY_S
from coordinator.policy.standing_core import PeerTrust
from coordinator.progress.chain_log import followed
from coordinator.progress.links.known_links import NOTHING_FOLLOWED
from coordinator.progress.run_core import Phase
from coordinator.progress.run_events import EventBook, RunEvent, event_row
from coordinator.progress.run_view import hidden_peers
from coordinator.progress.tracker import RunTracker
from coordinator.push.pusher import SCRATCH_FOLDER, Pusher
from coordinator.run.run_files import (
    CHECKPOINT_FOLDER,
    DATA_FOLDER,
    RunFiles,
    RunTokenizer,
)
from coordinator.run.start_command import RunAtClose, StartCommand, run_at_close
from coordinator.scores.score_files import SCORES_NAME
from coordinator.scores.task_scores import TaskScores, decoder_of, scored_tasks
from coordinator.status.host_notices import HostConditions
from coordinator.status.leaders import Leader, leaders_of
from coordinator.status.model_downloads import EXPORT_FOLDER, ModelDownloads
from coordinator.status.screen import NEW_EVENTS, HostView, host_view
from coordinator.status.status_page import RunSource
from protocol.identity.credential import BACKDATE_S
from protocol.identity.identity import Identity
from protocol.identity.identity_file import HeldIdentity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, UnitName

if TYPE_CHECKING:
    from coordinator.policy.config import HostConfig


Say = Callable[[str], None]

DATA_SETS_A_DAY: Final = 2
"""A stranger that lost its disk may fetch its text again."""


@dataclass(frozen=True, slots=True)
class HostDaemon:
    """The resources that the daemon's services share."""

    config: HostConfig
    held: HeldIdentity
    run: RunFiles
    writer: LedgerWriter
    clock: SystemClock
    offload: ThreadOffload
    tracker: RunTracker
    tokenizer: RunTokenizer | None
    disk: DiskMeter
    memory: MemoryKeeper
    scores: TaskScores
    events: EventBook = field(default_factory=EventBook)


def helper_context(host: HostDaemon, addresses: HostAddresses, reach: InviteAddresses, say: Say) -> HelperContext:
    """The tools of the helper beside the host. Its invites admit one peer each, and last an hour."""

    async def issue() -> str:
        now_unix_s, run = host.clock.unix_s(), host.run
        issued = await host.writer.run(
            lambda ledger: issue_invite(ledger, run, reach, uses=1, hours=1.0, now_unix_s=now_unix_s)
        )
        return issued.line

    return HelperContext(
        folder=host.run.folder.absolute() / HELPER_FOLDER,
        listen_host=addresses.listen_host or "0.0.0.0",
        announce_host=host.config.announce_host,
        first_port=host.config.helper_port or addresses.p2p_port + 2,
        clock=host.clock,
        are_hidden=lambda: hidden_peers(host.tracker.picture(), host.clock.monotonic_s()),
        is_over=partial(is_over, host),
        issue_invite=issue,
        say=say,
    )


def is_over(host: HostDaemon) -> bool:
    """Whether the run is complete."""
    return host.tracker.state.phase is Phase.FINISHED


def at_close(host: HostDaemon) -> RunAtClose:
    """How the run stands now that its host closes."""
    tracker = host.tracker
    return run_at_close(tracker.state.phase.value, len(tracker.book.live(host.clock.monotonic_s())))


async def greet(
    host: HostDaemon, command: StartCommand, addresses: HostAddresses, network: Network, url: str, say: Say
) -> None:
    """Print the run's state, addresses and invite, and remember how the host is reached. `command` started it."""
    config, run = host.config, host.run
    reach = InviteAddresses(addresses.grpc_addresses, network.addresses())
    is_complete = is_over(host)
    is_asked = not config.model_fields_set.isdisjoint(("invite_uses", "invite_hours"))

    def invite(ledger: Ledger) -> IssuedInvite | None:
        remember_reach(ledger, reach)
        if is_complete:
            return None
        return invite_of_start(
            ledger,
            run,
            reach,
            host.held.identity.libp2p_private_key_bytes(),
            uses=config.invite_uses,
            hours=config.invite_hours,
            is_asked=is_asked,
            now_unix_s=host.clock.unix_s(),
        )

    earlier = await host.writer.run(known_reach)
    before = earlier.addresses if earlier is not None else ()
    issued = await host.writer.run(invite)
    news, bulk_port = host.tracker.news(), next((address.port for address in network.bulk_addresses()), 0)
    say(f"run {run.manifest.config.run.name} is {'complete' if is_complete else 'open'}: {news.phase}, {news.reason}")
    say(f"status   {url}/")
    say(f"metrics  {url}/metrics")
    for line in address_lines(addresses, bulk_port):
        say(line)
    for line in open_lines(open_line(run, reach)) if run.manifest.config.admission.open and not is_complete else ():
        say(line)
    if issued is None and not is_complete:
        say(WITHDRAWN_NOTE)
        return
    if issued is None:
        for line in complete_lines(has_last_checkpoint=host.tracker.is_final_checkpoint_written):
            say(line)
        return
    if note := wider_note(before, addresses, command):
        say(note)
    for line in invite_lines(issued, addresses, command):
        say(line)
    if sys.stdout.isatty():
        size = shutil.get_terminal_size()
        say(qr_at_start(issued.line, size.columns, size.lines))


async def opened_history(
    run: RunFiles, identity: Identity, spine: UnitName, ledger: LedgerWriter, offload: ThreadOffload
) -> RunHistory:
    """The run's milestones, and the archive of its certificates.

    Raises:
        StorageError: the ledger cannot be read.
    """
    verifier = Ed25519Verifier(run.authority.certificate_der)
    place = HistoryPlace(run.manifest.run_id, identity, verifier, spine, run.folder / ARCHIVE_FOLDER)
    history = RunHistory(place, ledger, offload)
    await history.restore()
    return history


async def opened_scores(
    run: RunFiles, tokenizer: RunTokenizer | None, tracker: RunTracker, ledger: LedgerWriter, offload: ThreadOffload
) -> TaskScores:
    """The run's tasks and their scores so far.

    Raises:
        StorageError: the ledger or the data cannot be read.
        MachineError: tokenizers is not installed.
    """

    def opened() -> TaskScores:
        tasks = scored_tasks(run.manifest, run.dataset, ShardCache(run.folder / DATA_FOLDER))
        decode = decoder_of(tokenizer if any(task.prompts for task in tasks.values()) else None)
        return TaskScores(tasks, decode, tracker, run.manifest, ledger, Ed25519Verifier(run.authority.certificate_der))

    scores = await offload.run(opened)
    await scores.restore()
    return scores


def followed_checkpoints(tracker: RunTracker) -> list[CheckpointRow]:
    """The checkpoints on the followed lineage, oldest first."""
    chain = tracker.chain
    known = followed(chain) if chain is not None else NOTHING_FOLLOWED
    return [row for row in tracker.checkpoints if known.has(row.commit, row.index)]


def public_source(host: HostDaemon, source: RunSource) -> RunSource:
    """The public page's source: with downloads of the newest model, if the owner allows them."""
    if not host.config.public_downloads:
        return source

    def newest() -> Path | None:
        rows = sorted(host.tracker.checkpoints, key=lambda row: row.index)
        return host.run.folder / CHECKPOINT_FOLDER / rows[-1].path if rows else None

    folder = host.run.folder / EXPORT_FOLDER
    return replace(source, downloads=ModelDownloads(folder, newest, export_sentence, host.config.public_downloads))


async def note_events(host: HostDaemon) -> None:
    """Take down what has happened in the run since the last call, in memory and in the ledger."""
    picture = host.tracker.picture()
    now_s, unix_s = host.clock.monotonic_s(), int(host.clock.unix_s())
    new = host.events.note(picture, now_s, unix_s, host.tracker.helpers)
    heard_s = {peer: entry.seen_s for peer, entry in picture.peers.items()}
    rows, chosen = [event_row(event) for event in new], {p: entry.report.chosen for p, entry in picture.peers.items()}
    await host.memory.look(host.tracker.chain, heard_s, host.events.states, rows, chosen)
    if host.tracker.history is not None:
        await host.tracker.history.look(host.tracker.chain)


def shown_view(host: HostDaemon) -> HostView:
    """The host's screen at this moment."""
    events, now_s = newest_events(host, NEW_EVENTS), host.clock.monotonic_s()
    past, warning = host.memory.past, host.events.reach.warning
    return host_view(host.tracker.picture(), events, now_s, host.disk.sentence(now_s), past, warning)


def noticed(host: HostDaemon, looked: HostConditions) -> Sequence[Condition]:
    """The conditions to post notices about that hold now."""
    now_s = host.clock.monotonic_s()
    return looked.of(host.tracker.picture(), now_s, host.disk.sentence(now_s))


def newest_events(host: HostDaemon, most: int) -> tuple[RunEvent, ...]:
    """The newest events, oldest first."""
    return tuple(host.events.newest(most))


def direct_options(host: HostDaemon, addresses: HostAddresses) -> DirectOptions:
    """Serve shards and states directly on the port after the bootstrap node's."""
    authority, run_id, unix_s = host.run.authority, host.run.manifest.run_id, host.clock.unix_s
    # Valid from the CA's own begin, so that a peer whose clock is behind can take shards, too.
    begin_unix_s = authority.certificate.not_valid_before_utc.timestamp() + BACKDATE_S
    own = TlsCredential(*authority.issue_own(host.held.identity.peer_id, run_id, now_unix_s=begin_unix_s))
    return DirectOptions(
        credential=lambda: own,
        ca_certificate_der=authority.certificate_der,
        check=credential_check(authority.certificate_der, run_id, unix_s),
        listen_host=addresses.listen_host,
        listen_port=addresses.bulk_port,
        may_take_another=True,
    )


def data_quota(host: HostDaemon) -> ByteQuota:
    """How much of the data set strangers and members may fetch from the host in a day."""
    num_bytes = sum(entry.num_bytes for entry in host.run.dataset.files)

    def is_limited(peer: PeerId) -> bool:
        return not host.tracker.standings.has_vote(peer)

    return ByteQuota(DATA_SETS_A_DAY * num_bytes, DAY_S, is_limited, host.clock.monotonic_s)


async def opened_door(host: HostDaemon) -> tuple[OpenDoor | None, WorkKeeper | None]:
    """The door of an open run, and the count of work by days; None in a run by invite.

    Raises:
        StorageError: the ledger cannot be read.
    """
    run = host.run
    config = run.manifest.config
    if not config.admission.open:
        return None, None
    rules, standing = door_rules(config), standing_rules(config)
    door = OpenDoor(
        run.manifest.run_id,
        rules,
        standing,
        run.authority,
        host.writer,
        host.clock,
        host.offload,
        host.tracker.standings,
    )
    work_days = WorkKeeper(host.writer, host.clock, watched_steps(config))
    await door.restore()
    await work_days.restore()
    return door, work_days


def leaders_now(host: HostDaemon, door: OpenDoor | None, work_days: WorkKeeper | None) -> Sequence[Leader]:
    """The leaderboard of an open run; empty in a run by invite."""
    if door is None or work_days is None:
        return ()
    return leaders_of(work_days.days, host.memory.past.chosen, door.juniors)


def trust_now(door: OpenDoor | None) -> Mapping[PeerId, PeerTrust]:
    """The trust in peers that came by the door of an open run; none in a run by invite."""
    return {} if door is None else door.trust


async def listed(host: HostDaemon, reach: InviteAddresses) -> None:
    """Keep the run's card at the list and in the directory that the owner names, until cancelled."""
    config, run = host.config, host.run
    card = OwnCard(
        partial(card_of, run, host.tracker, open_line(run, reach)), host.held.identity, run.manifest.run_id, host.clock
    )
    async with trio.open_nursery() as nursery:
        if config.list_at:
            nursery.start_soon(keep_listed, card, config.list_at, host.offload)
        if config.announce_dht:
            nursery.start_soon(keep_in_directory, card, directory_addresses(config.announce_dht), host.offload)


def pusher_of(host: HostDaemon) -> Pusher | None:
    """The pusher of checkpoints, if the host asked for one."""
    if not host.run.push:
        return None
    from coordinator.push.push import push_checkpoint, push_scores  # imports torch

    folder = host.run.folder.absolute()
    newest, scratch = partial(followed_checkpoints, host.tracker), folder / SCRATCH_FOLDER
    place = (newest, folder / CHECKPOINT_FOLDER, scratch, host.clock)
    return Pusher(host.run.push, *place, push_checkpoint, push_scores, SCORES_NAME)
