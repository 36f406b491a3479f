"""Watches whether peers take enough local steps in a round for their work to be done again, and warns the host where they do not."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from protocol.host.work_rules import LEAST_STEPS, audit_notes, why_no_audits
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.run.manifest import RunConfig

_log = structlog.get_logger()

FEW_ROUNDS: Final = 5
"""A warning comes after so many rounds in a row: the first ones of a run, and one of a slow hour, are short."""


class StepWatch:
    """The rounds of one open run. `batch_tokens`: of a local step."""

    def __init__(self, batch_tokens: int) -> None:
        self._batch_tokens = batch_tokens
        self._num_few = 0

    def saw(self, links: Iterable[ChainLink]) -> None:
        """Look at further commits, the oldest first. Warns once, and again after a round with enough steps."""
        for link in links:
            if link.record is None or not link.record.contributors:
                continue
            steps = statistics.median(entry.tokens for entry in link.record.contributors) / self._batch_tokens
            self._num_few = self._num_few + 1 if steps < LEAST_STEPS else 0
            if self._num_few == FEW_ROUNDS:
                _log.warning(
                    "work_not_audited",
                    reason=f"a peer took {steps:.0f} steps in each of the last rounds, and audits need {LEAST_STEPS}",
                    remedy="longer rounds: raise target_tokens and longest_interval_s in a new run",
                )


def watched_steps(config: RunConfig) -> Callable[[Iterable[ChainLink]], None]:
    """A look at the commits of an open run. Warns now of what run.toml tells, and later of rounds with too few steps."""
    for note in audit_notes(config):
        _log.warning("work_not_audited", reason=note)
    return (lambda _: None) if why_no_audits(config) else StepWatch(config.inner.batch_tokens).saw
