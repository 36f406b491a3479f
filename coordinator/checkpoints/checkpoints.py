"""Checkpoints on the host's disk: a folder of safetensors with a manifest, written whole or not at all.

Order of writing: temporary folder, tensors, fsync, manifest, fsync, rename, fsync of the parent. The caller then adds the ledger
row. Everything here blocks: call it through `Offload`. `verify_checkpoint` trusts nothing: it hashes the files and recomputes the
state root from their tensors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from averaging.arithmetic.vectors import picked
from averaging.state.state import UnitState, state_root
from averaging.storage.text_name import text_name
from coordinator.checkpoints.stored_file import Count, FrozenModel, HexHash, OnRead, StoredFile, hash_file
from coordinator.ledger.ledger import CheckpointRow
from protocol.errors import ConfigError, StorageError
from protocol.ids import CommitId, Root, UnitName
from protocol.plain_file import check_plain_file
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema, TensorSpec

if TYPE_CHECKING:
    from coordinator.run.run_files import RunTokenizer

MANIFEST_NAME: Final = "manifest.json"
ALL_UNITS: Final = UnitName("model")
"""The name for all units of a model together."""

TOKENIZER_NAME: Final = "tokenizer.json"
_TEMPORARY_PREFIX: Final = ".writing-"


class StoredTensor(FrozenModel):
    """One float32 tensor of the unit, in the order of the flat vector."""

    name: str
    shape: tuple[int, ...]


class StoredTokenizer(StoredFile):
    """The run's tokenizer.json; `end` is the token that ends a document."""

    end: Count


class StoredUnit(FrozenModel):
    """One of several units in a checkpoint: its round, and the names of its tensors in order."""

    unit: str
    commit: HexHash
    index: Count
    total_tokens: Count
    state_root: HexHash
    tensors: tuple[str, ...]


class CheckpointManifest(FrozenModel):
    """The content of manifest.json.

    Attributes:
        unit: the unit of this state; ALL_UNITS for several.
        commit, index, total_tokens, state_root: of the unit; with several units, of the spine.
        state_root: Merkle root over the unit's outer state, on chunks of `chunk_elements`.
        units: all units, the spine first; left out in a run with one.
        model: the model's numbers as in run.toml, enough to build it.
        experts: the numbers of the model's experts, if it has any.
        tokenizer: the run's tokenizer; left out if tokens are bytes.
        checksum: SHA-256 of everything else, as compact JSON. The state root does not cover names and model numbers.
    """

    format: Literal["potluck checkpoint 1"] = "potluck checkpoint 1"
    run_name: str
    run_id: HexHash
    unit: str
    commit: HexHash
    index: Count
    total_tokens: Count
    state_root: HexHash
    chunk_elements: Annotated[int, Field(ge=1)]
    tensors: tuple[StoredTensor, ...]
    parameters: StoredFile
    momentum: StoredFile
    model: dict[str, int | float | bool | str]
    units: tuple[StoredUnit, ...] | None = None
    experts: MixtureConfig | None = None
    tokenizer: StoredTokenizer | None = None
    written_unix_s: Count
    checksum: HexHash = "0" * 64

    def sealed(self) -> CheckpointManifest:
        """The same with its checksum filled in."""
        own = sha256(self.model_dump_json(exclude={"checksum"}, exclude_none=True).encode()).hexdigest()
        return self.model_copy(update={"checksum": own})


@dataclass(frozen=True, slots=True)
class UnitContent:
    """The state of one of several units; `root` is the root that its peers agree on."""

    schema: TensorSchema
    grid: ChunkGrid
    state: UnitState
    root: Root


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The content of a checkpoint. `root` is the attested state root. With several units `schema` and `state` are those of the
    whole model under the spine's commit, as made by `together`, and `root` is the spine's.
    """

    run_name: str
    run_id_hex: str
    schema: TensorSchema
    grid: ChunkGrid
    model: dict[str, int | float | bool | str]
    state: UnitState
    root: Root
    tokenizer: RunTokenizer | None = None
    units: tuple[UnitContent, ...] = ()
    mixture: MixtureConfig | None = None


def together(units: Sequence[UnitContent], model: TensorSchema) -> UnitState:
    """Combine the states of several units, the spine's first, into one of the whole model, with its tensors in the order of
    `model`.
    """
    lying = TensorSchema(ALL_UNITS, tuple(spec for unit in units for spec in unit.schema.tensors))
    states, spine = [unit.state for unit in units], units[0].state
    anchor_N = picked(torch.cat([state.anchor_N for state in states]), lying, model)
    momentum_N = picked(torch.cat([state.momentum_N for state in states]), lying, model)
    return UnitState(ALL_UNITS, spine.head, spine.index, spine.total_tokens, anchor_N, momentum_N)


def parameters_name(unit: str) -> str:
    """File of the weights."""
    return f"{unit}.safetensors"


def momentum_name(unit: str) -> str:
    """File of the momentum."""
    return f"{unit}.momentum.safetensors"


def checkpoint_name(index: int, commit: CommitId) -> str:
    """Folder name of a checkpoint: sorts by index; the commit distinguishes equal indices."""
    return f"{index:08d}-{commit.hex()[:16]}"


def sync_path(path: Path) -> None:
    """Make a file's bytes, or the renames in a folder, durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _split(flat_N: torch.Tensor, schema: TensorSchema) -> dict[str, torch.Tensor]:
    return {
        spec.name: flat_N[schema.offset(spec.name) :][: spec.num_elements].reshape(spec.shape).clone()
        for spec in schema.tensors
    }


def _save(path: Path, flat_N: torch.Tensor, schema: TensorSchema) -> StoredFile:
    save_file(_split(flat_N, schema), path, metadata={"format": "pt", "unit": schema.unit})
    sync_path(path)
    return hash_file(path)


def _save_tokenizer(path: Path, tokenizer: RunTokenizer | None) -> StoredTokenizer | None:
    if tokenizer is None:
        return None
    path.write_bytes(tokenizer.data)
    sync_path(path)
    return StoredTokenizer(**hash_file(path).model_dump(), end=tokenizer.end)


def _fill(folder: Path, content: CheckpointContent, now_unix_s: int) -> None:
    state, schema = content.state, content.schema
    manifest = CheckpointManifest(
        run_name=content.run_name,
        run_id=content.run_id_hex,
        unit=state.unit,
        commit=state.head.hex(),
        index=state.index,
        total_tokens=state.total_tokens,
        state_root=content.root.hex(),
        chunk_elements=content.grid.chunk_elements,
        tensors=tuple(StoredTensor(name=s.name, shape=s.shape) for s in schema.tensors),
        parameters=_save(folder / parameters_name(state.unit), state.anchor_N, schema),
        momentum=_save(folder / momentum_name(state.unit), state.momentum_N, schema),
        model=content.model,
        units=tuple(_stored(unit) for unit in content.units) or None,
        experts=content.mixture,
        tokenizer=_save_tokenizer(folder / TOKENIZER_NAME, content.tokenizer),
        written_unix_s=now_unix_s,
    )
    path = folder / MANIFEST_NAME
    path.write_text(manifest.sealed().model_dump_json(indent=2, exclude_none=True) + "\n", encoding="ascii")
    sync_path(path)
    sync_path(folder)


def _stored(unit: UnitContent) -> StoredUnit:
    state = unit.state
    return StoredUnit(
        unit=state.unit,
        commit=state.head.hex(),
        index=state.index,
        total_tokens=state.total_tokens,
        state_root=unit.root.hex(),
        tensors=tuple(spec.name for spec in unit.schema.tensors),
    )


def _check_root(state: UnitState, grid: ChunkGrid, root: Root) -> None:
    found = state_root(state, grid)
    if found != root:
        raise StorageError(
            f"a state of {state.unit} with root {found[:4].hex()} for round {state.index}",
            f"the attested root {root[:4].hex()}",
            "no checkpoint was written; the next one will be tried with fresh state",
        )


def write_checkpoint(folder: Path, content: CheckpointContent, *, now_unix_s: int) -> CheckpointRow:
    """Write one checkpoint below `folder`; durable when this returns. Returns its row for the ledger.

    Raises:
        StorageError: the disk is full, the folder is not writable, or the state has another root than expected. Nothing is left
            behind, and older checkpoints are untouched.
    """
    state = content.state
    for unit in content.units:
        _check_root(unit.state, unit.grid, unit.root)
    if not content.units:
        _check_root(state, content.grid, content.root)
    name = checkpoint_name(state.index, state.head)
    temporary, final = folder / (_TEMPORARY_PREFIX + name), folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _fill(temporary, content, now_unix_s)
        # Left by a crash between the rename and the ledger row. It is of the same commit, so it has the same content.
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        sync_path(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        cause = (error.strerror if isinstance(error, OSError) else "") or error
        raise StorageError(
            f"checkpoint of round {state.index} could not be written to {folder} ({cause})",
            "a writable folder with enough space",
            "free some space; older checkpoints and the run itself are untouched",
        ) from error
    return CheckpointRow(state.head, state.unit, state.index, state.total_tokens, content.root, name, now_unix_s)


def read_manifest(path: Path) -> CheckpointManifest:
    """The manifest of the checkpoint in folder `path`.

    Raises:
        ConfigError: there is no checkpoint, or something other than a file.
        StorageError: the manifest is damaged.
    """
    file = path / MANIFEST_NAME
    check_plain_file(file, "a file of a checkpoint", "see: potluck checkpoint list")
    try:
        manifest = CheckpointManifest.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"no checkpoint at {path}",
            f"a round or name in the list, or a folder with {MANIFEST_NAME}",
            "see: potluck checkpoint list",
        ) from error
    except OSError as error:
        raise StorageError(f"{file} could not be read ({error.strerror})", "a readable file") from error
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "its JSON"
        raise _damaged(path, f"{MANIFEST_NAME} is damaged at {place}") from error
    if manifest != manifest.sealed():
        raise _damaged(path, f"{MANIFEST_NAME} has another checksum than it says")
    return manifest


def _damaged(path: Path, what: str) -> StorageError:
    return StorageError(f"checkpoint {path}: {what}", "what was written", "use an older one: potluck checkpoint list")


def _no_report(_num_bytes: int) -> None:
    pass


def _check_file(path: Path, name: str, stored: StoredFile, on_read: OnRead = _no_report) -> None:
    found = hash_file(path / name, on_read)
    if (found.sha256, found.num_bytes) != (stored.sha256, stored.num_bytes):
        raise _damaged(path, f"{name} has SHA-256 {found.sha256[:8]} and {found.num_bytes} bytes")


def _check_tokenizer(path: Path, stored: StoredTokenizer) -> None:
    try:
        _check_file(path, TOKENIZER_NAME, stored)
    except OSError as error:
        raise _damaged(path, f"{TOKENIZER_NAME} could not be read ({error.strerror})") from error


def _load_flat(path: Path, name: str, stored: StoredFile, schema: TensorSchema, on_read: OnRead) -> torch.Tensor:
    try:
        _check_file(path, name, stored, on_read)
        with text_name(path / name) as file:
            tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        cause = (error.strerror if isinstance(error, OSError) else "") or error
        raise _damaged(path, f"{name} could not be read ({cause})") from error
    for spec in schema.tensors:
        tensor = tensors.get(spec.name)
        if tensor is None or tuple(tensor.shape) != spec.shape or tensor.dtype != torch.float32:
            raise _damaged(path, f"{name} lacks {spec.name} as float32 of shape {spec.shape}")
    return torch.cat([tensors[spec.name].reshape(-1) for spec in schema.tensors])


def load_checkpoint(path: Path, on_read: OnRead = _no_report) -> tuple[CheckpointManifest, UnitState]:
    """Read a checkpoint, check every file's hash and recompute the state root from the tensors. `on_read` hears of the weights and
    the momentum as they are hashed.

    Raises:
        ConfigError: there is no checkpoint.
        StorageError: it does not verify; says what is wrong.
    """
    manifest = read_manifest(path)
    if manifest.tokenizer is not None:
        _check_tokenizer(path, manifest.tokenizer)
    unit = UnitName(manifest.unit)
    schema = TensorSchema(unit, tuple(TensorSpec(t.name, t.shape) for t in manifest.tensors))
    state = UnitState(
        unit=unit,
        head=CommitId(bytes.fromhex(manifest.commit)),
        index=manifest.index,
        total_tokens=manifest.total_tokens,
        anchor_N=_load_flat(path, parameters_name(unit), manifest.parameters, schema, on_read),
        momentum_N=_load_flat(path, momentum_name(unit), manifest.momentum, schema, on_read),
    )
    found = {manifest.state_root: state} if manifest.units is None else _units_of(path, manifest, schema, state)
    for expected, part in found.items():
        root = state_root(part, ChunkGrid(part.anchor_N.numel(), manifest.chunk_elements))
        if root.hex() != expected:
            raise _damaged(path, f"its tensors of {part.unit} have the root {root[:4].hex()}, not {expected[:8]}")
    return manifest, state


def _units_of(path: Path, manifest: CheckpointManifest, schema: TensorSchema, state: UnitState) -> dict[str, UnitState]:
    """The states of several units, each checked against its root."""
    shapes, found = {spec.name: spec for spec in schema.tensors}, dict[str, UnitState]()
    named = [name for unit in manifest.units or () for name in unit.tensors]
    if sorted(named) != sorted(shapes):
        raise _damaged(path, "its units have other tensors than it holds")
    for unit in manifest.units or ():
        wanted = TensorSchema(UnitName(unit.unit), tuple(shapes[name] for name in unit.tensors))
        found[unit.state_root] = UnitState(
            UnitName(unit.unit),
            CommitId(bytes.fromhex(unit.commit)),
            unit.index,
            unit.total_tokens,
            picked(state.anchor_N, schema, wanted),
            picked(state.momentum_N, schema, wanted),
        )
    return found


def stored_unit(path: Path, schema: TensorSchema, grid: ChunkGrid) -> UnitContent:
    """One checked unit of a checkpoint with several.

    Raises:
        ConfigError, StorageError: as `load_checkpoint`, or the checkpoint has no such unit.
    """
    manifest, state = load_checkpoint(path)
    whole = TensorSchema(UnitName(manifest.unit), tuple(TensorSpec(t.name, t.shape) for t in manifest.tensors))
    for root, part in _units_of(path, manifest, whole, state).items():
        if part.unit == schema.unit:
            return UnitContent(schema, grid, part, Root(bytes.fromhex(root)))
    raise _damaged(path, f"it has no unit {schema.unit}")


def verify_checkpoint(path: Path, on_read: OnRead = _no_report) -> CheckpointManifest:
    """Check a checkpoint. Returns its manifest if every byte is what was written. `on_read` as in `load_checkpoint`.

    Raises:
        ConfigError, StorageError: as `load_checkpoint`.
    """
    return load_checkpoint(path, on_read)[0]


def surplus(
    rows: Sequence[CheckpointRow], keep: int, lasting_rounds: int, left: Collection[CommitId] = ()
) -> Sequence[CheckpointRow]:
    """The checkpoints to prune, oldest first: all except the newest `keep` and the first of every `lasting_rounds` rounds (0:
    none). Those in `left`, on abandoned lineages, go before all others and are never kept for their round.

    The first checkpoint of an interval stays the first when later ones are pruned, so it is kept permanently.
    """
    ordered = sorted(rows, key=lambda row: (row.commit not in left, row.index, row.written_unix_s))
    lasting: dict[int, CommitId] = {}
    if lasting_rounds:
        for row in ordered:
            if row.commit not in left:
                lasting.setdefault(row.index // lasting_rounds, row.commit)
    return [row for row in ordered[: max(0, len(ordered) - keep)] if row.commit not in lasting.values()]


def remove_checkpoint(folder: Path, row: CheckpointRow) -> None:
    """Delete a checkpoint's folder, after its ledger row is gone. It is renamed first, so that a partial folder never looks whole."""
    path = folder / row.path
    doomed = folder / (_TEMPORARY_PREFIX + row.path)
    try:
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"checkpoint {path} could not be removed ({error.strerror})", "a writable folder") from error


def unlisted_checkpoints(folder: Path, rows: Sequence[CheckpointRow], run_id_hex: str) -> Sequence[CheckpointRow]:
    """Whole, verified checkpoints of the run that `rows` do not list. They are left by a crash between a rename and the ledger row,
    or the ledger is an old copy.
    """
    listed = {row.path for row in rows}
    found = []
    for path in sorted(folder.glob("[0-9]*-*")):
        if path.name in listed:
            continue
        with suppress(ConfigError, StorageError):
            row = _row_of(verify_checkpoint(path))
            if (row.path, read_manifest(path).run_id) == (path.name, run_id_hex):
                found.append(row)
    return found


def _row_of(manifest: CheckpointManifest) -> CheckpointRow:
    commit = CommitId(bytes.fromhex(manifest.commit))
    return CheckpointRow(
        commit,
        UnitName(manifest.unit),
        manifest.index,
        manifest.total_tokens,
        Root(bytes.fromhex(manifest.state_root)),
        checkpoint_name(manifest.index, commit),
        manifest.written_unix_s,
    )


def lost_checkpoints(folder: Path, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
    """Rows without a folder: it was deleted by hand, or the ledger is an old copy."""
    return [row for row in rows if not (folder / row.path / MANIFEST_NAME).exists()]


def remove_leftovers(folder: Path) -> int:
    """Delete the remains of unfinished writes. Returns their number. Call at the start of the daemon."""
    leftovers = list(folder.glob(_TEMPORARY_PREFIX + "*"))
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return len(leftovers)
