"""The records of the process that runs a peer: its settings and its id. Also clears up after a join that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from averaging.host.used_settings import remember_settings
from peer.membership.forget_run import cleared_if_refused
from peer.owner.running_peer import running_here
from peer.settings.config import PeerConfig


@contextmanager
def own_process(config: PeerConfig, run_folder: Path) -> Iterator[None]:
    """Record this process in its state folder while the block runs, and delete the run's folder if its host never let us in. The
    caller holds the identity's lock. Blocks.

    Raises:
        StorageError: the state folder cannot be written.
    """
    remember_settings(config.state_dir, config.model_dump(mode="json"))
    with running_here(config.state_dir), cleared_if_refused(run_folder):
        yield
