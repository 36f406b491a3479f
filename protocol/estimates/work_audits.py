"""The memory that an auditor takes in runs in which peers do some of others' steps again (peer/audits). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.estimates.dry_run import Estimate
from protocol.host.work_rules import why_no_audits
from protocol.memory_costs import AUDIT_BYTES
from protocol.tables import in_bytes

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig


def audit_bytes(run: RunConfig) -> int:
    """The most memory that an audit takes of the machine of a peer, beside its training; 0 in a run without audits."""
    return AUDIT_BYTES * run.held_elements if run.admission.open and not why_no_audits(run) else 0


def audit_estimates(run: RunConfig) -> tuple[Estimate, ...]:
    """The line about the memory of audits; none in a run without them."""
    num_bytes = audit_bytes(run)
    if not num_bytes:
        return ()
    told = f"up to {in_bytes(num_bytes)} more memory while a member does others' steps again, if so much is free"
    return (Estimate("audits", told),)
