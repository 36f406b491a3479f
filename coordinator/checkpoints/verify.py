"""The `verify` command's report on a checkpoint."""

from __future__ import annotations

from pathlib import Path

from protocol.tables import printable


def verify_checkpoint(path: Path) -> str:
    """Recompute a checkpoint's hashes and state root. Returns one line for the user.

    Raises:
        ConfigError: there is no checkpoint.
        StorageError: it does not verify; says what is wrong.
    """
    from coordinator.checkpoints.checkpoints import verify_checkpoint as verify

    manifest = verify(path)
    return (
        f"verified: round {manifest.index} of {printable(manifest.run_name)}, {manifest.total_tokens} tokens, "
        f"state root {manifest.state_root}"
    )
