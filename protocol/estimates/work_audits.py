"""Runs in which peers do some of others' steps again (peer/audits), and the memory that this takes of an auditor. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.estimates.dry_run import Estimate
from protocol.kinds.codec_table import leaves_out
from protocol.memory_costs import AUDIT_BYTES
from protocol.tables import in_bytes

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig


def why_no_audit(run: RunConfig) -> str:
    """Why nobody's work can be done again in a run; empty where it can."""
    numbers = run.round
    reasons = (
        (run.run.shards == "data", f'peers hold {run.run.shards}; expected shards = "data"'),
        (numbers.mode == "blocking", "rounds overlap with training, so a contribution begins at no common state"),
        (run.num_fragments <= 1, "the model is averaged in fragments, which begin at different steps"),
        (
            not leaves_out(numbers.codec) and numbers.feedback == 0.0,
            "contributions are sparse, or carry rests of earlier rounds",
        ),
    )
    return next((reason for is_fine, reason in reasons if not is_fine), "")


def audit_bytes(run: RunConfig) -> int:
    """The most memory that an audit takes of the machine of a peer, beside its training; 0 in a run without audits."""
    return AUDIT_BYTES * run.held_elements if run.admission.open and not why_no_audit(run) else 0


def audit_estimates(run: RunConfig) -> tuple[Estimate, ...]:
    """The line about the memory of audits; none in a run without them."""
    num_bytes = audit_bytes(run)
    if not num_bytes:
        return ()
    told = f"up to {in_bytes(num_bytes)} more memory while a member does others' steps again, if so much is free"
    return (Estimate("audits", told),)
