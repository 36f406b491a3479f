"""Limits of audits of work that auditors, the host and their screens tell alike, and the runs in which there are none. Pure.

An auditor takes a contributor's local steps of a round again (peer/audits/work_audit_core.py), and the host judges what it finds
(coordinator/policy/audited_work_core.py).
"""

from __future__ import annotations

from typing import Final

from protocol.kinds.codec_table import leaves_out
from protocol.run.manifest import RunConfig
from protocol.tables import several

LEAST_STEPS: Final = 16
"""Fewer local steps say too little of the windows that they read (tests/benchmarks/LOG.md, "Work done again")."""

MOST_STEPS: Final = 4096
"""A contribution of more local steps is not done again: it would take an auditor's machine for too long."""

PASS_SHARE: Final = 0.5
"""Work passes if its gap is above this share of the usual one (tests/benchmarks/LOG.md, "Work done again")."""

LEAST_LENGTH: Final = 0.55
"""A contribution shorter than this part of the redone delta was made in fewer steps than it claims. As `PASS_SHARE` by measurement."""

_SPARSE: Final = "contributions are sparse, where round.robust misses members that know its rule; int8 mends both"
"""Honest sparse work agrees less with itself than false work can agree with all of it (tests/benchmarks/LOG.md, "Members that know the
rule, and sparse work").
"""


def why_no_audits(config: RunConfig) -> str:
    """Why nobody's work can be done again in a run; empty where it can."""
    numbers, shards = config.round, config.run.shards
    reasons = (
        (shards == "data", f'peers hold {shards}; expected shards = "data"'),
        (max(1, config.num_fragments) == 1, "the model is averaged in fragments, which begin at different steps"),
        (config.alpha is None, "local work is mixed with each average, so it begins at no common state"),
        (not leaves_out(numbers.codec), _SPARSE),
        (numbers.feedback == 0.0, "contributions carry rests of earlier rounds"),
    )
    return next((reason for is_fine, reason in reasons if not is_fine), "")


def audit_notes(config: RunConfig) -> list[str]:
    """A sentence for the host of an open run whose work is not done again, or of only so many peers; none elsewhere."""
    if not config.admission.open:
        return []
    if why := why_no_audits(config):
        return [f"nobody does strangers' work again, so it counts unseen: {why}"]
    members, step_tokens = config.run.max_members, LEAST_STEPS * config.inner.batch_tokens
    most = config.round.target_tokens // step_tokens
    if most >= members:
        return []
    few = f"a peer takes fewer than {LEAST_STEPS} steps a round"
    found = f"with more than {several(most, 'peer')} {few}" if most >= config.run.min_members else few
    return [
        f"{found}, and no work is done again: round.target_tokens of {members * step_tokens:_} is enough for {members}"
    ]
