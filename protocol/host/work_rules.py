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
"""Work passes if its fit is above this share of the usual one (tests/benchmarks/LOG.md, "Work done again on text read once"). Peers
with many steps before the adoption fit less, and are held to the same usual fit as those with few.
"""

LEAST_LENGTH: Final = 0.55
"""A contribution shorter than this part of the redone delta was made in fewer steps than it claims. As `PASS_SHARE` by measurement."""

WHOLE_LENGTH: Final = 1.0
"""Length of a contribution, in lengths of the redone delta, from which its gap counts whole."""


def fit_of(gap: float, length_ratio: float) -> float:
    """How well a contribution fits the work that was redone: its gap, or of a shorter one as much less. One made in fewer steps than
    it claims is shorter, and lies less near.

    Args:
        gap: within [-2, 2]. length_ratio: at least 0.
    """
    return gap * min(WHOLE_LENGTH, length_ratio)


BY_INVITE: Final = "ask the run's owner for an invite"
"""The remedy for a peer whose work nobody can do again, so that it makes no member."""

_SPARSE: Final = "contributions are sparse, where round.robust misses peers that know its rule; int4 or int8 mends both"
"""Honest sparse work agrees less with itself than false work can agree with all of it (tests/benchmarks/LOG.md, "Members that know the
rule, and sparse work", "Codecs of open runs").
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


def why_untellable(num_steps: int) -> str:
    """Why auditors cannot do a contribution again, in words for its contributor; empty where they can, or where it is too short.

    Args:
        num_steps: its local steps; 0 where several replicas took some between each other's.
    """
    if not num_steps:
        return "several replicas train here, and their steps lie between each other's"
    if num_steps > MOST_STEPS:
        return f"a round has {num_steps} of this peer's steps, and auditors take at most {MOST_STEPS}"
    return ""


def audit_notes(config: RunConfig) -> list[str]:
    """A sentence for the host of an open run whose work is not done again, or of only so many peers; none elsewhere."""
    if not config.admission.open:
        return []
    if why := why_no_audits(config):
        return [f"nobody does strangers' work again, so it counts unseen: {why}"]
    return [*_few_steps_note(config), *_many_steps_note(config)]


def _few_steps_note(config: RunConfig) -> list[str]:
    members, step_tokens = config.run.max_members, LEAST_STEPS * config.inner.batch_tokens
    most = config.round.target_tokens // step_tokens
    if most >= members:
        return []
    few = f"a peer takes fewer than {LEAST_STEPS} steps a round"
    found = f"with more than {several(most, 'peer')} {few}" if most >= config.run.min_members else few
    return [
        f"{found}, and no work is done again: round.target_tokens of {members * step_tokens:_} is enough for {members}"
    ]


def _many_steps_note(config: RunConfig) -> list[str]:
    most_tokens = MOST_STEPS * config.inner.batch_tokens
    fewest = -(-config.round.target_tokens // most_tokens)
    if fewest <= config.run.min_members:
        return []
    found = f"with fewer than {several(fewest, 'peer')} some take more than {MOST_STEPS} steps a round"
    return [f"{found}, and strangers among these become no members by their work"]
