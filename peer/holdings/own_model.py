"""The model as this peer's disk has it: the newest whole state of each unit, checked against its root. Changes nothing on disk.

The peer's daemon may be running: it replaces files whole, so a state that disappears meanwhile is looked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio

from averaging.data.base_files import stored_adapter
from averaging.data.shards import DatasetManifest, ShardCache, parse_dataset
from averaging.network.seams.offload import ThreadOffload
from averaging.state.generations import Generations
from averaging.state.run_model import ModelTokenizer, ModelUnit, RunModel
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.membership.saved_membership import load_membership
from protocol.errors import ConfigError, StorageError
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, Root
from protocol.rounds.messages.wire import decode_certificate, decode_record
from protocol.run.manifest import RunManifest, open_manifest
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

DATA_FOLDER: Final = "data"
"""In the state folder: the data and the tokenizers of all its runs."""

_FETCH_IT: Final = "fetch the whole model with: potluck checkpoint fetch"
_TRIES: Final = 3


def read_model(run_folder: Path) -> RunModel:
    """The newest whole state in a run's folder, as a model. Blocks.

    Raises:
        ConfigError: the run was never joined to the end, or this peer holds only a part of the model.
        StorageError: no state is here yet, or all are damaged.
        RemoteProtocolError, VersionError: the run's manifest is not what its host signed, or of another release.
    """
    saved = load_membership(run_folder)
    if saved is None:
        raise ConfigError(f"no run was joined in {run_folder}", "a joined run", "see: potluck runs")
    manifest = open_manifest(saved.manifest, verifier=Ed25519Verifier())
    schemas = manifest.unit_schemas()
    missing = [unit for unit in schemas if not any((run_folder / unit / "generations").glob("*"))]
    if len(missing) == len(schemas):
        raise StorageError(f"no state of the run is in {run_folder} yet", "a peer that took part in a round", _FETCH_IT)
    if missing:
        held = ", ".join(unit for unit in schemas if unit not in missing)
        raise ConfigError(f"this peer holds only {held} of the model", "all of its parts", _FETCH_IT)
    units = trio.run(partial(_read_units, run_folder, manifest))
    dataset = parse_dataset(saved.dataset, manifest.dataset_id)
    cache = ShardCache(run_folder.parent.parent / DATA_FOLDER)
    tokenizer, template = read_tokenizer(dataset, cache), read_template(dataset, cache)
    is_attested = all(unit_attested for _, unit_attested in units)
    proof = "as a later round attests it" if is_attested else "as this peer computed it"
    adapter = stored_adapter(manifest.config, dataset)
    return RunModel(manifest, tuple(unit for unit, _ in units), tokenizer, proof, adapter, template)


def read_tokenizer(dataset: DatasetManifest, cache: ShardCache) -> ModelTokenizer | None:
    """The run's tokenizer from the cached data; None if tokens are bytes.

    Raises:
        StorageError: its file is not here, or damaged.
    """
    entry = dataset.tokenizer
    if entry is None:
        return None
    return ModelTokenizer(cache.whole(entry).read_bytes(), entry.end)


def read_template(dataset: DatasetManifest, cache: ShardCache) -> bytes:
    """The file of the run's chat template from the cached data; empty in a run without chats. Raises as `read_tokenizer`."""
    return b"" if dataset.template is None else cache.whole(dataset.template).read_bytes()


async def _read_units(run_folder: Path, manifest: RunManifest) -> list[tuple[ModelUnit, bool]]:
    elements = manifest.config.chunk_elements
    return [
        await _read_unit(run_folder / schema.unit, schema, ChunkGrid(schema.num_elements, elements))
        for schema in manifest.unit_schemas().values()
    ]


async def _read_unit(folder: Path, schema: TensorSchema, grid: ChunkGrid) -> tuple[ModelUnit, bool]:
    """The unit's newest good state, and whether a commit in this peer's log attests it."""
    offload = ThreadOffload()
    storage = FileStorage(folder, offload)
    generations = Generations(storage, grid, offload)
    problem: StorageError | None = None
    for _ in range(_TRIES):
        attested = await _attested(UnitLog(storage))
        for ref in reversed(await generations.list()):
            try:
                state, root = await generations.load(ref)
            except StorageError as error:
                problem = error
                continue
            if attested.get(ref.commit, root) == root:
                return ModelUnit(schema, grid, state, root), ref.commit in attested
            problem = StorageError(f"{ref.name} of {schema.unit} has another root than the run attests", "that root")
    raise StorageError(
        f"no good state of {schema.unit} in {folder} ({problem.found if problem else 'none'})", "one", _FETCH_IT
    )


async def _attested(log: UnitLog) -> Mapping[CommitId, Root]:
    logged = await log.load()
    agreed = (decode_record(decode_certificate(raw).record).agreed for _, raw in logged.certificates)
    return {entry.commit: entry.state_root for entry in agreed if entry is not None}
