"""How local training and rounds interact in the run's mode: concurrently, alternating, or mixed fragment by fragment."""

from __future__ import annotations

from averaging.rounds.lineage.adoption import Mixing
from protocol.run.manifest import RunConfig


def mixing_of(config: RunConfig) -> Mixing | None:
    """How commits are mixed into the local parameters; None if they are not."""
    if config.alpha is None:
        return None
    return Mixing(config.alpha, config.delay_steps * config.inner.batch_tokens)


def standing_still_s(config: RunConfig) -> float:
    """The longest time that training waits for a commit after its snapshot."""
    return config.round.longest_interval_s if config.round.mode == "blocking" else 0.0
