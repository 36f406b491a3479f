"""How local training and the rounds go together, by the mode of the run: side by side, in turns, or mixed fragment by fragment."""

from __future__ import annotations

from averaging.rounds.lineage.adoption import Mixing
from protocol.run.manifest import RunConfig


def mixing_of(config: RunConfig) -> Mixing | None:
    """How commits are mixed into the local parameters; None where they are not."""
    if config.alpha is None:
        return None
    return Mixing(config.alpha, config.delay_steps * config.inner.batch_tokens)


def standing_still_s(config: RunConfig) -> float:
    """For how long training waits for a commit at most once its snapshot is taken."""
    return config.round.longest_interval_s if config.round.mode == "blocking" else 0.0
