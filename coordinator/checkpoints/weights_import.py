"""Reads a Hugging Face checkpoint on this machine's disk as the initial values of a run, in the layout of its model family. Blocks.

config.json must match run.toml's [model]. The weights may be one safetensors file, or several with an index, as float32, bfloat16
or float16. Nothing in the folder is executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.models.family import layout_of
from coordinator.checkpoints.exported_tokenizer import token_numbers
from protocol.errors import ConfigError, StorageError
from protocol.plain_file import check_plain_file
from protocol.tensors.model_config import ModelConfig, model_schema

if TYPE_CHECKING:
    import torch

_WEIGHTS_NAME: Final = "model.safetensors"
_INDEX_NAME: Final = "model.safetensors.index.json"
_CONFIG_NAME: Final = "config.json"
_TOKENIZER_NAME: Final = "tokenizer.json"
_MAX_JSON_BYTES: Final = 1 << 26
_DTYPES: Final = ("F32", "BF16", "F16")


def read_weights(folder: Path, config: ModelConfig) -> torch.Tensor:
    """(N,) float32: the weights in `folder`, in the order of the model's schema.

    Raises:
        ConfigError: there is no checkpoint, its numbers differ from `config`, or tensors are missing, surplus or of another kind.
        StorageError: a file cannot be read or is damaged.
    """
    import torch
    from safetensors import safe_open

    layout, config_file = layout_of(config), folder / _CONFIG_NAME
    layout.check_config_json(config_file, _read_json(config_file), config)
    schema = model_schema(config)
    wanted = {layout.name(spec.name): spec for spec in schema.tensors}
    flat_N = torch.empty(schema.num_elements)
    missing = set(wanted)
    for file in _weight_files(folder):
        with _reading(file), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping, it only has such a method
                if name not in wanted:
                    if not layout.may_be_left_out(name, config):
                        expected = f"the tensors of a model of family {config.family}"
                        raise ConfigError(f"{file}: {name} has no place in the run's model", expected)
                    continue
                spec, part = wanted[name], opened.get_slice(name)
                if tuple(part.get_shape()) != spec.shape or part.get_dtype() not in _DTYPES:
                    found = f"{file}: {name} is {part.get_dtype()} of shape {tuple(part.get_shape())}"
                    raise ConfigError(found, f"one of {', '.join(_DTYPES)} of shape {spec.shape}")
                values = flat_N[schema.offset(spec.name) :][: spec.num_elements]
                values.copy_(opened.get_tensor(name).reshape(-1))
                if not bool(torch.isfinite(values).all()):
                    raise ConfigError(f"{file}: {name} has values that are not finite", "numbers")
                missing.discard(name)
    if missing:
        raise ConfigError(f"{folder} lacks {min(missing)} ({len(missing)} tensors in all)", "a whole checkpoint")
    return flat_N


def check_tokenizer(folder: Path, config: ModelConfig, num_tokens: int) -> None:
    """Refuse a tokenizer other than the weights were trained on: its size must equal that of the tokenizer in `folder`, or else the
    model's vocabulary.

    Raises:
        ConfigError: it has `num_tokens`, and that is another number.
        StorageError: the tokenizer in `folder` cannot be read.
    """
    file, place, expected = folder / _TOKENIZER_NAME, "model.vocab_size", config.vocab_size
    if file.exists():
        place, expected = str(file), max((number for _, number in token_numbers(_read_small(file))), default=-1) + 1
        if not expected:
            raise ConfigError(f"{file} names no tokens", "a tokenizer.json", "download the checkpoint again")
    if num_tokens != expected:
        raise ConfigError(
            f"the run's tokenizer has {num_tokens} tokens",
            f"{expected}, as {place} of run.start_from says",
            "set data.tokenizer to the tokenizer.json of these weights",
        )


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX_NAME
    if not index.exists():
        return [folder / _WEIGHTS_NAME]
    names = _read_json(index).get("weight_map")
    files = set(names.values()) if isinstance(names, dict) else set()
    plain = {name for name in files if isinstance(name, str) and name == Path(name).name}
    if not files or plain != files:
        raise ConfigError(f"{index} names no files, or some outside of its folder", "a weight_map of files beside it")
    return [folder / name for name in sorted(plain)]


def _read_json(file: Path) -> dict[str, object]:
    try:
        values = json.loads(_read_small(file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON", "a JSON object", "download the checkpoint again") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} is no JSON object", "a JSON object", "download the checkpoint again")
    return values


def _read_small(file: Path) -> bytes:
    with _reading(file):
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise ConfigError(f"{file} is larger than {_MAX_JSON_BYTES} bytes", "a small JSON file")
        return file.read_bytes()


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    check_plain_file(file, "a file of a checkpoint", "mend run.start_from")
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        expected = f"a folder with {_CONFIG_NAME} and {_WEIGHTS_NAME}"
        raise ConfigError(f"{file} is not there", expected, "mend run.start_from") from error
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror or error})", "a readable file") from error
    except SafetensorError as error:
        raise StorageError(f"{file} is damaged ({error})", "a safetensors file", "download it again") from error
