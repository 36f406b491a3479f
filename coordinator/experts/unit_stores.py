"""Folders of a run's experts on the host's disk, and how each is opened from the run's start record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from averaging.codecs import codec_by_name
from averaging.network.seams.interfaces import Offload
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.state.generations import Generations
from averaging.state.start_state import start_state
from averaging.state.state import StateHeader, absent_state
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage, clear_unfinished
from coordinator.experts.unit_keeper import KeptPlace
from coordinator.run.run_files import RunFiles
from protocol.identity.identity import Verifier
from protocol.ids import UnitName
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.wire import genesis_id
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

UNIT_FOLDER: Final = "units"
"""Folder in the host's folder. It has one folder for each expert, in a holder's format, and a second one for its holders' other
lineage.
"""


@dataclass(frozen=True)
class PlacementContext:
    """The context that all places share. `start()` returns the run's signed start record without its envelope, once there is one.
    `milestones(unit)` returns the newest that the host signed.
    """

    run: RunFiles
    verifier: Verifier
    offload: Offload
    start: Callable[[], bytes]
    milestones: Callable[[UnitName], Sequence[bytes]] = lambda _unit: ()


def kept_places(tools: PlacementContext) -> Mapping[UnitName, KeptPlace]:
    """Places of all experts or stages of a run; empty in a run without. Blocks briefly."""
    manifest = tools.run.manifest
    schemas, folder = manifest.unit_schemas(), tools.run.folder / UNIT_FOLDER
    return {
        unit: replace(
            _place(tools, schemas[unit], folder / unit),
            holders_lineage=_place(tools, schemas[unit], folder / f"{unit}.beside"),
        )
        for unit in manifest.parts
    }


def _place(tools: PlacementContext, schema: TensorSchema, folder: Path) -> KeptPlace:
    config = tools.run.manifest.config
    if folder.exists():
        clear_unfinished(folder)
    storage = FileStorage(folder, tools.offload)
    grid = ChunkGrid(schema.num_elements, config.chunk_elements)
    unit_tools = UnitContext(
        tools.run.manifest.run_id,
        schema.unit,
        tools.verifier,
        codec_by_name(config.round.codec),
        grid,
        tools.offload,
        UnitLog(storage),
        Generations(storage, grid, tools.offload),
        results=codec_by_name(config.result_codec),
    )
    return KeptPlace(storage, partial(_chain, tools, schema, unit_tools))


async def _chain(tools: PlacementContext, schema: TensorSchema, unit_tools: UnitContext) -> UnitChain:
    start, manifest = tools.start(), tools.run.manifest
    given, model = tools.run.start_shards, manifest.model_schema
    make = partial(start_state, schema, manifest.config.run.seed, genesis_id(start), given, model)
    header = StateHeader(schema.unit, genesis_id(start), 0, 0)
    check = SignatureCheck(tools.verifier, manifest.run_id)
    held = HeldMilestones(check, bytes.fromhex(manifest.host_public_key), genesis_id(start))
    held.take(tools.milestones(schema.unit), "the ledger")
    unit_tools = replace(unit_tools, milestones=held)
    return UnitChain(unit_tools, start, absent_state(header, schema.num_elements), make)
