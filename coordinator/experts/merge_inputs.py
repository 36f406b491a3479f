"""Verified inputs of a merged model: trunk and experts from checkpoints of one run, and text of each expert from the packed data.
The merging itself is the peer's (peer/models/merging.py); `write_merged` writes its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from pydantic import ValidationError

from averaging.data.assignment import heldout_starts, window_starts
from averaging.data.packing.expert_shards import expert_shards
from averaging.data.shards import MANIFEST_NAME, DatasetManifest, ShardCache, parse_dataset
from averaging.data.sources.texts import Split
from averaging.data.token_reader import TokenReader
from averaging.models.llama.config import LlamaConfig, require_llama
from coordinator.checkpoints.checkpoint_export import Exported, ensure_free, export_tensors
from coordinator.checkpoints.checkpoints import CheckpointManifest, stored_states, verify_checkpoint
from coordinator.checkpoints.granite_layout import granite_config, granite_tensors
from coordinator.run.hosted_runs import MANIFEST_FILE
from protocol.errors import ConfigError, PotluckError, StorageError
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import UnitName
from protocol.run.manifest import open_manifest
from protocol.tables import printable
from protocol.tensors.expert_schema import TRUNK, MixtureConfig, expert_of, held_units
from protocol.tensors.model_families import parse_model

DATA_FOLDER: Final = "data"
MOST_SHARDS: Final = 4
"""Most shards of an expert's text that are read. Windows from a few shards are representative."""


@dataclass(frozen=True)
class MergingParts:
    """A trunk (N,) float32 and experts (M,) float32 by number, all of one run and one state of its trunk.

    Attributes:
        path: the first checkpoint; its folder and manifest identify the run.
    """

    path: Path
    manifest: CheckpointManifest
    decoder: LlamaConfig
    mixture: MixtureConfig
    trunk_N: torch.Tensor
    experts: Mapping[int, torch.Tensor]

    @property
    def missing(self) -> list[int]:
        """Experts of the run that were never trained: no checkpoint has a round of theirs."""
        return [expert for expert in range(self.mixture.num_experts) if expert not in self.experts]

    def without(self, experts: Sequence[int]) -> MergingParts:
        """These parts without some experts.

        Raises:
            ConfigError: an expert is named twice or is not here, or fewer experts are left than each token is routed to.
        """
        held = ", ".join(map(str, sorted(self.experts)))
        for place, expert in enumerate(experts):
            if expert in experts[:place]:
                raise ConfigError(f"--without {expert} twice", "each expert once", "name it once")
            if expert not in self.experts:
                trained = f"the number of a trained expert: {held}"
                found = f"--without {expert}, which these checkpoints do not have trained"
                raise ConfigError(found, trained, "name one of those, or none")
        kept = {expert: values for expert, values in self.experts.items() if expert not in experts}
        if len(kept) < self.mixture.top_k:
            found = f"--without {', '.join(map(str, experts))} of the trained experts {held}: {len(kept)} stay"
            raise ConfigError(found, f"at least {self.mixture.top_k}, which a token passes", "leave fewer out")
        return replace(self, experts=kept)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """The units of one checkpoint by name, each with its state root."""

    path: Path
    manifest: CheckpointManifest
    units: Mapping[UnitName, tuple[str, torch.Tensor]]


def read_parts(paths: Sequence[Path]) -> MergingParts:
    """Verify checkpoints of an expert run, and take the trained experts of all of them. If two hold the same expert, its state must
    be equal.

    Raises:
        ConfigError: a folder is no checkpoint, is of another kind of run, or the checkpoints do not belong together.
        StorageError: a checkpoint does not verify.
    """
    first, *others = (_read(path) for path in paths)
    decoder, mixture = _numbers(first)
    units = dict(first.units)
    for other in others:
        _check_same_run(first, other)
        for unit, (root, values) in other.units.items():
            if unit in units and units[unit][0] != root:
                raise _apart(first, other, f"{unit} with root {units[unit][0][:8]}", root[:8])
            units[unit] = (root, values)
    if TRUNK not in units:
        raise ConfigError(f"checkpoint {first.path} has no {TRUNK}", "one of an expert run")
    experts = {
        expert: values for unit, (_, values) in units.items() if (expert := expert_of(unit, mixture)) is not None
    }
    if len(experts) < mixture.top_k:
        raise ConfigError(
            f"{len(experts)} trained experts in these checkpoints", f"at least {mixture.top_k}, which a token passes"
        )
    _check_lengths(first.path, decoder, mixture, units)
    return MergingParts(first.path, first.manifest, decoder, mixture, units[TRUNK][1], experts)


def _read(path: Path) -> _Checkpoint:
    manifest, units = verify_checkpoint(path), dict[UnitName, tuple[str, torch.Tensor]]()
    for state in stored_states(path, manifest) if manifest.units is not None else ():
        header = state.header
        if header.index or header.unit == TRUNK:  # an expert in its initial state had no holder
            units[header.unit] = (state.expected.hex(), state.load_anchor())
    return _Checkpoint(path, manifest, units)


def _numbers(checkpoint: _Checkpoint) -> tuple[LlamaConfig, MixtureConfig]:
    manifest = checkpoint.manifest
    if manifest.experts is None:
        raise ConfigError(
            f"checkpoint {checkpoint.path} is of a run without experts",
            'one of a run with shards = "expert"',
            "write its model with: potluck checkpoint export",
        )
    try:
        return require_llama(parse_model(manifest.model)), manifest.experts
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ConfigError(
            f"checkpoint {checkpoint.path} has another kind of model ({place})",
            "a model of family llama with experts",
            "merge it with the release that wrote it",
        ) from error


def _check_same_run(one: _Checkpoint, other: _Checkpoint) -> None:
    if one.manifest.run_id != other.manifest.run_id:
        raise _apart(one, other, f"run {one.manifest.run_id[:8]}", other.manifest.run_id[:8])
    if (one.manifest.model, one.manifest.experts) != (other.manifest.model, other.manifest.experts):
        raise _apart(one, other, "model numbers", "others")


def _apart(one: _Checkpoint, other: _Checkpoint, what: str, found: str) -> ConfigError:
    return ConfigError(
        f"{one.path} has {what}, {other.path} has {found}",
        "checkpoints of one run with one trunk and the same experts",
        "leave one out; see their rounds with: potluck checkpoint list",
    )


def _check_lengths(
    path: Path, decoder: LlamaConfig, mixture: MixtureConfig, units: Mapping[UnitName, tuple[str, torch.Tensor]]
) -> None:
    for schema in held_units(decoder, mixture, range(mixture.num_experts)).schemas:
        if schema.unit in units and units[schema.unit][1].numel() != schema.num_elements:
            raise ConfigError(
                f"checkpoint {path}: {schema.unit} of {units[schema.unit][1].numel()} values",
                f"{schema.num_elements}, as its model numbers say",
            )


class ExpertSample:
    """Windows of each expert's documents, from the packed data in the host's folder."""

    def __init__(self, parts: MergingParts, state_dir: Path | None = None) -> None:
        """Open the packed data. `state_dir` is the host's folder; None for the one that contains the first checkpoint. Blocks.

        Raises:
            ConfigError: the folder has no run with experts' data, or another run.
            StorageError: a shard is lost or damaged.
        """
        self._parts = parts
        self._state_dir = state_dir or parts.path.absolute().parent.parent
        self._folder = self._state_dir / DATA_FOLDER
        dataset = self._dataset()
        self._readers = {expert: self._reader(dataset, expert, "train") for expert in parts.experts}
        self._heldout = {expert: self._reader(dataset, expert, "heldout") for expert in parts.experts}

    def windows(self, expert: int, step: int, count: int) -> torch.Tensor:
        """Training windows (count, T + 1) int64; the same for the same step."""
        length, reader = self._parts.decoder.context_tokens + 1, self._readers[expert]
        starts = window_starts(0, f"expert {expert}", step, count, reader.num_tokens, length)
        return _stacked(reader, starts, length)

    def heldout(self, expert: int, count: int) -> torch.Tensor:
        """Held-out windows (count, T + 1) int64, spread evenly; always the same ones."""
        length, reader = self._parts.decoder.context_tokens + 1, self._heldout[expert]
        return _stacked(reader, heldout_starts(count, reader.num_tokens, length), length)

    def _dataset(self) -> DatasetManifest:
        """The dataset that the run's signed manifest names. It includes the router that chose each expert's documents."""
        where, remedy = self._state_dir, "name the folder of the run's host with --state-dir"
        try:
            manifest = open_manifest((where / MANIFEST_FILE).read_bytes(), verifier=Ed25519Verifier())
            dataset = parse_dataset((self._folder / MANIFEST_NAME).read_bytes(), manifest.dataset_id)
        except OSError as error:
            raise ConfigError(f"no run is hosted from {where}", "its manifest and packed data", remedy) from error
        except PotluckError as error:
            raise StorageError(f"the run in {where} is damaged ({error})", "what was written", remedy) from error
        if manifest.run_id.hex() != self._parts.manifest.run_id:
            raise ConfigError(
                f"the run in {where} is {manifest.run_id.hex()[:8]}",
                f"{self._parts.manifest.run_id[:8]}, which the checkpoint is of",
                remedy,
            )
        return dataset

    def _reader(self, dataset: DatasetManifest, expert: int, split: Split) -> TokenReader:
        cache = ShardCache(self._folder)
        entries = expert_shards(dataset, expert, split)[:MOST_SHARDS]
        form = dataset.form
        return TokenReader(
            [cache.whole(entry) for entry in entries],
            form.token_bytes,
            has_counts=form.has_counts,
            has_starts=form.has_starts,
        )


def _stacked(reader: TokenReader, starts: Sequence[int], length: int) -> torch.Tensor:
    return torch.from_numpy(np.stack([reader.read(start, length) for start in starts]).astype(np.int64))


def write_merged(parts: MergingParts, tensors: Mapping[str, torch.Tensor], target: Path) -> Exported:
    """Write a merged model to `target`, a folder that is missing or empty. `tensors` are named as in peer/models/mixture.py.

    Raises:
        ConfigError: `target` cannot be used.
        StorageError: writing failed; nothing is left in `target`.
    """

    def config_of(end: int | None) -> dict[str, object]:
        return granite_config(parts.decoder, parts.mixture, len(parts.experts), end)

    origin = {"potluck_experts": ",".join(map(str, sorted(parts.experts)))}
    return export_tensors(
        parts.path, parts.manifest, target, granite_tensors(parts.decoder, tensors), config_of, origin
    )


class MergedModel(Protocol):
    """The peer's merged model: its tensors, how its routers were made, and its loss."""

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Tensors, named as in peer/models/mixture.py."""
        ...

    @property
    def description(self) -> str:
        """How its routers were made, in words."""
        ...

    @property
    def quality(self) -> MergedWorth:
        """Its quality on held-out text."""
        ...


class MergedWorth(Protocol):
    """Quality of a merged model on held-out text."""

    @property
    def sentence(self) -> str:
        """The quality in a sentence."""
        ...


class MergeModels(Protocol):
    """The signature of peer.models.merging.merge_with_text. The host knows no models, so it is passed in."""

    def __call__(
        self,
        decoder: LlamaConfig,
        mixture: MixtureConfig,
        trunk_N: torch.Tensor,
        experts: Mapping[int, torch.Tensor],
        text: ExpertSample,
        tune_steps: int,
        without: Sequence[int] = (),
        /,
    ) -> MergedModel:
        """Raises LocalProtocolError if the parts do not fit together."""
        ...


def merge_checkpoints(
    paths: Sequence[Path],
    target: Path,
    merge: MergeModels,
    *,
    state_dir: Path | None = None,
    tune_steps: int = 40,
    without: Sequence[int] = (),
) -> str:
    """Verify checkpoints of one run, merge trunk and experts with `merge`, and write the model to `target`. Returns a summary for
    the user.

    Args:
        paths: checkpoint folders; the experts of later ones are added to the first one's.
        target: a folder that is missing or empty.
        merge: makes one model of the parts.
        state_dir: the host's folder; None for the one that contains the first checkpoint.
        tune_steps: training steps of the routers alone.
        without: experts to leave out.

    Raises:
        ConfigError, StorageError: as `read_parts` and `write_merged`.
    """
    ensure_free(target)
    parts = read_parts(paths)
    left_out = sorted(without)
    kept = parts.without(left_out)
    text = ExpertSample(parts, state_dir)
    merged = merge(parts.decoder, parts.mixture, parts.trunk_N, parts.experts, text, tune_steps, left_out)
    exported = write_merged(kept, merged.tensors, target)
    lacking = (
        f" without experts {', '.join(map(str, parts.missing))}, which were never trained," if parts.missing else ""
    )
    lacking += f" without experts {', '.join(map(str, left_out))}, as asked," if left_out else ""
    size = f"{sum(exported.files.values()) / 1e6:.2f} MB"
    where = f"round {parts.manifest.index} of {printable(parts.manifest.run_name)}, {len(kept.experts)} experts"
    description = (
        f"verified and merged{lacking} {merged.description}: {where}, {size} to {target}: {', '.join(exported.files)}"
    )
    return f"{description}\n{merged.quality.sentence}"
