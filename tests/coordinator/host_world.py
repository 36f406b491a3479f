"""A coordinator's insides without its daemon: manifest, keys, ledger, tracker and service on in-memory seams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from averaging.network.seams.interfaces import Clock, Offload
from averaging.state.start_state import start_root
from coordinator.admission.hosted_run import HostedRun
from coordinator.admission.open_door import OpenDoor, door_rules, standing_rules
from coordinator.admission.service import CoordinatorService
from coordinator.ledger.ledger import Ledger, open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.progress.tracker import RunTracker, TrackedRun
from protocol.host.report_bytes import encode_report
from protocol.host.reports import PeerReport
from protocol.identity.credential import CertificateAuthority, load_ca, make_request, make_tls_key
from protocol.identity.envelope import seal
from protocol.identity.identity import Identity
from protocol.identity.invite import hash_secret
from protocol.ids import PROTOCOL_VERSION, RunId, UnitName
from protocol.pb import coordinator_pb2 as pb
from protocol.rounds.messages.start import StartUnit
from protocol.run.manifest import RunManifest, parse_run_config, sign_manifest
from protocol.tensors.tensor_schema import ChunkGrid
from tests.coordinator.chain_world import CA, CA_KEY, HOST, VERIFIER
from tests.protocol.run.made_manifest import manifest_of
from tests.virtual import InlineOffload, VirtualClock

UNIT = UnitName("fragment-0")
SECRET = b"invite secret 16"
RUN_TOML = """
[run]
name = "tiny"
total_tokens = 1000
[model]
dim = 8
num_layers = 1
num_heads = 2
num_kv_heads = 1
ffn_dim = 8
context_tokens = 8
[inner]
learning_rate = 0.01
batch_tokens = 64
[round]
target_tokens = 300
chunk_elements = 256
[checkpoint]
every_rounds = 2
keep = 2
keep_every = 4
"""


def tiny_manifest(authority: CertificateAuthority, toml: str = RUN_TOML) -> RunManifest:
    return manifest_of(
        parse_run_config(toml),
        heldout_tokens=50,
        zlib_bits_per_byte=1.9,
        pairs_nats_per_byte=2.49,
        host_public_key=HOST.public_key.hex(),
        ca_certificate_sha256=sha256(authority.certificate_der).hexdigest(),
    )


@dataclass
class HostWorld:
    """Everything that a test wants to hold on to. `sequence` numbers the envelopes of all peers."""

    folder: Path
    clock: Clock
    ledger: Ledger
    writer: LedgerWriter
    authority: CertificateAuthority
    manifest: RunManifest
    tracker: RunTracker
    service: CoordinatorService
    start_units: tuple[StartUnit, ...]
    door: OpenDoor | None = None
    sequence: int = 0
    offload: InlineOffload = field(default_factory=InlineOffload)

    @property
    def run_id(self) -> RunId:
        return self.manifest.run_id

    @property
    def grid(self) -> ChunkGrid:
        schema = self.manifest.unit_schemas()[UNIT]
        return ChunkGrid(schema.num_elements, self.manifest.config.chunk_elements)

    def invite(self, uses: int = 10, life_s: int = 3600) -> None:
        now = int(self.clock.unix_s())
        self.ledger.add_invite(hash_secret(SECRET), max_uses=uses, created_unix_s=now, expires_unix_s=now + life_s)

    def admit_request(self, peer: Identity, **changes: object) -> bytes:
        now = self.clock.unix_s()
        values: dict[str, object] = {
            "protocol_version": PROTOCOL_VERSION,
            "run_id": self.run_id,
            "invite_secret": SECRET,
            "credential_request": make_request(peer, self.run_id, make_tls_key(), now),
            "unix_s": now,
        }
        return pb.AdmitRequest(**{**values, **changes}).SerializeToString()

    def sealed(self, peer: Identity, domain: str, payload: bytes = b"") -> bytes:
        self.sequence += 1
        expires_unix_ms = int((self.clock.unix_s() + 60) * 1000)
        envelope = seal(peer, domain, self.run_id, self.sequence, expires_unix_ms, payload)
        return pb.Sealed(envelope=envelope).SerializeToString()

    def report(self, peer: Identity, report: PeerReport) -> bytes:
        return self.sealed(peer, "potluck report", encode_report(report))


@contextmanager
def open_host(
    folder: Path, clock: Clock | None = None, *, toml: str = RUN_TOML, offload: Offload | None = None
) -> Iterator[HostWorld]:
    """The coordinator of a tiny run, its ledger in `folder`; open it again for a restart."""
    clock = clock or VirtualClock()
    authority_file = folder / "ca.der"
    if not authority_file.exists():
        authority_file.write_bytes(CA.certificate_der)
    authority = load_ca(CA_KEY, authority_file.read_bytes())
    manifest = tiny_manifest(authority, toml)
    schema = manifest.unit_schemas()[UNIT]
    grid = ChunkGrid(schema.num_elements, manifest.config.chunk_elements)
    units = (StartUnit(UNIT, schema.fingerprint(), start_root(schema, grid, manifest.config.run.seed)),)
    offload = offload or InlineOffload()
    with open_ledger(folder / "ledger.sqlite3") as ledger:
        writer = LedgerWriter(ledger, offload)
        run = TrackedRun(manifest, manifest.run_id, units, HOST, VERIFIER, folder / "checkpoints")
        tracker = RunTracker(run, writer, clock, offload)
        hosted = HostedRun(
            run_id=manifest.run_id,
            signed_manifest=sign_manifest(manifest, HOST),
            dataset=b"{}",
            max_peers=manifest.config.run.most_peers,
            credential_days=manifest.config.admission.credential_days,
            authority=authority,
            verifier=VERIFIER,
            peer_id=HOST.peer_id,
            bootstrap=lambda: ("/ip4/127.0.0.1/tcp/1/p2p/x",),
        )
        door = None
        if manifest.config.admission.open:
            rules, standing = door_rules(manifest.config), standing_rules(manifest.config)
            door = OpenDoor(manifest.run_id, rules, standing, authority, writer, clock, offload, tracker.standings)
        service = CoordinatorService(hosted, tracker, writer, clock, door=door)
        yield HostWorld(folder, clock, ledger, writer, authority, manifest, tracker, service, units, door)
