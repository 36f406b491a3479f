"""The sentences of the `verify` and `export` commands about a checkpoint, and their progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.tables import printable

if TYPE_CHECKING:
    from coordinator.checkpoints.checkpoint_export import Exported

    OnBytes = Callable[[int, int], None]


def _silent(_done: int, _total: int) -> None:
    pass


def _counted(path: Path, show: OnBytes) -> Callable[[int], None]:
    """Adds up what is read of a checkpoint's weights and momentum, and shows the sum."""
    from coordinator.checkpoints.checkpoints import read_manifest

    manifest, done = read_manifest(path), 0
    total = manifest.parameters.num_bytes + (manifest.momentum.num_bytes if manifest.momentum is not None else 0)

    def read(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        show(min(done, total), total)

    return read


def verify_checkpoint(path: Path, show: OnBytes = _silent) -> str:
    """Recompute a checkpoint's hashes and state root. Returns one line for the user. `show` gets the bytes done and all bytes.

    Raises:
        ConfigError: there is no checkpoint.
        StorageError: it does not verify; says what is wrong.
    """
    from coordinator.checkpoints.checkpoints import verify_checkpoint as verify

    manifest = verify(path, _counted(path, show))
    return (
        f"verified: round {manifest.index} of {printable(manifest.run_name)}, {manifest.total_tokens:,} tokens, "
        f"state root {manifest.state_root}"
    )


def export_sentence(path: Path, target: Path, expert: int | None = None, show: OnBytes = _silent) -> str:
    """Verify a checkpoint and write its model, or that of one expert, in the Hugging Face Llama layout. Returns one line for the
    user. `show` as in `verify_checkpoint`.

    Raises:
        ConfigError: there is no checkpoint, or `target` cannot be used.
        StorageError: the checkpoint does not verify, or `target` cannot be written.
    """
    from coordinator.checkpoints.checkpoint_export import export_checkpoint

    return _exported_sentence(export_checkpoint(path, target, expert, _counted(path, show)), target)


def adapter_sentence(
    path: Path, target: Path, *, is_merged: bool, base: Path | None = None, show: OnBytes = _silent
) -> str:
    """Verify a checkpoint and write its adapter as `peft` reads it, or its base with the adapter merged into it. Returns one line for
    the user. `show` as in `verify_checkpoint`.

    Raises:
        ConfigError, StorageError: as `export_adapter` and `export_merged` in coordinator/checkpoints/adapter_export.py.
    """
    from coordinator.checkpoints.adapter_export import export_adapter, export_merged

    on_read = _counted(path, show)
    exported = export_merged(path, target, base, on_read) if is_merged else export_adapter(path, target, on_read)
    return _exported_sentence(exported, target)


def _exported_sentence(exported: Exported, target: Path) -> str:
    manifest = exported.manifest
    num_bytes, names = sum(exported.files.values()), ", ".join(exported.files)
    summary = f"round {manifest.index} of {printable(manifest.run_name)}, {num_bytes / 1e6:.2f} MB"
    return f"verified and exported: {summary} to {target}: {names}"
