"""Joining a run: from an invite or an earlier session's files to a checked membership, the data and the start record.

Rules: R25 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio
from cryptography import x509

from averaging.data.shard_exchange import fetch_shard
from averaging.data.shards import DatasetManifest, HashedFile, ShardCache, parse_dataset
from averaging.network.seams.asyncio_thread import open_plain_nursery
from averaging.network.seams.interfaces import Clock, Network
from peer.membership.kept_milestones import add_milestones
from peer.membership.named_run import find_run
from peer.membership.open_entry import enter
from peer.membership.saved_membership import (
    SavedMembership,
    host_heard_s,
    is_known,
    last_run_folder,
    load_membership,
    run_folder,
    save_membership,
)
from protocol.errors import (
    CallTimeout,
    ConfigError,
    PeerUnreachable,
    PotluckError,
    RefusedError,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
    VersionError,
)
from protocol.host.calls import START_DOMAIN
from protocol.identity.credential import check_credential, key_pem, make_request, make_tls_key
from protocol.identity.envelope import open_envelope
from protocol.identity.identity import Identity
from protocol.identity.invite import Invite, decode_invite
from protocol.identity.names import peer_name
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, Root, RunId, short
from protocol.rounds.messages.start import StartRecord
from protocol.rounds.messages.wire import decode_body
from protocol.rounds.schedule.asking_order import asking_order
from protocol.run.manifest import RunManifest, open_manifest
from protocol.tables import duration, in_bytes
from protocol.tensors.tensor_schema import TensorSchema

if TYPE_CHECKING:
    from peer.membership.coordinator_client import CoordinatorClient  # imports grpc

log = structlog.get_logger()

MAX_CLOCK_ERROR_S: Final = 120.0
"""Signed messages expire within minutes, so a peer with a worse clock cannot take part."""

CLOCK_REMEDY: Final = "set the clock (NTP) and join again"
CLOCK_WITHIN_S: Final = 5.0
SHARD_WITHIN_S: Final = 60.0
RETRY_S: Final = 1.0
DATA_WITHIN_S: Final = 600.0
TOLD_AFTER_S: Final = 8.0
"""Time without an answer or a byte of data after which the owner is told why."""


@dataclass(frozen=True)
class Membership:
    """A checked membership. `has_ended`: the credential was valid at the host's last answer and has expired since."""

    saved: SavedMembership
    manifest: RunManifest
    dataset: DatasetManifest
    has_ended: bool = False

    @property
    def run_id(self) -> RunId:
        """The run."""
        return self.manifest.run_id

    @property
    def coordinator(self) -> PeerId:
        """The coordinator's peer id on the network."""
        return PeerId(self.saved.coordinator_peer_id)


def check_membership(saved: SavedMembership, run_id: RunId) -> Membership:
    """Check a manifest and data set that were saved or received.

    Raises:
        RemoteProtocolError, VersionError: they are not of this run, or of another protocol version.
    """
    manifest = open_manifest(saved.manifest, verifier=Ed25519Verifier(), expected_run_id=run_id)
    return Membership(saved, manifest, parse_dataset(saved.dataset, manifest.dataset_id))


def saved_membership(folder: Path, identity: Identity, run_id: RunId, now_unix_s: float) -> Membership | None:
    """The membership of an earlier session; None if there is none or its credential is invalid. An expired credential is valid
    while the host is away and cannot renew it, if it was valid when the host was last heard (R25).
    """
    saved = load_membership(folder)
    if saved is None:
        return None

    def check(as_of_unix_s: float) -> None:
        peer_id, authority = identity.peer_id, saved.ca_certificate_der
        check_credential(saved.credential, authority, peer_id=peer_id, run_id=run_id, now_unix_s=as_of_unix_s)

    has_ended = False
    try:
        try:
            check(now_unix_s)
        except RefusedError:
            check(min(now_unix_s, host_heard_s(folder)))
            has_ended = True
    except RefusedError as error:
        log.info("credential_not_used", reason=error.one_line())
        return None
    return replace(check_membership(saved, run_id), has_ended=has_ended)


def check_invite(invite: Invite, now_unix_s: float) -> None:
    """Check a newcomer's invite as far as possible without network and without writing anything.

    Raises:
        ConfigError: its CA certificate cannot be read.
        RefusedError: it has expired, or this machine's clock says that the run is still to be made.
    """
    try:
        authority = x509.load_der_x509_certificate(invite.ca_certificate_der)
    except ValueError as error:
        raise ConfigError(
            "an invite with a CA certificate that cannot be read", "a whole invite", "ask the host for a new one"
        ) from error
    early_s = authority.not_valid_before_utc.timestamp() - now_unix_s
    if early_s > 0:
        # TLS alone would only report an invalid certificate.
        raise RefusedError(
            f"this machine's clock is at least {early_s / 60:.0f} minutes behind: it shows a time before the run was made",
            "a clock that is right",
            CLOCK_REMEDY,
        )
    invite.ensure_fresh(now_unix_s)


def usable_invite(state_dir: Path, text: str, now_unix_s: float, run: str = "") -> Invite:
    """The invite in `text`, or that of a known run for an empty one, checked without network and without writing anything. A run that
    was joined before needs no fresh invite.

    Args:
        run: name or id of the known run; the one that was joined last for "".

    Raises:
        ConfigError, RefusedError: as `decode_invite`, `check_invite` and `invite_of_named_run`.
        StorageError, RemoteProtocolError, VersionError: as `invite_of_named_run`.
    """
    invite = decode_invite(text) if text else invite_of_named_run(state_dir, run)
    if not is_known(run_folder(state_dir, invite.run_id)):
        check_invite(invite, now_unix_s)
    return invite


def invite_of_run(folder: Path) -> Invite:
    """An invite without a secret to the run in `folder`, which was joined before. Only a known peer can use it.

    Raises:
        ConfigError: the run was never joined to the end.
        StorageError, RemoteProtocolError, VersionError: what was kept is damaged or of another version.
    """
    saved = load_membership(folder)
    if saved is None:
        raise ConfigError(
            f"the run in {folder} was not joined: its host never admitted this peer",
            "the line that the host printed",
            "potluck join potluck1:...",
        )
    return Invite(
        coordinator_addresses=saved.addresses,
        ca_certificate_der=saved.ca_certificate_der,
        run_id=open_manifest(saved.manifest, verifier=Ed25519Verifier()).run_id,
        secret=b"",
        expires_unix_s=0,
        bootstrap=saved.bootstrap,
        max_uses=0,
    )


def invite_of_named_run(state_dir: Path, run: str = "") -> Invite:
    """An invite without a secret to the run of that name or id; to the one that was joined last for "". Raises as `invite_of_run`."""
    if run:
        return invite_of_run(find_run(state_dir, run))
    folder = last_run_folder(state_dir)
    if folder is None:
        raise ConfigError(
            f"no invite, and no run joined from {state_dir} before",
            "the line that the host printed",
            "potluck join potluck1:...",
        )
    return invite_of_run(folder)


def _check_clock(ahead_s: float) -> None:
    """`ahead_s`: how far the coordinator's clock is ahead of ours."""
    # Written so that NaN is refused too.
    if abs(ahead_s) <= MAX_CLOCK_ERROR_S:
        return
    side = "behind" if ahead_s > 0 else "ahead of"
    raise RefusedError(
        f"this machine's clock is {abs(ahead_s):.0f} s {side} the host's",
        f"at most {MAX_CLOCK_ERROR_S:.0f} s",
        CLOCK_REMEDY,
    )


async def check_clock_again(client: CoordinatorClient) -> bool:
    """Compare clocks for a returning peer that needs no admission. Returns whether the coordinator could be asked.

    Raises:
        RefusedError: our clock is far off: everybody would drop our messages as expired, and nobody would tell us.
        VersionError: the coordinator speaks another version.
    """
    with trio.move_on_after(CLOCK_WITHIN_S):
        try:
            ahead_s = await client.clock_ahead_s()
        except (UnreachableError, TransportError, RefusedError) as error:
            # The host is away, or its address now belongs to another machine. Peers train and average without it.
            log.info("clock_not_compared", reason=error.one_line())
            return False
        _check_clock(ahead_s)
        return True
    return False


async def come_back(
    membership: Membership, client: CoordinatorClient, invite: Invite, identity: Identity, folder: Path, clock: Clock
) -> tuple[Membership, bool]:
    """Resume an earlier session's membership. Renews an expired credential, and goes on as it is while the host is away. Returns
    the membership, and whether the host answered.

    Raises:
        RefusedError, VersionError: as `check_clock_again`; where the credential has ended as `admit`.
    """
    if not membership.has_ended:
        return membership, await check_clock_again(client)
    try:
        return await admit(client, invite, identity, folder, clock), True
    except (UnreachableError, TransportError) as error:
        log.warning("credential_has_ended", reason=error.one_line(), remedy="it is renewed as soon as the host answers")
        return membership, False


async def admit(
    client: CoordinatorClient,
    invite: Invite,
    identity: Identity,
    folder: Path,
    clock: Clock,
    say: Callable[[str], None] = lambda _: None,
) -> Membership:
    """Ask the coordinator for admission and save its answer. `say` is told what takes longer.

    Raises:
        RefusedError: the invite is used, expired or of another run, or our clock is far off.
        UnreachableError, VersionError: nobody answers, or it speaks another version.
    """
    async with open_plain_nursery() as nursery:
        nursery.start_soon(_tell_of_silence, invite.coordinator_addresses)
        ahead_s = await client.clock_ahead_s()
    _check_clock(ahead_s)
    tls_key = make_tls_key()
    request = make_request(identity, invite.run_id, tls_key, clock.unix_s())
    if invite.is_open:
        reply = await enter(client, identity, invite.run_id, request, say)
        log.info("admitted_as_stranger", reason="work is counted; strangers do not vote or reduce, members may reduce")
    else:
        reply = await client.admit(invite.secret, request)
    before = load_membership(folder)  # keep the addresses that other peers told us; they outlive a credential
    saved = SavedMembership.model_construct(
        addresses=invite.coordinator_addresses,
        ca_certificate_der=invite.ca_certificate_der,
        tls_key_pem=key_pem(tls_key),
        credential=reply.credential,
        manifest=reply.manifest,
        dataset=reply.dataset,
        start_record=reply.start_record or (before.start_record if before is not None else b""),
        peer_addresses=before.peer_addresses if before is not None else (),
        coordinator_peer_id=reply.coordinator_peer_id,
        bootstrap=tuple(dict.fromkeys((*reply.bootstrap, *invite.bootstrap))),
    )
    membership = check_membership(saved, invite.run_id)
    save_membership(folder, saved)
    if reply.milestones:
        add_milestones(folder, reply.milestones)
    return membership


async def _tell_of_silence(addresses: Sequence[str]) -> None:
    await trio.sleep(TOLD_AFTER_S)
    log.warning(
        "host_does_not_answer_yet",
        tried=list(addresses),
        remedy="if it stays so: its owner must start it, forward this TCP port to it and open it in the firewall",
    )


async def fetch_data(
    network: Network,
    files: Sequence[HashedFile],
    cache: ShardCache,
    donors: Callable[[], Sequence[PeerId]],
    on_progress: Callable[[str], None],
) -> None:
    """Download these files of the data set into the cache from any peer that has them, and check each. A donor's failure is shown
    and logged once no byte has come for TOLD_AFTER_S.

    Raises:
        UnreachableError: nobody gave a shard for ten minutes.
    """
    missing = [entry for entry in files if not await trio.to_thread.run_sync(cache.has, entry)]
    began_s, all_bytes, here_bytes = trio.current_time(), sum(entry.num_bytes for entry in missing), 0
    lacking: set[PeerId] = set()
    for entry in missing:
        fetching = _data_progress(here_bytes, all_bytes, trio.current_time() - began_s)
        on_progress(fetching)
        here_bytes += entry.num_bytes
        silence, data = _Silence(fetching, on_progress), None
        with trio.move_on_after(DATA_WITHIN_S):
            async with open_plain_nursery() as nursery:
                nursery.start_soon(silence.tell)
                while (data := await _fetch_one(network, entry, donors(), silence, lacking)) is None:
                    await trio.sleep(RETRY_S)
        if data is None:
            why = f" ({silence.reason})" if silence.reason else ""
            raise UnreachableError(
                f"nobody gave data shard {entry.sha256[:8]}{why}", "the host or one peer that has it", "try again later"
            )
        await trio.to_thread.run_sync(cache.put, entry, data)


def _data_progress(here_bytes: int, num_bytes: int, took_s: float) -> str:
    left_s = (num_bytes - here_bytes) * took_s / here_bytes if here_bytes else None
    left = "time left: not known yet" if left_s is None else f"{duration(left_s)} to go"
    return f"fetching the run's data: {in_bytes(here_bytes)} of {in_bytes(num_bytes)}, {left}"


class _Silence:
    """Tells the owner why no data comes.

    Attributes:
        reason: the latest donor's failure; empty before one.
    """

    def __init__(self, fetching: str, show: Callable[[str], None]) -> None:
        self.reason = ""
        self._fetching = fetching
        self._show = show
        self._shown = ""
        self._since_s = trio.current_time()

    def failed(self, donor: PeerId, error: PotluckError) -> None:
        """A donor gave nothing. The network's words for one that cannot be reached are for the log alone."""
        is_silent = isinstance(error, (CallTimeout, PeerUnreachable))
        self.reason = f"{peer_name(donor)} does not answer" if is_silent else f"{peer_name(donor)}: {error.found}"

    def ends(self, _num_bytes: int) -> None:
        """Bytes have come."""
        self._since_s = trio.current_time()
        if self._shown:
            self._shown = ""
            self._show(self._fetching)

    async def tell(self) -> None:
        """Show and log each new reason while nothing comes, until cancelled."""
        while True:
            await trio.sleep(RETRY_S)
            reason = self.reason or "no peer has answered yet"
            if trio.current_time() - self._since_s >= TOLD_AFTER_S and reason != self._shown:
                self._shown = reason
                self._show(f"{self._fetching}; nothing has come for {TOLD_AFTER_S:.0f} s or more: {reason}; tries on")
                log.warning("no_data_comes", reason=reason)


async def _fetch_one(
    network: Network, entry: HashedFile, donors: Sequence[PeerId], silence: _Silence, lacking: set[PeerId]
) -> bytes | None:
    """The file from the first donor that gives it; None if none does. The last donor, the host, is asked after all others, and those
    that lacked a file before are asked last of all.
    """
    asked, num_bytes = bytes.fromhex(entry.sha256), entry.num_bytes
    order = (*asking_order(network.peer_id, donors[:-1], asked), *donors[-1:])
    for donor in sorted(order, key=lambda donor: donor in lacking):
        try:
            data = await fetch_shard(network, donor, asked, num_bytes, timeout_s=SHARD_WITHIN_S, on_bytes=silence.ends)
        except PotluckError as error:
            silence.failed(donor, error)
            log.debug("shard_not_fetched", donor=peer_name(donor), reason=error.one_line())
            lacking.add(donor)
            continue
        if data is not None:
            lacking.discard(donor)
            return data
        lacking.add(donor)
        silence.reason = f"{peer_name(donor)} does not have it"
    return None


def open_start_record(sealed: bytes, manifest: RunManifest) -> bytes:
    """The payload of the host's signed start record.

    Raises:
        RemoteProtocolError: signed by another key than the host's, or of another run.
    """
    envelope = open_envelope(
        sealed, verifier=Ed25519Verifier(), domain=START_DOMAIN, run_id=manifest.run_id, now_unix_ms=None
    )
    if envelope.public_key != bytes.fromhex(manifest.host_public_key):
        raise RemoteProtocolError("a start record that the host did not sign", "the host's signature")
    return envelope.payload


def check_start(start_record: bytes, schema: TensorSchema, own_root: Root) -> None:
    """Compare the run's first state with the one computed here. Names and bytes of all tensors must match, or the peer cannot take
    part.

    Raises:
        VersionError: this version of Potluck makes other tensors or other first values than the host's.
    """
    start = decode_body(StartRecord, start_record)
    unit = next((part for part in start.units if part.unit == schema.unit), None)
    remedy = "install the same release as the host"
    if unit is None or unit.schema_fingerprint != schema.fingerprint():
        raise VersionError(f"unit {schema.unit} has other tensors in this run", "the tensors of this release", remedy)
    if unit.state_root != own_root:
        raise VersionError(
            f"the run's first state has root {short(unit.state_root)}", f"{short(own_root)} as here", remedy
        )
