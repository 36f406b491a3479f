"""Checkpoints on the host's disk: a folder of safetensors with a manifest, written whole or not at all.

Order of writing: temporary folder, tensors, fsync, manifest, fsync, rename, fsync of the parent. The caller then adds the ledger
row. Everything here blocks: call it through `Offload`. `verify_checkpoint` trusts nothing: it hashes the files and recomputes the
state root from their tensors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from averaging.data.base_files import StoredAdapter
from averaging.state.state import StateHeader, UnitState, state_root
from coordinator.checkpoints.stored_file import Count, FrozenModel, HexHash, OnRead, StoredFile, hash_file
from coordinator.checkpoints.stored_state import StoredPlace, StoredState, reading
from coordinator.checkpoints.tensor_files import TensorSource, source_of, write_tensors
from coordinator.ledger.ledger import CheckpointRow
from protocol.errors import ConfigError, StorageError
from protocol.ids import HASH_BYTES, CommitId, Root, UnitName
from protocol.plain_file import check_plain_file
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema, TensorSpec

if TYPE_CHECKING:
    from coordinator.run.run_files import RunTokenizer

MANIFEST_NAME: Final = "manifest.json"
ALL_UNITS: Final = UnitName("model")
"""The name for all units of a model together."""

TOKENIZER_NAME: Final = "tokenizer.json"
TEMPLATE_NAME: Final = "chat.json"
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
        momentum: left out in an old checkpoint, which has `momentum_hashes` instead (thinning.py).
        adapter: the adapter's numbers and its base; left out in a run without. `tensors` are then the adapter's.
        tokenizer: the run's tokenizer; left out if tokens are bytes.
        template: the run's chat template (averaging/data/chat/run_template.py); left out in a run without chats.
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
    momentum: StoredFile | None = None
    momentum_hashes: StoredFile | None = None
    model: dict[str, int | float | bool | str]
    units: tuple[StoredUnit, ...] | None = None
    experts: MixtureConfig | None = None
    adapter: StoredAdapter | None = None
    tokenizer: StoredTokenizer | None = None
    template: StoredFile | None = None
    written_unix_s: Count
    checksum: HexHash = "0" * 64

    @model_validator(mode="after")
    def _check_momentum(self) -> CheckpointManifest:
        if (self.momentum is None) == (self.momentum_hashes is None):
            raise ValueError("either the momentum or its hashes")
        return self

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
class Companions:
    """The same in all checkpoints of a run, beside the weights: the tokenizer, the numbers and base of an adapter, and the file of the
    chat template, empty without one.
    """

    tokenizer: RunTokenizer | None = None
    adapter: StoredAdapter | None = None
    template: bytes = b""


NO_COMPANIONS: Final = Companions()


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The content of a checkpoint. `root` is the attested state root. With several units `schema` is that of the whole model, and
    `grid`, `state` and `root` are the spine's.
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
    adapter: StoredAdapter | None = None
    template: bytes = b""

    @property
    def unit(self) -> UnitName:
        """The name that the files have."""
        return ALL_UNITS if self.units else self.state.unit


def parameters_name(unit: str) -> str:
    """File of the weights."""
    return f"{unit}.safetensors"


def momentum_name(unit: str) -> str:
    """File of the momentum."""
    return f"{unit}.momentum.safetensors"


def momentum_hashes_name(unit: str) -> str:
    """File of the momentum's hashes, 32 bytes for each chunk of each unit, in the order of the units."""
    return f"{unit}.momentum.sha256"


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


def _sources(content: CheckpointContent, vector: int) -> dict[str, TensorSource]:
    """All tensors of the anchors (0) or of the momenta (1), in the memory in which they lie."""
    held = [(unit.schema, unit.state) for unit in content.units] or [(content.schema, content.state)]
    places = {spec.name: (schema, state) for schema, state in held for spec in schema.tensors}
    found: dict[str, TensorSource] = {}
    for spec in content.schema.tensors:
        schema, state = places[spec.name]
        values_N = (state.anchor_N, state.momentum_N)[vector]
        found[spec.name] = source_of(values_N[schema.offset(spec.name) :][: spec.num_elements], spec.shape)
    return found


def _save(path: Path, tensors: Mapping[str, TensorSource], unit: UnitName) -> StoredFile:
    path.touch(mode=0o600)
    write_tensors(path, tensors, {"format": "pt", "unit": unit})
    sync_path(path)
    return hash_file(path)


def save_bytes(path: Path, data: bytes) -> StoredFile:
    """Write a small file of a checkpoint; durable when this returns. Raises OSError."""
    path.write_bytes(data)
    sync_path(path)
    return hash_file(path)


def _save_tokenizer(path: Path, tokenizer: RunTokenizer | None) -> StoredTokenizer | None:
    if tokenizer is None:
        return None
    return StoredTokenizer(**save_bytes(path, tokenizer.data).model_dump(), end=tokenizer.end)


def _fill(folder: Path, content: CheckpointContent, now_unix_s: int) -> None:
    state, schema, unit = content.state, content.schema, content.unit
    manifest = CheckpointManifest(
        run_name=content.run_name,
        run_id=content.run_id_hex,
        unit=unit,
        commit=state.head.hex(),
        index=state.index,
        total_tokens=state.total_tokens,
        state_root=content.root.hex(),
        chunk_elements=content.grid.chunk_elements,
        tensors=tuple(StoredTensor(name=s.name, shape=s.shape) for s in schema.tensors),
        parameters=_save(folder / parameters_name(unit), _sources(content, 0), unit),
        momentum=_save(folder / momentum_name(unit), _sources(content, 1), unit),
        model=content.model,
        units=tuple(map(_stored, content.units)) or None,
        experts=content.mixture,
        adapter=content.adapter,
        tokenizer=_save_tokenizer(folder / TOKENIZER_NAME, content.tokenizer),
        template=save_bytes(folder / TEMPLATE_NAME, content.template) if content.template else None,
        written_unix_s=now_unix_s,
    )
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Seal the manifest and write it, in place of one that is there. Raises OSError."""
    path, temporary = folder / MANIFEST_NAME, folder / (_TEMPORARY_PREFIX + MANIFEST_NAME)
    temporary.write_text(manifest.sealed().model_dump_json(indent=2, exclude_none=True) + "\n", encoding="ascii")
    sync_path(temporary)
    temporary.replace(path)
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
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        cause = error.strerror or error
        raise StorageError(
            f"checkpoint of round {state.index} could not be written to {folder} ({cause})",
            "a writable folder with enough space",
            "free some space; older checkpoints and the run itself are untouched",
        ) from error
    return CheckpointRow(state.head, content.unit, state.index, state.total_tokens, content.root, name, now_unix_s)


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


def stored_files(manifest: CheckpointManifest) -> Mapping[str, StoredFile]:
    """The files that a checkpoint's manifest vouches for, by name."""
    unit = manifest.unit
    files = {
        TOKENIZER_NAME: manifest.tokenizer,
        TEMPLATE_NAME: manifest.template,
        parameters_name(unit): manifest.parameters,
        momentum_name(unit): manifest.momentum,
        momentum_hashes_name(unit): manifest.momentum_hashes,
    }
    return {name: stored for name, stored in files.items() if stored is not None}


def _check_files(path: Path, manifest: CheckpointManifest, on_read: OnRead) -> None:
    for name, stored in stored_files(manifest).items():
        try:
            _check_file(path, name, stored, on_read if name.endswith(".safetensors") else _no_report)
        except OSError as error:
            raise _damaged(path, f"{name} could not be read ({error.strerror})") from error


def verify_checkpoint(path: Path, on_read: OnRead = _no_report) -> CheckpointManifest:
    """Check every file's hash and recompute the state root from the tensors. The files are read a part at a time. Returns the
    manifest if every byte is what was written. `on_read` hears of the weights and the momentum as they are hashed.

    Raises:
        ConfigError: there is no checkpoint.
        StorageError: it does not verify; says what is wrong.
    """
    manifest = read_manifest(path)
    _check_files(path, manifest, on_read)
    for state in stored_states(path, manifest):
        root, expected = state.root(), state.expected
        if root != expected:
            has = f"its tensors of {state.schema.unit} have the root {root[:4].hex()}"
            raise _damaged(path, f"{has}, not {expected[:4].hex()}")
    return manifest


def stored_states(path: Path, manifest: CheckpointManifest) -> Sequence[StoredState]:
    """The states of a checkpoint's units, the spine's first. Nothing but the heads of the files is read.

    Raises:
        StorageError: a file cannot be read, or lacks a tensor.
    """
    shapes = {tensor.name: TensorSpec(tensor.name, tensor.shape) for tensor in manifest.tensors}
    units: Sequence[tuple[StoredUnit | CheckpointManifest, Sequence[str]]] = [(manifest, list(shapes))]
    if manifest.units is not None:
        units = [(unit, unit.tensors) for unit in manifest.units]
    if sorted(name for _, names in units for name in names) != sorted(shapes):
        raise _damaged(path, "its units have other tensors than it holds")
    hashes = _momentum_hashes(path, manifest)
    momentum = path / momentum_name(manifest.unit) if hashes is None else None
    found = list[StoredState]()
    for unit, names in units:
        name = UnitName(unit.unit)
        header = StateHeader(name, CommitId(bytes.fromhex(unit.commit)), unit.index, unit.total_tokens)
        schema = TensorSchema(name, tuple(shapes[tensor] for tensor in names))
        grid = ChunkGrid(schema.num_elements, manifest.chunk_elements)
        place = StoredPlace(
            path / parameters_name(manifest.unit), momentum, list(islice(hashes or (), grid.num_chunks))
        )
        found.append(StoredState(header, schema, grid, Root(bytes.fromhex(unit.state_root)), place))
    return found


def _momentum_hashes(path: Path, manifest: CheckpointManifest) -> Iterator[bytes] | None:
    """The hashes of the momentum's chunks, if the checkpoint has these instead of the momentum."""
    if manifest.momentum_hashes is None:
        return None
    with reading():
        data = (path / momentum_hashes_name(manifest.unit)).read_bytes()
    return (data[first : first + HASH_BYTES] for first in range(0, len(data), HASH_BYTES))


def stored_unit(path: Path, schema: TensorSchema, grid: ChunkGrid) -> UnitContent:
    """One unit of a checkpoint with several, in memory. The whole checkpoint is verified before.

    Raises:
        ConfigError, StorageError: as `verify_checkpoint`, or the checkpoint has no such unit.
    """
    for state in stored_states(path, verify_checkpoint(path)):
        if state.schema.unit == schema.unit:
            return UnitContent(schema, grid, state.load(), state.expected)
    raise _damaged(path, f"it has no unit {schema.unit}")


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
    commit, root = CommitId(bytes.fromhex(manifest.commit)), Root(bytes.fromhex(manifest.state_root))
    unit, name = UnitName(manifest.unit), checkpoint_name(manifest.index, commit)
    return CheckpointRow(commit, unit, manifest.index, manifest.total_tokens, root, name, manifest.written_unix_s)


def lost_checkpoints(folder: Path, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
    """Rows without a folder: it was deleted by hand, or the ledger is an old copy."""
    return [row for row in rows if not (folder / row.path / MANIFEST_NAME).exists()]


def remove_leftovers(folder: Path) -> int:
    """Delete the remains of unfinished writes. Returns their number. Call at the start of the daemon."""
    leftovers = list(folder.glob(_TEMPORARY_PREFIX + "*"))
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return len(leftovers)
