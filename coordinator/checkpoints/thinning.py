"""Which checkpoints are kept, and in which form: the older, the fewer, and old ones without momentum.

A state to go on from needs its momentum; a model to use does not. So the momentum of an old checkpoint is replaced by the hash of
each of its chunks, with which the state root is still recomputed. The files block: call `drop_momentum` through `Offload`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from averaging.state.state import state_root
from coordinator.checkpoints.checkpoints import (
    UnitContent,
    momentum_hashes_name,
    momentum_name,
    read_manifest,
    save_bytes,
    stored_states,
    verify_checkpoint,
    write_manifest,
)
from protocol.errors import StorageError
from protocol.estimates.kept_checkpoints import spacing

if TYPE_CHECKING:
    from coordinator.ledger.ledger import CheckpointRow
    from protocol.ids import CommitId
    from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """The interval in commits, how many of the newest to keep, and that one in `keep_every` is kept longer (0: none)."""

    every_rounds: int
    keep: int
    keep_every: int

    @property
    def lasting_rounds(self) -> int:
        """Interval in rounds: the first checkpoint in each is kept longer."""
        return self.every_rounds * self.keep_every


def _ordered(rows: Sequence[CheckpointRow], left: Collection[CommitId]) -> list[CheckpointRow]:
    return sorted(rows, key=lambda row: (row.commit not in left, row.index, row.written_unix_s))


def surplus(
    rows: Sequence[CheckpointRow], rules: CheckpointRules, left: Collection[CommitId] = ()
) -> Sequence[CheckpointRow]:
    """The checkpoints to prune, oldest first: all except the newest `keep` and the first of each span of `spacing` intervals of
    `lasting_rounds`. Those in `left`, on abandoned lineages, go before all others and never last.

    Spans of older checkpoints are unions of those of newer ones, so the first of a span is still there when it is to be kept.
    """
    ordered = _ordered(rows, left)
    lasting: dict[tuple[int, int], CommitId] = {}
    followed = [row for row in ordered if row.commit not in left]
    for row in followed if rules.lasting_rounds else ():
        interval = row.index // rules.lasting_rounds
        span = spacing(interval, followed[-1].index // rules.lasting_rounds)
        lasting.setdefault((span, interval // span), row.commit)
    return [row for row in ordered[: max(0, len(ordered) - rules.keep)] if row.commit not in lasting.values()]


def old_ones(
    rows: Sequence[CheckpointRow], rules: CheckpointRules, left: Collection[CommitId] = ()
) -> Sequence[CheckpointRow]:
    """The checkpoints that stay without their momentum, oldest first: those that last, except the newest `keep`."""
    doomed = {row.commit for row in surplus(rows, rules, left)}
    ordered = _ordered(rows, left)
    return [row for row in ordered[: max(0, len(ordered) - rules.keep)] if row.commit not in doomed]


def last_of_unit(path: Path, schema: TensorSchema, grid: ChunkGrid) -> UnitContent:
    """One unit of a checkpoint with several, for a unit that nobody holds: its parameters may be all that is left of it. Of an old
    checkpoint with a momentum of zeros, and so with another root. Blocks.

    Raises:
        ConfigError, StorageError: as `verify_checkpoint`, or the checkpoint has no such unit.
    """
    for stored in stored_states(path, verify_checkpoint(path)):
        if stored.schema.unit == schema.unit and stored.momentum is None:
            state = stored.load_without_momentum()
            return UnitContent(schema, grid, state, state_root(state, grid))
        if stored.schema.unit == schema.unit:
            return UnitContent(schema, grid, stored.load(), stored.expected)
    raise StorageError(f"checkpoint {path} has no unit {schema.unit}", "one with every unit of the run")


def drop_momentum(path: Path) -> None:
    """Replace the momentum of the checkpoint in folder `path` by its hashes, if it is still there. A crash leaves either form whole;
    the next call finishes. Blocks.

    Raises:
        ConfigError: there is no checkpoint.
        StorageError: it does not verify, and is left as it is, or the disk refuses.
    """
    manifest = read_manifest(path)
    momentum = path / momentum_name(manifest.unit)
    if not momentum.exists():
        return
    try:
        if manifest.momentum is not None:
            manifest = verify_checkpoint(path)
            hashes = b"".join(b"".join(state.momentum_hashes()) for state in stored_states(path, manifest))
            stored = save_bytes(path / momentum_hashes_name(manifest.unit), hashes)
            write_manifest(path, manifest.model_copy(update={"momentum": None, "momentum_hashes": stored}))
        momentum.unlink()
    except OSError as error:
        found = f"the momentum of {path} could not be dropped ({error.strerror})"
        raise StorageError(found, "a writable folder with enough space") from error
