"""Reads a Hugging Face checkpoint on this machine's disk as the initial values of a run, in the layout of its model family. Blocks.

config.json must match run.toml's [model]. The weights may be one safetensors file, or several with an index, as float32, bfloat16
or float16. Nothing in the folder is executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from averaging.data.tokenizer import Tokenizer
from averaging.models.family import layout_of
from averaging.storage.text_name import text_name
from coordinator.checkpoints.exported_tokenizer import byte_vocabulary, token_numbers
from coordinator.checkpoints.weight_shards import INDEX_NAME, WEIGHTS_NAME
from protocol.errors import ConfigError, StorageError
from protocol.plain_file import check_plain_file
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.tensor_schema import TensorSpec

if TYPE_CHECKING:
    import torch

CONFIG_NAME: Final = "config.json"
_TOKENIZER_NAME: Final = "tokenizer.json"
_MAX_JSON_BYTES: Final = 1 << 26
_HEAD: Final = "head.weight"
"""Of a model that is not tied."""

_VALUES_AT_ONCE: Final = 1 << 20
"""Values of a tensor that are in memory besides the model."""

_PARTS_AN_OPENING: Final = 8
"""Parts of so many values that are read before the file is closed."""

_DTYPES: Final = ("F32", "BF16", "F16")
_SAME_TOKENS: Final = "set data.tokenizer to the tokenizer.json of these weights"


def read_weights(folder: Path, config: ModelConfig) -> torch.Tensor:
    """(N,) float32: the weights in `folder`, in the order of the model's schema.

    Raises:
        ConfigError: there is no checkpoint, its numbers differ from `config`, or tensors are missing, surplus, double or of
            another kind.
        StorageError: a file cannot be read or is damaged.
    """
    return _read(folder, config, has_values=True).finished(folder)


def weights_in_order(folder: Path, config: ModelConfig) -> Iterator[torch.Tensor]:
    """The weights in `folder` in the order of the model's schema, some rows of a tensor at a time, in the checkpoint's own type. At no
    time is a whole tensor in memory. Raises as `read_weights`, while it is read.
    """
    taken = _read(folder, config, has_values=False)
    taken.check_whole(folder)
    yield from taken.in_order()


def check_checkpoint(folder: Path, config: ModelConfig) -> None:
    """Refuse a checkpoint in `folder` that does not fit `config`, as far as that is known without its weights. Raises as
    `read_weights`.
    """
    _read(folder, config, has_values=False).check_all(folder)


def read_config(folder: Path) -> dict[str, object]:
    """The contents of config.json in `folder`.

    Raises:
        ConfigError: it is not there, or no JSON object.
        StorageError: it cannot be read.
    """
    return _read_json(folder / CONFIG_NAME)


def _read(folder: Path, config: ModelConfig, *, has_values: bool) -> _Taken:
    layout_of(config).check_config_json(folder / CONFIG_NAME, read_config(folder), config)
    taken = _Taken(config, has_values=has_values)
    for file in _weight_files(folder):
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping, it only has such a method
                taken.take(file, name, opened)
    return taken


class _Slice(Protocol):
    """A tensor of an open file, whose values are not read yet."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...

    def __getitem__(self, rows: slice, /) -> torch.Tensor: ...


class _OpenedFile(Protocol):
    """An open safetensors file."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...


class _Taken:
    """The weights of a model, while they are taken from files one tensor at a time; without values, only their names and shapes."""

    def __init__(self, config: ModelConfig, *, has_values: bool) -> None:
        import torch

        self._config, self._layout, self._schema = config, layout_of(config), model_schema(config)
        self._wanted = {self._layout.name(spec.name): spec for spec in self._schema.tensors}
        self._flat_N = torch.empty(self._schema.num_elements if has_values else 0)
        self._places: dict[str, Path] = {}
        self._copies: dict[str, Path] = {}
        """Files of the tensors that must equal the embedding."""

    def take(self, file: Path, name: str, opened: _OpenedFile) -> None:
        """Take one tensor of an open file. Raises ConfigError as `read_weights`."""
        if name in self._places:
            raise ConfigError(f"{name} is in {self._places[name]} and in {file}", "each tensor once")
        self._places[name] = file
        if name not in self._wanted:
            if not self._layout.may_be_left_out(name, self._config):
                expected = f"the tensors of a model of family {self._config.family}"
                raise ConfigError(f"{file}: {name} has no place in the run's model", expected)
            is_copy = tuple(opened.get_slice(name).get_shape()) == self._schema.tensors[0].shape
            if is_copy:
                self._copies[name] = file
            return
        spec, part = self._wanted[name], opened.get_slice(name)
        if tuple(part.get_shape()) != spec.shape or part.get_dtype() not in _DTYPES:
            found = f"{file}: {name} is {part.get_dtype()} of shape {tuple(part.get_shape())}"
            raise ConfigError(found, f"one of {', '.join(_DTYPES)} of shape {spec.shape}")
        if not len(self._flat_N):
            return
        values = self._values(spec)
        for begin, rows in _by_rows(file, name):
            own = values[begin : begin + len(rows)]
            own.copy_(_finite(rows, file, name))

    def in_order(self) -> Iterator[torch.Tensor]:
        """All tensors in the schema's order, some rows at a time."""
        for spec in self._schema.tensors:
            name = self._layout.name(spec.name)
            for _, rows in _by_rows(self._places[name], name):
                yield _finite(rows, self._places[name], name)

    def _values(self, spec: TensorSpec) -> torch.Tensor:
        return self._flat_N[self._schema.offset(spec.name) :][: spec.num_elements].view(spec.shape)

    def check_all(self, folder: Path) -> None:
        """Refuse a checkpoint that lacks tensors. Raises ConfigError."""
        missing = set(self._wanted) - set(self._places)
        if missing == {self._layout.name(_HEAD)}:
            raise ConfigError(
                f"{folder} lacks {min(missing)}, and {CONFIG_NAME} does not tie it to the embedding",
                "a trained head, or the tie",
                f"if the embedding is the head, set tie_word_embeddings in {CONFIG_NAME} and model.is_tied to true",
            )
        if missing:
            raise ConfigError(f"{folder} lacks {min(missing)} ({len(missing)} tensors in all)", "a whole checkpoint")

    def finished(self, folder: Path) -> torch.Tensor:
        """(N,) float32: all weights. Raises ConfigError as `read_weights`."""
        self.check_whole(folder)
        return self._flat_N

    def check_whole(self, folder: Path) -> None:
        """As `check_all`, and refuse a tied head that differs from the embedding. Raises as `read_weights`."""
        self.check_all(folder)
        embedding = self._schema.tensors[0]
        for name, file in self._copies.items():
            if not self._is_embedding(file, name):
                raise ConfigError(
                    f"{folder}: {name} differs from {self._layout.name(embedding.name)}, and {CONFIG_NAME} ties them",
                    "one tensor",
                    f"if the head was trained, set tie_word_embeddings in {CONFIG_NAME} and model.is_tied to false",
                )

    def _is_embedding(self, file: Path, name: str) -> bool:
        import torch

        embedding = self._layout.name(self._schema.tensors[0].name)
        pairs = zip(_by_rows(file, name), _by_rows(self._places[embedding], embedding), strict=True)
        return all(torch.equal(own.float(), other.float()) for (_, own), (_, other) in pairs)


def _finite(rows: torch.Tensor, file: Path, name: str) -> torch.Tensor:
    import torch

    if not bool(torch.isfinite(rows).all()):
        raise ConfigError(f"{file}: {name} has values that are not finite", "numbers")
    return rows


def _by_rows(file: Path, name: str) -> Iterator[tuple[int, torch.Tensor]]:
    """Some rows of a tensor at a time, and the number of the first. The file is opened again and again: it is mapped, and all that was
    read of it stays in memory until it is closed.
    """
    begin, num_rows = 0, 1
    while begin < num_rows:
        with _opened(file) as opened:
            part = opened.get_slice(name)
            num_rows, *row = part.get_shape()
            each = max(1, _VALUES_AT_ONCE // prod(row))
            for _ in range(_PARTS_AN_OPENING):
                if begin < num_rows:
                    yield begin, part[begin : begin + each]
                begin += each


def check_tokenizer(folder: Path, config: ModelConfig, num_tokens: int) -> None:
    """Refuse a tokenizer of another size than the weights were trained on: that of the tokenizer in `folder`, or else the model's
    vocabulary.

    Raises:
        ConfigError: it has `num_tokens`, and that is another number.
        StorageError: the tokenizer in `folder` cannot be read.
    """
    theirs = tokens_beside(folder)
    place, expected = "model.vocab_size", config.vocab_size
    if theirs is not None:
        place, expected = str(folder / _TOKENIZER_NAME), max(theirs.values()) + 1
    if num_tokens != expected:
        raise ConfigError(
            f"the run's tokenizer has {num_tokens} tokens",
            f"{expected}, as {place} of run.start_from says",
            _SAME_TOKENS,
        )


def check_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer with other tokens than the one in `folder`, if there is one. Sizes alone may agree by chance.

    Raises:
        ConfigError: a token has another number, or is missing.
        StorageError: the tokenizer in `folder` cannot be read.
    """
    own = dict(token_numbers(tokenizer.file or byte_vocabulary()))
    for text, number in (tokens_beside(folder) or {}).items():
        if own.get(text) != number:
            found = f"token {own[text]}" if text in own else "no token"
            raise ConfigError(
                f"{text[:40]!r} is {found} of the run's tokenizer",
                f"{number}, as {folder / _TOKENIZER_NAME} of run.start_from says",
                _SAME_TOKENS,
            )


def tokens_beside(folder: Path) -> dict[str, int] | None:
    """The tokens of the tokenizer.json in `folder` and their numbers; None if there is no such file.

    Raises:
        ConfigError: it names no tokens.
        StorageError: it cannot be read.
    """
    file = folder / _TOKENIZER_NAME
    if not file.exists():
        return None
    tokens = dict(token_numbers(_read_small(file)))
    if not tokens:
        raise ConfigError(f"{file} names no tokens", "a tokenizer.json", "download the checkpoint again")
    return tokens


def _weight_files(folder: Path) -> list[Path]:
    index, single = folder / INDEX_NAME, folder / WEIGHTS_NAME
    if not index.exists():
        return [single]
    names = _read_json(index).get("weight_map")
    files = set(names.values()) if isinstance(names, dict) else set()
    plain = {name for name in files if isinstance(name, str) and name == Path(name).name}
    if not files or plain != files:
        raise ConfigError(f"{index} names no files, or some outside of its folder", "a weight_map of files beside it")
    paths = [folder / name for name in sorted(plain)]
    for path in paths:
        with _reading(path):
            path.stat()
    if single.exists() and paths != [single]:
        # transformers reads the single file
        raise ConfigError(
            f"{folder} has {single.name}, and {index.name} names others", "one of both", "remove the other"
        )
    return paths


def _read_json(file: Path) -> dict[str, object]:
    try:
        values = json.loads(_read_small(file))
    except (ValueError, RecursionError) as error:
        found = f"{file} is no JSON, or has a number that is too long"
        raise ConfigError(found, "a JSON object", "download the checkpoint again") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} is no JSON object", "a JSON object", "download the checkpoint again")
    return values


def _read_small(file: Path) -> bytes:
    with _reading(file):
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise ConfigError(f"{file} is larger than {_MAX_JSON_BYTES} bytes", "a small JSON file")
        return file.read_bytes()


@contextmanager
def _opened(file: Path) -> Iterator[_OpenedFile]:
    from safetensors import safe_open

    with _reading(file), text_name(file) as named, safe_open(named, framework="pt") as opened:
        yield opened


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    check_plain_file(file, "a file of a checkpoint", "mend run.start_from")
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        expected = f"a folder with {CONFIG_NAME} and {WEIGHTS_NAME}"
        raise ConfigError(f"{file} is not there", expected, "mend run.start_from") from error
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror or error})", "a readable file") from error
    except SafetensorError as error:
        raise StorageError(f"{file} is damaged ({error})", "a safetensors file", "download it again") from error
