"""The run.toml of a run that begins with a checkpoint, from the numbers of its config.json. Reads a folder; blocks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from averaging.models.family import family_of
from coordinator.checkpoints.exported_tokenizer import byte_vocabulary, token_numbers
from coordinator.checkpoints.hub_checkpoint import fetch_checkpoint
from coordinator.checkpoints.weights_import import CONFIG_NAME, check_checkpoint, read_config, tokens_beside
from protocol.errors import ConfigError
from protocol.run.data_section import HUB_PREFIX
from protocol.run.default_run import checkpoint_toml
from protocol.run.validation_text import explained
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.model_families import DEFAULT_FAMILY, FAMILY_KEY, config_class, parse_model

MOST_CONTEXT_TOKENS: Final = 2048
"""Tokens of a training sequence in the file; of fewer where the model reads fewer."""

_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")


def run_toml_from(source: str, run_file: Path) -> str:
    """The content of `run_file`.

    Args:
        source: a folder with a checkpoint in the Hugging Face layout; or "OWNER/NAME" on the Hub, which is downloaded into a folder
            NAME beside the file.

    Raises:
        ConfigError: there is no such checkpoint, or it is of a model that this release does not train.
        StorageError: a file is damaged or cannot be read.
        MachineError, UnreachableError: as `fetch_checkpoint`.
    """
    folder, name = Path(source), source.removeprefix(HUB_PREFIX)
    if not folder.is_dir():
        if not _HUB_NAME.fullmatch(name):
            raise ConfigError(
                f"--from {source} is no folder", f"a folder with {CONFIG_NAME}, or OWNER/NAME on the Hugging Face Hub"
            )
        folder = run_file.parent / name.partition("/")[2]
        fetch_checkpoint(name, folder, model_values)
    values = model_values(folder)
    check_checkpoint(folder, _parsed(folder, values))
    place = os.path.relpath(folder, run_file.parent)
    return checkpoint_toml(_written(values), place, _tokenizer(folder, place, int(str(values["vocab_size"]))))


def model_values(folder: Path) -> dict[str, object]:
    """All keys of [model] for the checkpoint in `folder`, by its config.json alone.

    Raises:
        ConfigError: no config.json, or of a model that this release does not train.
        StorageError: it cannot be read.
    """
    file, found = folder / CONFIG_NAME, read_config(folder)
    family, layout = family_of(file, found)
    values = layout.model_values(file, found)
    most = values["max_position_tokens"]
    tokens = min(most, MOST_CONTEXT_TOKENS) if isinstance(most, int) else MOST_CONTEXT_TOKENS
    made = {FAMILY_KEY: family, **values, "context_tokens": tokens}
    _parsed(folder, made)
    return made


def _parsed(folder: Path, values: dict[str, object]) -> ModelConfig:
    try:
        return parse_model(values)
    except ValidationError as error:
        found, expected, _ = explained(str(folder / CONFIG_NAME), error)
        raise ConfigError(
            found, expected or "a model that this release trains", "start from another checkpoint"
        ) from error


def _written(values: dict[str, object]) -> dict[str, object]:
    """The keys that must be in the file, in the order of SETTINGS.md."""
    fields = config_class(str(values[FAMILY_KEY])).model_fields
    given = {key: values[key] for key in fields if key in values and values[key] != fields[key].default}
    if values[FAMILY_KEY] == DEFAULT_FAMILY:
        given.pop(FAMILY_KEY, None)
    if given["head_dim"] == int(str(given["dim"])) / int(str(given["num_heads"])):
        del given["head_dim"]
    if given.get("max_position_tokens") == given["context_tokens"]:
        del given["max_position_tokens"]
    return {key: given[key] for key in sorted(given, key=lambda key: key != FAMILY_KEY)}


def _tokenizer(folder: Path, place: str, vocab_size: int) -> str:
    found, own = tokens_beside(folder), dict(token_numbers(byte_vocabulary()))
    if found == own or (found is None and vocab_size == len(own)):
        return "bytes"
    if found is None:
        raise ConfigError(
            f"{folder} has no tokenizer.json",
            "the tokenizer of its weights",
            "save it with AutoTokenizer of transformers",
        )
    return os.path.join(place, "tokenizer.json")
