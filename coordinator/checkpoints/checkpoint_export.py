"""Exports a checkpoint as a folder that other programs load: the Hugging Face layout of its model family, whole or not at all.

Only a verified checkpoint is exported. config.json is moved into place last, because no program loads a folder without it. Blocks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from averaging.arithmetic.expert_dense import dense_config, dense_tensors
from averaging.data.chat.run_template import open_template
from averaging.models.family import layout_of
from averaging.models.llama.config import LlamaConfig, require_llama
from coordinator.checkpoints.checkpoints import (
    TEMPLATE_NAME,
    TOKENIZER_NAME,
    CheckpointManifest,
    parameters_name,
    sync_path,
    verify_checkpoint,
)
from coordinator.checkpoints.exported_tokenizer import (
    ExportedTokenizer,
    byte_tokenizer,
    file_tokenizer,
    generation_config,
    tokenizer_config,
)
from coordinator.checkpoints.stored_file import OnRead
from coordinator.checkpoints.stored_state import reading
from coordinator.checkpoints.tensor_files import StoredVector, TensorSource, source_of, write_tensors
from coordinator.checkpoints.weight_shards import INDEX_NAME, WEIGHTS_NAME, weight_shards, weights_index
from protocol.errors import ConfigError, StorageError
from protocol.ids import UnitName
from protocol.tensors.expert_schema import held_units
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.model_families import parse_model
from protocol.tensors.tensor_schema import TensorSchema

if TYPE_CHECKING:
    import torch

CONFIG_NAME: Final = "config.json"
_TEMPORARY: Final = ".writing"
_OWN_TENSORS: Final = "the tensors of its model family"
_EXPORT_ELSEWHERE: Final = "export it with the release that wrote it"


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export: the checkpoint's manifest, and the size in bytes of each file by name, config.json last."""

    manifest: CheckpointManifest
    files: dict[str, int]


def export_checkpoint(
    path: Path, target: Path, expert: int | None = None, on_read: OnRead = lambda _num_bytes: None
) -> Exported:
    """Verify the checkpoint in `path` and write its model to `target`, a folder that is missing or empty. In a run of experts
    `expert` selects one; with the trunk it is an ordinary decoder (averaging/arithmetic/expert_dense.py). `on_read` as in
    `verify_checkpoint`.

    Raises:
        ConfigError: there is no checkpoint, `target` cannot be used, or the model is of no family of this release.
        StorageError: the checkpoint does not verify, or writing failed; nothing is left in `target`.
    """
    target = target.absolute()
    _ensure_free(target)
    manifest = verify_checkpoint(path, on_read)
    if manifest.adapter is not None:
        raise ConfigError(
            f"checkpoint {path} has an adapter",
            "one of its two forms",
            "add --adapter for the adapter alone, or --merged for the whole model",
        )
    config, schema = _decoder(path, manifest)
    tokenizer = tokenizer_of(path, manifest, config)
    with reading():
        stored = StoredVector(path / parameters_name(manifest.unit), schema)
        tensors = {spec.name: stored.source(spec) for spec in schema.tensors}
        if manifest.experts is not None or expert is not None:
            config, dense = _dense(path, manifest, config, stored, expert)
            tensors = {name: source_of(tensor) for name, tensor in dense.items()}
    named = {layout_of(config).name(name): tensor for name, tensor in tensors.items()}
    return Exported(manifest, write_folder(target, named, origin_of(manifest), side_files(config, tokenizer)))


def origin_of(manifest: CheckpointManifest) -> dict[str, str]:
    """The metadata of exported weights."""
    return {
        "format": "pt",
        "potluck_run": manifest.run_name,
        "potluck_run_id": manifest.run_id,
        "potluck_round": str(manifest.index),
        "potluck_state_root": manifest.state_root,
    }


def _dense(
    path: Path, manifest: CheckpointManifest, config: ModelConfig, stored: StoredVector, expert: int | None
) -> tuple[LlamaConfig, dict[str, torch.Tensor]]:
    """An expert's own decoder. Only its tensors and the trunk's are in memory."""
    if manifest.experts is None:
        raise ConfigError(f"expert {expert} of checkpoint {path}, whose run has none", "none", "leave --expert out")
    if expert is None:
        most = manifest.experts.num_experts - 1
        raise ConfigError(f"checkpoint {path} has experts", "one of them", f"name it: --expert 0 to {most}")
    llama, own = require_llama(config), f".experts.{expert}."
    tensors = {
        spec.name: stored.tensor(spec)
        for spec in stored.schema.tensors
        if ".experts." not in spec.name or own in spec.name
    }
    return dense_config(llama, manifest.experts), dense_tensors(llama, manifest.experts, tensors, expert)


def _ensure_free(target: Path) -> None:
    remedy = "choose another folder"
    try:
        if any(target.iterdir()):
            raise ConfigError(f"{target} is not empty", "a new or an empty folder", remedy)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ConfigError(f"{target} is no folder", "a new or an empty folder", remedy) from error
    except OSError as error:
        raise StorageError(f"{target} cannot be read ({error.strerror})", "a readable folder", remedy) from error


def model_of(path: Path, manifest: CheckpointManifest) -> ModelConfig:
    """The model's configuration. Raises ConfigError if it is of no family of this release."""
    try:
        return parse_model(manifest.model)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        found = f"checkpoint {path} has another kind of model (model {place})"
        raise ConfigError(found, _OWN_TENSORS, _EXPORT_ELSEWHERE) from error


def _decoder(path: Path, manifest: CheckpointManifest) -> tuple[ModelConfig, TensorSchema]:
    """The model's configuration and tensor schema."""
    config = model_of(path, manifest)
    schema = model_schema(config, UnitName(manifest.unit))
    if manifest.experts is not None:
        schema = held_units(config, manifest.experts, range(manifest.experts.num_experts)).whole
    check_tensors(path, manifest, schema)
    return config, schema


def check_tensors(path: Path, manifest: CheckpointManifest, schema: TensorSchema) -> None:
    """Refuse a checkpoint whose tensors do not match its numbers. Raises ConfigError."""
    names = [(spec.name, spec.shape) for spec in schema.tensors]
    if names != [(tensor.name, tensor.shape) for tensor in manifest.tensors]:
        found = f"checkpoint {path} has other tensors than its model numbers say"
        raise ConfigError(found, _OWN_TENSORS, _EXPORT_ELSEWHERE)


def tokenizer_of(path: Path, manifest: CheckpointManifest, config: ModelConfig) -> ExportedTokenizer | None:
    """The run's tokenizer, with its chat template. None if tokens are bytes and the vocabulary is too small for all of them."""
    stored, file = manifest.tokenizer, path / TOKENIZER_NAME
    tokenizer = byte_tokenizer(config) if stored is None else file_tokenizer(_read(file), stored.end)
    if stored is not None and tokenizer is None:
        raise StorageError(f"{file} names no token {stored.end}", "the tokenizer of the checkpoint's run")
    if tokenizer is None or manifest.template is None:
        return tokenizer
    return replace(tokenizer, template=open_template(_read(path / TEMPLATE_NAME), str(path / TEMPLATE_NAME)))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror})", "a readable file") from error


def side_files(config: ModelConfig, tokenizer: ExportedTokenizer | None) -> dict[str, bytes]:
    """All files except the weights, config.json last."""
    files: dict[str, bytes] = {}
    if tokenizer is not None:
        files["generation_config.json"] = as_json(generation_config(config, tokenizer))
        files[TOKENIZER_NAME] = tokenizer.data
        files["tokenizer_config.json"] = as_json(tokenizer_config(config, tokenizer))
        if tokenizer.template is not None:
            files["chat_template.jinja"] = tokenizer.template.source.encode()
    return files | {CONFIG_NAME: as_json(layout_of(config).config_json(config, tokenizer.end if tokenizer else None))}


def as_json(values: dict[str, object]) -> bytes:
    """The text of a file."""
    return (json.dumps(values, indent=2) + "\n").encode()


def write_folder(
    target: Path,
    tensors: Mapping[str, TensorSource],
    origin: dict[str, str],
    files: dict[str, bytes],
    weights_name: str = WEIGHTS_NAME,
) -> dict[str, int]:
    """Write all files into a temporary folder inside `target`, which may be a mount point, then move each into place. Returns the size
    of each, the last of `files` last.

    Raises:
        StorageError: writing failed; nothing is left in `target`.
    """
    temporary = target / _TEMPORARY
    shards = weight_shards(tensors) if weights_name == WEIGHTS_NAME else {weights_name: tensors}
    if len(shards) > 1:
        files = {INDEX_NAME: as_json(weights_index(shards)), **files}
    names = [*shards, *files]
    with _taken_back_on_failure(target, names):
        temporary.mkdir()
        for name, part in shards.items():
            write_tensors(temporary / name, part, origin)
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        for name in names:
            sync_path(temporary / name)
        for name in names:
            (temporary / name).rename(target / name)
        temporary.rmdir()
        sync_path(target)
        return {name: (target / name).stat().st_size for name in names}


@contextmanager
def _taken_back_on_failure(target: Path, names: list[str]) -> Iterator[None]:
    """Make `target`. If the block fails or is interrupted, remove its files and the folders that were made for it."""
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    with ExitStack() as undo:
        for folder in reversed(made):
            undo.callback(_remove_if_empty, folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
            undo.callback(_remove_files, target, names)
            yield
        except OSError as error:
            cause = error.strerror or error
            raise StorageError(
                f"the export could not be written to {target} ({cause})",
                "a writable folder with enough space",
                "free some space or choose another folder; the checkpoint is untouched",
            ) from error
        undo.pop_all()


def _remove_files(target: Path, names: list[str]) -> None:
    shutil.rmtree(target / _TEMPORARY, ignore_errors=True)
    for name in names:
        with suppress(OSError):
            (target / name).unlink()


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def export_tensors(
    path: Path,
    manifest: CheckpointManifest,
    target: Path,
    tensors: Mapping[str, torch.Tensor],
    config_of: Callable[[int | None], dict[str, object]],
    origin: dict[str, str],
) -> Exported:
    """Write a model that was made from the verified checkpoint in `path`, with its run's tokenizer, as `export_checkpoint` does.

    Args:
        tensors: by their names in the layout.
        config_of: returns the content of config.json, given the token that ends a text.
        origin: metadata for the weights' file, in addition to run and round.

    Raises:
        ConfigError: `target` cannot be used.
        StorageError: writing failed; nothing is left in `target`.
    """
    target = target.absolute()
    _ensure_free(target)
    config = parse_model(manifest.model)
    tokenizer = tokenizer_of(path, manifest, config)
    sources = {name: source_of(tensor) for name, tensor in tensors.items()}
    files = side_files(config, tokenizer) | {CONFIG_NAME: as_json(config_of(tokenizer.end if tokenizer else None))}
    metadata = {"format": "pt", "potluck_run": manifest.run_name, "potluck_run_id": manifest.run_id}
    return Exported(
        manifest, write_folder(target, sources, metadata | {"potluck_round": str(manifest.index)} | origin, files)
    )


def ensure_free(target: Path) -> None:
    """Check before long work that `target` can be used. Raises as `export_tensors`."""
    _ensure_free(target.absolute())
