"""A report that says again what the host knows of its sender: which one it is like, and what moves all the time.

The host answers every report with its likeness. Where a peer's next one has the same, it says that likeness instead of where it
stands; numbers that move and what it brings (losses, certificates, bans) are said as ever. A host that knows none like it, such as one
that was restarted, refuses it, and is told the whole.
"""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from typing import Final

from protocol.host.reports import REPORT_DIGEST_BYTES, PeerReport, encode_report
from protocol.ids import UnitName

_MOVING: Final = (
    "tokens_per_s",
    "tokens_ready",
    "loss_nats",
    "bytes_up",
    "bytes_down",
    "unit_bytes",
    "could_tokens_per_s",
)
_BROUGHT: Final = ("heldout", "certificates", "start_record", "revocations")
_EMPTY: Final = PeerReport("", "", UnitName(""))


def report_digest(report: PeerReport) -> bytes:
    """8 bytes that two reports of a peer have in common when they say the same of where it stands."""
    others = {name: getattr(_EMPTY, name) for name in (*_MOVING, *_BROUGHT)}
    return sha256(encode_report(dataclasses.replace(report, like=b"", **others))).digest()[:REPORT_DIGEST_BYTES]


def shortened(report: PeerReport) -> PeerReport:
    """The short form, for a host that knows one like it."""
    said = {name: getattr(report, name) for name in (*_MOVING, *_BROUGHT)}
    return dataclasses.replace(_EMPTY, like=report_digest(report), **said)


def made_whole(known: PeerReport, short: PeerReport) -> PeerReport:
    """What the sender of `known` says with a short report of its likeness."""
    said = {name: getattr(short, name) for name in (*_MOVING, *_BROUGHT)}
    return dataclasses.replace(known, like=b"", **said)
