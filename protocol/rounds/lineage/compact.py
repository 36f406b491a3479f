"""Certificates in short form. Most voters of a commit sign the same ack, so a certificate has its payload once, and of each voter
what its envelope has beside it: public key 32 | seal 82 (protocol/identity/envelope.py). The layout of an envelope is fixed, so the
signed bytes are made again exactly, and are checked as whole envelopes are.

Rules: R15 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import enveloped, taken_apart
from protocol.identity.identity import KEY_BYTES
from protocol.ids import RunId
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.messages import Certificate


def compacted(certificate: Certificate, run_id: RunId) -> Certificate:
    """The certificate in short form. The acks with the payload that most of them share become votes. All others stay as they are:
    an ack names an earlier one of its voter, if there was one.
    """
    parts = [_parts_of(raw, run_id) for raw in certificate.acks]
    counts = Counter(part[1] for part in parts if part is not None)
    if certificate.votes or not counts:
        return certificate
    ack = min(counts, key=lambda payload: (-counts[payload], payload))
    short = [part[0] + part[2] if part is not None and part[1] == ack else b"" for part in parts]
    whole = tuple(raw for raw, vote in zip(certificate.acks, short, strict=True) if not vote)
    return replace(certificate, acks=whole, ack=ack, votes=tuple(vote for vote in short if vote))


def acks_of(certificate: Certificate, run_id: RunId) -> tuple[bytes, ...]:
    """All acks of a certificate as envelopes, unchecked."""
    made = (
        enveloped(
            vote[KEY_BYTES:],
            domain=ROUND_DOMAIN,
            run_id=run_id,
            public_key=vote[:KEY_BYTES],
            payload=certificate.ack,
        )
        for vote in certificate.votes
    )
    return (*made, *certificate.acks)


def _parts_of(raw: bytes, run_id: RunId) -> tuple[bytes, bytes, bytes] | None:
    """Key, payload and seal of an ack; None if they do not make the same bytes again."""
    try:
        key, payload, seal = taken_apart(raw)
    except RemoteProtocolError:
        return None
    made = enveloped(seal, domain=ROUND_DOMAIN, run_id=run_id, public_key=key, payload=payload)
    return (key, payload, seal) if made == raw and payload else None
