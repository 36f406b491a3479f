"""The wire, byte for byte: a change here is a change of protocol. POTLUCK_REWRITE_GOLDEN=1 rewrites the file; review the diff."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from averaging.models.llama.config import LlamaConfig
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.directory import PeerRecord
from averaging.rounds.traffic.result_ref import ResultRef
from protocol.errors import RefusedError
from protocol.host.calls import (
    AdmitReply,
    CheckpointEntry,
    RunNews,
    encode_admit_reply,
    encode_checkpoints,
    encode_error,
    encode_news,
)
from protocol.host.host_statements import HostStatements, RevocationNews
from protocol.host.report_bytes import encode_report, encode_report_reply
from protocol.host.report_delta import shortened
from protocol.host.reports import HeldoutResult, PeerReport, ReportReply, UnitBytes, UnitStanding
from protocol.identity.envelope import seal, seal_of
from protocol.identity.identity import Identity
from protocol.identity.invite import Invite
from protocol.identity.revocation import Revocation, join_entries, seal_revocation
from protocol.ids import PROTOCOL_VERSION, RunId, UnitName
from protocol.merkle import leaf_hash, merkle_root
from protocol.pipeline.messages.lane_wire import encode_lane_message, encode_parcel
from protocol.rounds.lineage.milestones import seal_milestone
from protocol.rounds.lineage.record_rules import sum_of
from protocol.rounds.messages.bundle import encode_answer, encode_bundle
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.heartbeat_delta import encode_moved, encode_short, report_digest
from protocol.rounds.messages.messages import Heartbeat
from protocol.rounds.messages.start import Milestone
from protocol.rounds.messages.wire import (
    commit_id,
    decode_body,
    encode_body,
    encode_fetch,
    encode_message,
    encode_record,
    genesis_id,
)
from protocol.run.manifest import RunManifest, default_run_toml, parse_run_config
from protocol.tensors.model_config import model_schema
from tests.protocol.pipeline.messages.test_lane_messages import MESSAGES as MESSAGES_OF_LANES
from tests.protocol.pipeline.messages.test_lane_messages import PARCELS
from tests.protocol.rounds.messages.test_wire import (
    BASE,
    DISAGREEING,
    FETCHES,
    HEADER,
    IN_PART,
    LANES,
    LOSSY,
    MEMBERS,
    MESSAGES,
    OF_LANES,
    RECORD,
    ROOT,
    SEALED,
    SIGNED,
    UNIT,
)

GOLDEN = Path(__file__).with_name("wire_bytes.json")
ALICE = Identity(bytes(range(32)))


def _manifest(version: int = PROTOCOL_VERSION) -> RunManifest:
    return RunManifest(
        protocol_version=version,
        config=parse_run_config(default_run_toml().replace("optimizer = ", "# optimizer = ")),
        dataset_id="ab" * 32,
        dataset_tokens=1000,
        heldout_tokens=100,
        zlib_bits_per_byte=2.0625,
        pairs_nats_per_byte=2.4296875,
        host_public_key=ALICE.public_key.hex(),
        ca_certificate_sha256="cd" * 32,
    )


def _wire() -> dict[str, str]:
    from protocol.rounds.messages.requests import ContributionHeader, ExchangeHello
    from protocol.rounds.messages.start import StartRecord, StartUnit

    config = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)
    header = ContributionHeader(UNIT, BASE, MEMBERS[0], 77, "int8", ROOT, BASE, ROOT)
    start = encode_body(StartRecord(bytes(32), (StartUnit(UNIT, bytes(32), ROOT),), ("alice",), 500, 1))  # type: ignore[arg-type]
    invite = Invite(("host:7000",), b"certificate", RunId(b"r" * 32), b"s" * 16, 2_000_000_000, ("/ip4/1.2.3.4",), 3)
    hello = ExchangeHello(UNIT, BASE, RECORD.ballot, 3, b"signed", bytes(64), bytes(range(32)))
    first, *others = SIGNED.contributors
    with_stranger = replace(SIGNED, contributors=(replace(first, is_stranger=True), *others))
    values = {
        "peer id": ALICE.peer_id,
        "identity file": ALICE.libp2p_private_key_bytes().hex(),
        "envelope": seal(ALICE, "potluck test", b"r" * 32, 7, 1_800_000_000_000, b"payload").hex(),
        "manifest": _manifest().canonical_bytes().decode(),
        "run id": _manifest().run_id.hex(),
        "manifest of a run of version 1": _manifest(1).canonical_bytes().decode(),
        "run id of version 1": _manifest(1).run_id.hex(),
        "schema fingerprint": model_schema(config).fingerprint().hex(),
        "merkle root of 5": merkle_root([leaf_hash(bytes([i])) for i in range(5)]).hex(),
        "invite": invite.encode(),
        "commit record": encode_record(RECORD).hex(),
        "commit record of lanes": encode_record(OF_LANES).hex(),
        "commit record of a lossy result": encode_record(LOSSY).hex(),
        "commit record with signatures": encode_record(SIGNED).hex(),
        "commit record with chunks left out": encode_record(DISAGREEING).hex(),
        "ResultHeader with chunks left out": encode_body(IN_PART).hex(),
        "sum with chunks left out": encode_sum(sum_of(DISAGREEING, DISAGREEING.slices[0])).hex(),
        "ResultHeader": encode_body(HEADER).hex(),
        "ResultHeader of a lossy result": encode_body(replace(HEADER, lost_ppm=1234)).hex(),
        "ResultHeader with signatures": encode_body(SEALED).hex(),
        "commit id": commit_id(BASE, encode_record(RECORD)).hex(),
        "start record": start.hex(),
        "start record that names disks": encode_body(
            replace(decode_body(StartRecord, start), incarnations=(1 << 63,))
        ).hex(),
        "start record that asks for signatures": encode_body(replace(decode_body(StartRecord, start), rules=1)).hex(),
        "genesis id": genesis_id(start).hex(),
        "claim": encode_claim(header).hex(),
        "claim of lanes": encode_claim(replace(header, tokens=10, lanes=LANES)).hex(),
        "sum": encode_sum(sum_of(SIGNED, SIGNED.slices[0])).hex(),
        "claim of a stranger": encode_claim(replace(header, is_stranger=True)).hex(),
        "sum with a stranger": encode_sum(sum_of(with_stranger, with_stranger.slices[0])).hex(),
        "commit record with a stranger": encode_record(with_stranger).hex(),
        "seal of an envelope": seal_of(seal(ALICE, "potluck test", b"r" * 32, 7, 1_800_000_000_000, b"payload")).hex(),
        "ExchangeHello": encode_body(hello).hex(),
        "ExchangeHello of a newcomer": encode_body(replace(hello, credential=b"credential")).hex(),
    }
    for number, message in enumerate(MESSAGES):
        values[f"round message {number} {type(message).__name__}"] = encode_message(message).hex()
    beat = next(message for message in MESSAGES if isinstance(message, Heartbeat))
    values["ResultWord"] = ResultRef(BASE, 3, 5, ROOT).encode().hex()
    values["bundle"] = encode_bundle([b"one", b"the other"]).hex()
    values["answer to a bundle"] = encode_answer(["", "refused"]).hex()
    values["short heartbeat"] = encode_short(beat, report_digest(beat), 5).hex()
    values["short heartbeat after a commit"] = encode_moved(beat, report_digest(beat), 6).hex()
    for request in FETCHES:
        values[f"fetch {type(request).__name__}"] = encode_fetch(request).hex()
    return {**values, **_coordination(), **_lanes()}


def _lanes() -> dict[str, str]:
    """The messages between a lane's members and its keeper."""
    said = {
        f"lane message {number} {type(message).__name__}": encode_lane_message(message)
        for number, message in enumerate(MESSAGES_OF_LANES)
    }
    brought = {
        f"lane parcel {number} {type(parcel).__name__}": encode_parcel(parcel) for number, parcel in enumerate(PARCELS)
    }
    return {name: data.hex() for name, data in {**said, **brought}.items()}


def _coordination() -> dict[str, str]:
    """The messages between peers and the coordinator, and the records in the directory."""
    heldout = (HeldoutResult(BASE, 4, 400, 1.5),)
    report = PeerReport(
        "training", "why", UNIT, head=BASE, index=4, total_tokens=400, tokens_per_s=12.5, tokens_ready=7, loss_nats=2.25,
        bytes_up=11, bytes_down=12, state_commit=BASE, state_root=ROOT, is_ready_to_start=True, heldout=heldout,
        certificates=(b"certificate",), addresses=("/ip4/192.0.2.1/tcp/1/p2p/alice",),
    )  # fmt: skip
    said = {
        "report": encode_report(report),
        "short report": encode_report(shortened(report)),
        "report reply to go by": encode_report_reply(ReportReply("training", BASE, 4, 5, like=b"likeness")),
        "report reply": encode_report_reply(ReportReply("training", BASE, 4, 5, is_final_checkpoint_written=True)),
        "admit reply": encode_admit_reply(
            AdmitReply(b"cred", b"manifest", b"dataset", b"", "host", ("/ip4/192.0.2.1",))
        ),
        "news": encode_news(RunNews("training", "why", BASE, 4, 400, b"start")),
        "checkpoints": encode_checkpoints((CheckpointEntry(4, BASE, ROOT, 400, 1_800_000_000),)),
        "report with known revocations": encode_report(
            replace(report, signed=HostStatements(known_revocations=b"known at", revocations=(b"entry",)))
        ),
        "report with milestones": encode_report(
            replace(report, signed=HostStatements(known_milestones=b"known at", milestones=(b"one", b"two")))
        ),
        "report reply with milestones": encode_report_reply(ReportReply("training", BASE, 4, 5, milestones=(b"one",))),
        "admit reply with milestones": encode_admit_reply(
            AdmitReply(b"cred", b"manifest", b"dataset", b"", "host", (), milestones=(b"one", b"two"))
        ),
        "milestone": seal_milestone(ALICE, RunId(b"r" * 32), Milestone(BASE, encode_record(SIGNED), ROOT)),
        "report reply with revocations": encode_report_reply(
            ReportReply("training", BASE, 4, 5, bans=RevocationNews((b"entry",), True, b"known at"))
        ),
        "revocation": seal_revocation(ALICE, RunId(b"r" * 32), Revocation(ALICE.peer_id, "why", 1_800_000_000, 7)),
        "revocations": join_entries((b"one", b"entry two")),
        "error": encode_error(RefusedError("found", "expected", "remedy")),
        "directory record": PeerRecord(b"credential", ("/ip4/192.0.2.1/tcp/1/p2p/alice",)).encode(),
        "report that names a disk": encode_report(replace(report, incarnation=(1 << 63) - 1)),
        "report of experts": encode_report(
            replace(report, experts=(0, 3), expert_room=2, beside=(UnitStanding(UnitName("expert-3"), BASE, ROOT, 7),))
        ),
        "report of bytes": encode_report(replace(report, unit_bytes=(UnitBytes(UnitName("expert-3"), 900, 7),))),
        "directory record with bulk": PeerRecord(
            b"credential",
            ("/ip4/192.0.2.1/tcp/1/p2p/alice",),
            bulk=(BulkAddress("192.0.2.1", 4242), BulkAddress("2001:db8::1", 4242)),
        ).encode(),
        "directory record with experts": PeerRecord(
            b"credential", ("/ip4/192.0.2.1/tcp/1/p2p/alice",), (0, 3)
        ).encode(),
    }
    return {name: data.hex() for name, data in said.items()}


def test_what_goes_over_the_wire_is_what_it_was() -> None:
    values = _wire()
    if os.environ.get("POTLUCK_REWRITE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(values, indent=1) + "\n", encoding="ascii")
    assert values == json.loads(GOLDEN.read_text(encoding="ascii"))
