"""The model as this peer's disk has it: the newest state of each unit that its files give, checked. Changes nothing on disk.

The peer's daemon may be running (averaging/rounds/lineage/disk_state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import structlog
import trio

from averaging.codecs import codec_by_name
from averaging.data.base_files import stored_adapter
from averaging.data.shards import DatasetManifest, ShardCache, parse_dataset
from averaging.data.start_weights import start_shards
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.lineage.disk_state import DiskState, newest_on_disk
from averaging.rounds.lineage.updates import UnitContext
from averaging.state.generations import Generations
from averaging.state.run_model import ModelTokenizer, ModelUnit, RunModel
from averaging.state.start_state import start_state
from averaging.state.state import UnitState
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.membership.joining import open_start_record
from peer.membership.saved_membership import load_membership
from protocol.errors import ConfigError, StorageError
from protocol.identity.verifier import Ed25519Verifier
from protocol.rounds.messages.wire import genesis_id
from protocol.run.manifest import RunManifest, open_manifest
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

log = structlog.get_logger()

DATA_FOLDER: Final = "data"
"""In the state folder: the data and the tokenizers of all its runs."""

_FETCH_IT: Final = "fetch the whole model with: potluck checkpoint fetch"

Genesis: TypeAlias = Callable[[TensorSchema], UnitState]
"""Makes the first state of a unit. Raises as `start_state`."""


def read_model(run_folder: Path) -> RunModel:
    """The newest state that a run's folder gives, as a model: that of the newest commit, where its results are here. Blocks.

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
    missing = [unit for unit in schemas if not _is_held(run_folder / unit)]
    if len(missing) == len(schemas):
        raise StorageError(f"no state of the run is in {run_folder} yet", "a peer that took part in a round", _FETCH_IT)
    if missing:
        held = ", ".join(unit for unit in schemas if unit not in missing)
        raise ConfigError(f"this peer holds only {held} of the model", "all of its parts", _FETCH_IT)
    dataset = parse_dataset(saved.dataset, manifest.dataset_id)
    cache = ShardCache(run_folder.parent.parent / DATA_FOLDER)

    def genesis(schema: TensorSchema) -> UnitState:
        start, given = open_start_record(saved.start_record, manifest), start_shards(dataset, cache.path)
        return start_state(schema, manifest.config.run.seed, genesis_id(start), given, manifest.model_schema)

    found = trio.run(partial(_read_units, run_folder, manifest, genesis))
    _tell_older(found)
    units = tuple(
        ModelUnit(schema, grid_of(schema, manifest), each.state, each.root)
        for schema, each in zip(schemas.values(), found, strict=True)
    )
    tokenizer, template = read_tokenizer(dataset, cache), read_template(dataset, cache)
    proof = "as a later round attests it" if all(each.is_attested for each in found) else "as this peer computed it"
    return RunModel(manifest, units, tokenizer, proof, stored_adapter(manifest.config, dataset), template)


def grid_of(schema: TensorSchema, manifest: RunManifest) -> ChunkGrid:
    """The chunks of a unit."""
    return ChunkGrid(schema.num_elements, manifest.config.chunk_elements)


def _tell_older(found: Sequence[DiskState]) -> None:
    """Say in a warning that a state is older than the newest round in this peer's log."""
    older = [each for each in found if each.state.index < each.newest_index]
    if older:
        index, newest = older[0].state.index, older[0].newest_index
        reason = (
            f"the model is that of round {index}; the results of later rounds, up to round {newest}, are not all here"
        )
        log.warning("model_is_older", reason=reason)


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


def _is_held(folder: Path) -> bool:
    """Whether a unit's folder has a state, or results from which one can be made. A unit that is only followed has neither."""
    return any(any((folder / name).glob("*")) for name in ("generations", "results"))


async def _read_units(run_folder: Path, manifest: RunManifest, genesis: Genesis) -> list[DiskState]:
    return [
        await _read_unit(run_folder / schema.unit, manifest, schema, partial(genesis, schema))
        for schema in manifest.unit_schemas().values()
    ]


async def _read_unit(
    folder: Path, manifest: RunManifest, schema: TensorSchema, genesis: Callable[[], UnitState]
) -> DiskState:
    """The unit's newest good state."""
    numbers, offload = manifest.config.round, ThreadOffload()
    storage, grid = FileStorage(folder, offload), grid_of(schema, manifest)
    tools = UnitContext(
        manifest.run_id, schema.unit, Ed25519Verifier(), codec_by_name(numbers.codec), grid, offload, UnitLog(storage),
        Generations(storage, grid, offload), results=codec_by_name(manifest.config.result_codec),
    )  # fmt: skip
    try:
        return await newest_on_disk(tools, genesis)
    except StorageError as error:
        raise StorageError(f"{error.found} in {folder}", error.expected, _FETCH_IT) from error
