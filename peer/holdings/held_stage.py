"""The stage of this peer in a pipeline run across restarts: what its memory and its disk allow, and the choice once the run has
started.

A peer holds one stage: its replicas vote on its rounds, and a lane has one peer for each stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from averaging.data.shards import DatasetManifest, HashedFile
from averaging.data.start_weights import needed_of
from averaging.network.seams.interfaces import Offload
from peer.holdings.verified_holders_core import Believed
from peer.membership.saved_membership import write_durably
from peer.settings.config import PeerConfig, whole_bytes
from protocol.errors import StorageError
from protocol.ids import PeerId
from protocol.pipeline.placement.cutting import stages_that_fit
from protocol.pipeline.placement.placement import Placement, Server, stage_for_joiner
from protocol.rounds.messages.start import StartRecord
from protocol.run.manifest import RunConfig
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap, stage_schema, stage_unit

log = structlog.get_logger()

FILE_NAME: Final = "stage"
"""File in the folder of a run with the held stage."""

_WARM_UP_S: Final = 30.0
_BYTES_PER_S: Final = 1e6
_SPEED: Final = 1.0
_COST: Final = 1.0
_STATE_BYTES: Final = 8
_FAR_BYTES: Final = 1 << 60

HORIZON_S: Final = 3600.0
"""How long a placement is assumed to last, unless the run ends sooner."""

NO_LIMITS: Final[Mapping[PeerId, Iterable[int]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class KnownStages:
    """Input to the choice of a stage.

    Attributes:
        fits: stages that fit in its memory.
        kept: the stage held earlier in this run; None if there was none.
        founded: the stage that this peer founded the run with, by the host's start record.
        others: all listed peers with their stage, None if they have not decided.
    """

    stages: StageMap
    fits: tuple[int, ...]
    kept: int | None = None
    founded: int | None = None
    others: Mapping[PeerId, int | None] | None = None


def choose_stage(known: KnownStages) -> tuple[int, str]:
    """The chosen stage and why. The first that applies: what is on our disk, what the run began with here, or what the run lacks
    most among the stages that fit.
    """
    if known.kept is not None:
        return known.kept, "held here before"
    if known.founded is not None:
        return known.founded, "the run began with it here"
    held = {peer: stage for peer, stage in (known.others or {}).items() if stage is not None}
    placement = placement_of(known.stages, held)
    counts = ", ".join(map(str, placement.replicas()))
    return stage_for_joiner(placement, known.fits), f"the run lacks it most: its stages have {counts} holders"


def placement_of(
    stages: StageMap,
    held: Mapping[PeerId, int],
    fits: Mapping[PeerId, Iterable[int]] = NO_LIMITS,
    *,
    horizon_s: float = HORIZON_S,
) -> Placement:
    """The run's stages and their holders, as every peer sees them.

    All peers count alike, and so do all stages: a lane has one peer of each stage, so each stage should have the same number.

    Args:
        fits: the stages that fit in a peer's memory, where known; all of them otherwise.
    """
    all_stages = range(stages.num_stages)
    servers = tuple(
        Server(peer, stage, _SPEED, _BYTES_PER_S, frozenset(fits.get(peer, all_stages)))
        for peer, stage in sorted(held.items())
        if stage in all_stages
    )
    sizes = tuple(_STATE_BYTES * stage_schema(stages, stage).num_elements for stage in all_stages)
    return Placement((_COST,) * stages.num_stages, sizes, servers, _WARM_UP_S, horizon_s)


def founded_stage(start: StartRecord, me: PeerId, num_stages: int) -> int | None:
    """The stage that the start record gives to a founder; None for a peer that joined later."""
    rosters = {unit.unit: unit.roster for unit in start.units}
    return next((stage for stage in range(num_stages) if me in rosters.get(stage_unit(stage), ())), None)


class OwnStage:
    """The stage of a pipeline run that this peer holds. `held` is empty until it has decided.

    Raises:
        MachineError: no stage fits in its memory.
    """

    room: Final = 1
    held: tuple[int, ...] = ()

    def __init__(self, own: PeerConfig, config: RunConfig, stages: StageMap, folder: Path, offload: Offload) -> None:
        self.num_parts = stages.num_stages
        self._stages = stages
        self._path = folder / FILE_NAME
        self._offload = offload
        self._kept = _load(self._path, stages.num_stages)
        cap_bytes = whole_bytes(own.max_memory_gb) or _FAR_BYTES
        memory = config.pipeline.memory(config.model, config.inner) if config.pipeline is not None else None
        all_stages = tuple(range(stages.num_stages))
        self.fits = stages_that_fit(stages, memory, cap_bytes) if memory is not None else all_stages
        """Stages that fit in its memory."""

    async def move_to(self, stage: int) -> None:
        """Hold another stage from the next start on.

        Raises:
            StorageError: the choice cannot be saved.
        """
        await self._offload.run(partial(_keep, self._path, stage))

    @property
    def wanted(self) -> tuple[int, ...]:
        """The stage that is fixed regardless of other peers; empty if the choice is open. If not every stage fits, it is one that
        does.
        """
        if self.held or self._kept is not None:
            return self.held or (self._kept or 0,)
        if len(self.fits) == self.num_parts:
            return ()
        place = int.from_bytes(sha256(str(self._path).encode()).digest()[:8], "big")
        return (self.fits[place % len(self.fits)],)

    def files(self, dataset: DatasetManifest, held: Sequence[int]) -> Sequence[HashedFile]:
        """Files of the data set to fetch for this stage. Only the first stage reads text, for the tokens, and the last, for the
        next tokens. Of the weights that the run begins with, a stage reads its own. None of both until a stage is chosen.
        """
        reads_text = any(self._stages.is_first(stage) or self._stages.is_last(stage) for stage in held)
        files = dataset.files if reads_text else dataset.files_without_text
        names = [spec.name for stage in held for spec in stage_schema(self._stages, stage).tensors]
        needed = {entry.sha256 for entry in needed_of(dataset, names, model_schema(self._stages.decoder))}
        weights = {entry.sha256 for entry in dataset.part("start")}
        return [file for file in files if file.sha256 not in weights or file.sha256 in needed]

    async def settle(self, start: StartRecord, me: PeerId, seen: Believed) -> tuple[int, ...]:
        """Decide once the run has started, by what the other reachable members hold. A peer that takes no connections is
        believed.

        Raises:
            StorageError: the choice cannot be saved.
        """
        began = {peer: founded_stage(start, peer, self.num_parts) for peer in start.roster}
        # a peer that still downloads has no proof yet, and peers that join meanwhile should choose another stage
        listed = dict.fromkeys(start.roster, ()) if seen.is_empty else {**seen.doubted, **seen.on_word, **seen.held}
        others = {peer: held[0] if held else began.get(peer) for peer, held in listed.items() if peer != me}
        known = KnownStages(self._stages, self.fits, self._kept, began.get(me), others)
        stage, reason = choose_stage(known)
        await self._offload.run(partial(_keep, self._path, stage))
        self.held = (stage,)
        log.info("stage_chosen", stage=stage, reason=reason)
        return self.held


def _keep(path: Path, stage: int) -> None:
    try:
        write_durably(path, json.dumps(stage).encode("ascii"))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "a writable folder with space") from error


def _load(path: Path, num_stages: int) -> int | None:
    """Load the saved choice. None if the file is missing or unreadable: another choice only costs a download."""
    try:
        stage = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return stage if type(stage) is int and 0 <= stage < num_stages else None
