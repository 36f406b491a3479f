"""A run's model as a peer has it: its manifest, one verified state for each unit, and the tokenizer.

Peers make it from their own disk or from other peers; the host's commands write it as a checkpoint. Neither imports the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from averaging.data.base_files import StoredAdapter
from averaging.state.state import UnitState
from protocol.ids import Root
from protocol.run.manifest import RunManifest
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema


@dataclass(frozen=True, slots=True)
class ModelUnit:
    """One unit's state, whose root was computed from its bytes."""

    schema: TensorSchema
    grid: ChunkGrid
    state: UnitState
    root: Root


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """The bytes of the run's tokenizer.json, and the token that ends a document."""

    data: bytes
    end: int


@dataclass(frozen=True, slots=True)
class RunModel:
    """A model of a run.

    Attributes:
        units: all units of the run, the spine first.
        tokenizer: the run's; None if tokens are bytes.
        adapter: its numbers and its base; None in a run without.
        template: the file of the run's chat template; empty in a run without chats.
        proof: what stands behind the state's root, in a few words.
    """

    manifest: RunManifest
    units: tuple[ModelUnit, ...]
    tokenizer: ModelTokenizer | None
    proof: str
    adapter: StoredAdapter | None = None
    template: bytes = b""


class PeerModels(Protocol):
    """The peers' ways to a model, for the host's commands."""

    def state_dir(self) -> Path:
        """The peer's state folder, as configured."""
        ...

    def run_folder(self, folder: Path, run: str, /) -> Path | None:
        """The folder of a run joined from a peer's state folder, by its name or the beginning of its id; of the last run for "".
        `folder` may be the run's folder itself. None if it is nothing of a peer's.

        Raises:
            ConfigError: no run of that name, or several.
        """
        ...

    def read_model(self, run_folder: Path, /) -> RunModel:
        """The newest whole state in a run's folder. Blocks; reads only.

        Raises:
            StorageError, ConfigError: there is none, or this peer holds only a part of the model.
        """
        ...

    def fetch_model(self, invite: str, run: str, state_dir: Path | None, /) -> tuple[RunModel, Path]:
        """Download the newest verified model from the host or from members. Also returns the run's folder. Blocks.

        Raises:
            PotluckError: nobody has it, the host refuses, or this peer's daemon runs.
        """
        ...

    def forget_download(self, run_folder: Path, /) -> None:
        """Delete what a download left on disk, once the model is written elsewhere. Blocks."""
        ...
