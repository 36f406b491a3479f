"""The `verify` command's report on a checkpoint, and the run's tokenizer as checkpoints store it."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class RunTokenizer:
    """The bytes of the run's tokenizer.json, and the token that ends a document."""

    data: bytes
    end: int
