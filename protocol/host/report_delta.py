"""A short report: the digest of an earlier one that the host knows, and the values that change all the time.

The host answers every report with its digest. If a peer's next report has the same digest, it sends that instead of its heads.
Changing numbers and new content (losses, certificates, bans) are sent as always. A host that knows no report of the digest, for
example after a restart, refuses it and gets the whole one.
"""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from typing import Final

from protocol.host.report_bytes import encode_report
from protocol.host.reports import REPORT_DIGEST_BYTES, PeerReport
from protocol.ids import UnitName

_MOVING: Final = (
    "tokens_per_s",
    "tokens_ready",
    "loss_nats",
    "bytes_up",
    "bytes_down",
    "unit_bytes",
    "could_tokens_per_s",
    "counts",
)
_BROUGHT: Final = ("heldout", "certificates", "proofs")
_NAMES: Final = ("chosen",)
"""Fixed for the life of a process, so the first whole report brings them. A host that does not know them finds the same digest."""

_EMPTY: Final = PeerReport("", "", UnitName(""))


def report_digest(report: PeerReport) -> bytes:
    """8 bytes that two reports of a peer share when they report the same heads."""
    others = {name: getattr(_EMPTY, name) for name in (*_MOVING, *_BROUGHT, *_NAMES)}
    whole = dataclasses.replace(report, like=b"", signed=report.signed.known, **others)
    return sha256(encode_report(whole)).digest()[:REPORT_DIGEST_BYTES]


def shortened(report: PeerReport) -> PeerReport:
    """The short form, for a host that knows a report of the same digest."""
    said = {name: getattr(report, name) for name in (*_MOVING, *_BROUGHT)}
    return dataclasses.replace(_EMPTY, like=report_digest(report), signed=report.signed.brought, **said)


def made_whole(known: PeerReport, short: PeerReport) -> PeerReport:
    """The whole report that a short one of the sender of `known` stands for."""
    said = {name: getattr(short, name) for name in (*_MOVING, *_BROUGHT)}
    return dataclasses.replace(known, like=b"", signed=short.signed.beside(known.signed), **said)
