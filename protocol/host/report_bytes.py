"""The bytes of a peer's report and of its answer.

The wire form is protocol/proto/coordinator.proto. Every `decode_*` checks bounds, so its result is safe to show and to store;
anything else raises RemoteProtocolError.
"""

from __future__ import annotations

from protocol.host.calls import MAX_REPLY_BYTES, MAX_REQUEST_BYTES
from protocol.host.host_statements import (
    MAX_MILESTONES,
    NO_GATE_NEWS,
    GateNews,
    HostStatements,
    RevocationNews,
)
from protocol.host.reports import (
    MAX_DOUBLE_VOTES,
    MAX_FALSE_SUMS,
    MAX_UNITS,
    NO_START_NEWS,
    AckPair,
    EnergySpent,
    HeldoutResult,
    OwnCounts,
    PeerReport,
    Proofs,
    ReportReply,
    StartNews,
    UnitBytes,
    UnitStanding,
)
from protocol.identity.chosen_name import ChosenName, received_name
from protocol.identity.revocation import MAX_REVOCATIONS
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.pb import coordinator_pb2 as pb
from protocol.received import fields_by_name, parse, require, require_hash_or_none, shown, values_by_name
from protocol.rounds.messages.messages import FalseSum
from protocol.run.source_section import MAX_SOURCES
from protocol.tensors.expert_schema import MAX_EXPERTS


def encode_report(report: PeerReport) -> bytes:
    """The payload of a report envelope."""
    body = pb.ReportBody(**values_by_name(report, pb.ReportBody))
    if (energy := report.counts.energy) is not None:
        body.energy.CopyFrom(pb.EnergyBody(**values_by_name(energy, pb.EnergyBody)))
    for part in report.beside:
        body.beside.add(unit=part.unit, state_commit=part.state_commit, state_root=part.state_root, index=part.index)
    for moved in report.unit_bytes:
        body.unit_bytes.add(unit=moved.unit, bytes_up=moved.bytes_up, bytes_down=moved.bytes_down)
    for pair in report.double_votes:
        body.double_votes.add(one=pair.one, other=pair.other)
    for notice in report.proofs.false_sums:
        body.false_sums.add(**values_by_name(notice, pb.FalseSumBody))
    for result in report.heldout:
        part_body = body.heldout.add(
            commit=result.commit,
            index=result.index,
            total_tokens=result.total_tokens,
            nats=result.nats,
            prose_nats=result.prose_nats,
        )
        for expert, nats in result.of_experts:
            part_body.of_experts.add(expert=expert, nats=nats)
    return body.SerializeToString(deterministic=True)


def _decode_heldout(body: pb.HeldoutBody) -> HeldoutResult:
    prose_nats = body.prose_nats if body.HasField("prose_nats") else None
    of_experts = tuple((part.expert, part.nats) for part in body.of_experts[: MAX_EXPERTS + 1])
    return HeldoutResult(CommitId(body.commit), body.index, body.total_tokens, body.nats, prose_nats, of_experts)


def decode_report(data: bytes) -> PeerReport:
    """A report from the payload of its envelope.

    Raises:
        RemoteProtocolError: no report, or a value out of its bounds.
    """
    body = parse(pb.ReportBody, data, MAX_REQUEST_BYTES)
    values = fields_by_name(body)
    values |= {
        "heldout": tuple(_decode_heldout(h) for h in body.heldout),
        "signed": HostStatements(
            values.pop("start_record"),
            values.pop("known_revocations"),
            tuple(values.pop("revocations")[:MAX_REVOCATIONS]),
            values.pop("known_milestones"),
            tuple(values.pop("milestones")[: MAX_MILESTONES + 1]),
        ),
        "beside": tuple(_decode_standing(part) for part in body.beside),
        "experts": tuple(body.experts[: MAX_EXPERTS + 1]),
        "counts": _decode_counts(tuple(values.pop("source_tokens"))[: MAX_SOURCES + 1], body),
        "unit_bytes": tuple(UnitBytes(UnitName(p.unit), p.bytes_up, p.bytes_down) for p in body.unit_bytes),
        "chosen": ChosenName(received_name(values.pop("nickname")), received_name(values.pop("team"))),
        "proofs": _decode_proofs(body),
    }
    return PeerReport(**values)


def _decode_proofs(body: pb.ReportBody) -> Proofs:
    pairs = tuple(AckPair(pair.one, pair.other) for pair in body.double_votes[: MAX_DOUBLE_VOTES + 1])
    sums = (
        FalseSum(UnitName(shown(p.unit)), CommitId(p.base), PeerId(shown(p.reducer)), Root(p.result_hash), p.proof_hash)
        for p in body.false_sums[: MAX_FALSE_SUMS + 1]
    )
    return Proofs(pairs, tuple(sums))


def _decode_counts(source_tokens: tuple[int, ...], body: pb.ReportBody) -> OwnCounts:
    energy = EnergySpent(**fields_by_name(body.energy)) if body.HasField("energy") else None
    return OwnCounts(source_tokens, energy)


def _decode_standing(body: pb.UnitBody) -> UnitStanding:
    return UnitStanding(UnitName(body.unit), CommitId(body.state_commit), Root(body.state_root), body.index)


def encode_report_reply(reply: ReportReply) -> bytes:
    """The bytes of the answer to a report."""
    body = pb.ReportReply(**values_by_name(reply, pb.ReportReply))
    if reply.start != NO_START_NEWS:
        body.start.CopyFrom(pb.StartNews(reason=reply.start.reason, start_record=reply.start.start_record))
    if reply.gate != NO_GATE_NEWS:
        body.gate.CopyFrom(pb.GateNews(hold=reply.gate.hold, rewinds=reply.gate.rewinds))
    return body.SerializeToString(deterministic=True)


def decode_report_reply(data: bytes) -> ReportReply:
    """The answer to a report. Raises RemoteProtocolError when it is none."""
    body = parse(pb.ReportReply, data, MAX_REPLY_BYTES)
    require_hash_or_none("head", body.head)
    require(len(body.revocations) <= MAX_REVOCATIONS, f"{len(body.revocations)} revocations", "not so many")
    milestones = len(body.milestones)
    require(milestones <= MAX_UNITS, f"{milestones} milestones", f"at most {MAX_UNITS}")
    start, values = StartNews(shown(body.start.reason), body.start.start_record), fields_by_name(body)
    bans = RevocationNews(*(values.pop(name) for name in ("revocations", "asks_revocations", "known_revocations")))
    gate = GateNews(body.gate.hold, tuple(body.gate.rewinds))
    return ReportReply(**values, bans=bans, start=start, gate=gate)
