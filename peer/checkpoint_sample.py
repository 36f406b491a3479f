"""What the model of a checkpoint writes: reads the folder's safetensors and model numbers, samples on the CPU."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from peer.sampling import Sampling
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import ConfigError, MachineError, StorageError
from protocol.ids import UnitName

if TYPE_CHECKING:
    import torch

PROMPT: Final = "def "
SAMPLE_BYTES: Final = 320
_MANIFEST_NAME: Final = "manifest.json"


class _StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    sha256: str


class _Manifest(BaseModel):
    """What sampling needs of a checkpoint's manifest.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_name: str
    index: int
    unit: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    parameters: _StoredFile
    model: DecoderConfig


@dataclass(frozen=True, slots=True)
class CheckpointModel:
    """A checkpoint's model: its run, round and numbers, and its (N,) float32 parameters in schema order."""

    run_name: str
    index: int
    config: DecoderConfig
    flat_N: torch.Tensor


def read_model(path: Path) -> CheckpointModel:
    """The model of the checkpoint in folder `path`, its manifest's checksum and its weights' hash checked.

    Raises:
        ConfigError: there is no checkpoint.
        StorageError: it is damaged, or of another kind of model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        data = (path / _MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        remedy = "see: potluck checkpoint list"
        raise ConfigError(f"no checkpoint at {path}", f"a folder with {_MANIFEST_NAME}", remedy) from error
    except OSError as error:
        raise _unreadable(path, f"{_MANIFEST_NAME}: {error.strerror}") from error
    manifest = _open_manifest(path, data)
    file = path / f"{manifest.unit}.safetensors"
    try:
        with file.open("rb") as opened:
            if file_digest(opened, "sha256").hexdigest() != manifest.parameters.sha256:
                raise _unreadable(path, f"{file.name} has another SHA-256 than {_MANIFEST_NAME} says")
        flat_N = _flat(load_file(file), manifest)
    except (OSError, SafetensorError, KeyError) as error:
        raise _unreadable(path, f"{file.name}: {error}") from error
    return CheckpointModel(manifest.run_name, manifest.index, manifest.model, flat_N)


def _open_manifest(path: Path, data: bytes) -> _Manifest:
    try:
        manifest = _Manifest.model_validate_json(data)
        values = from_json(data)
    except (ValidationError, ValueError) as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else ""
        raise _unreadable(path, f"{_MANIFEST_NAME} is damaged at {place or 'its JSON'}") from error
    checksum = values.pop("checksum", None)
    if sha256(to_json(values)).hexdigest() != checksum:
        raise _unreadable(path, f"{_MANIFEST_NAME} has another checksum than it says")
    return manifest


def _flat(tensors: dict[str, torch.Tensor], manifest: _Manifest) -> torch.Tensor:
    import torch

    schema = decoder_schema(manifest.model, UnitName(manifest.unit))
    return torch.cat([tensors[spec.name].reshape(-1) for spec in schema.tensors])


def _unreadable(path: Path, what: str) -> StorageError:
    return StorageError(
        f"{path} cannot be read as a checkpoint: {what}", "what was written", "use another: potluck checkpoint list"
    )


def sample_from_checkpoint(path: Path, *, prompt: str = PROMPT, num_bytes: int = SAMPLE_BYTES) -> str:
    """The prompt and what the checkpoint's model writes after it. Raises as `read_model`."""
    from peer.generate import sample_text

    model = read_model(path)
    return sample_text(model.config, model.flat_N, prompt=prompt, sampling=Sampling(num_bytes))


def print_text(path: Path, prompt: str, sampling: Sampling) -> None:
    """Print the prompt and, byte by byte as it is sampled, what the checkpoint's model writes after it.

    Raises:
        ConfigError: there is no checkpoint, or its model writes no text.
        StorageError: the checkpoint is damaged.
        MachineError: standard output takes no more.
    """
    from peer.generate import decoded, prompt_bytes, sample_bytes

    model = read_model(path)
    begin = prompt_bytes(prompt)
    sampled = sample_bytes(model.config, model.flat_N, prompt=begin, sampling=sampling)
    shown = decoded(_after(begin, sampled))
    _print_pieces(map(_without_controls, shown) if sys.stdout.isatty() else shown)


def text_json(path: Path, prompt: str, sampling: Sampling) -> str:
    """The same as one JSON object; `text` is what comes after the prompt, `ended` whether the model ended it. Raises as
    `print_text`.
    """
    from peer.generate import decoded, prompt_bytes, sample_bytes

    model = read_model(path)
    begin = prompt_bytes(prompt)
    sampled = list(sample_bytes(model.config, model.flat_N, prompt=begin, sampling=sampling))
    found: dict[str, object] = {
        "checkpoint": str(path),
        "run": model.run_name,
        "round": model.index,
        "prompt": begin.decode("utf8", "replace"),
        "text": "".join(decoded(iter(sampled))),
        "ended": len(sampled) < sampling.num_tokens,
        "num_sampled": len(sampled),
    }
    return json.dumps(found | asdict(sampling))


def _after(begin: bytes, sampled: Iterator[bytes]) -> Iterator[bytes]:
    # The first sample before the prompt is shown: what cannot be sampled from prints nothing but its error.
    first = next(sampled, b"")
    yield begin
    yield first
    yield from sampled


def _without_controls(text: str) -> str:
    """A model may have learned, or been made, to write escape sequences: a terminal shall not obey them."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _print_pieces(pieces: Iterator[str]) -> None:
    for piece in pieces:
        if not _print(piece):
            return
    _print("\n")


def _print(text: str) -> bool:
    """Whether there is still somebody who reads: `potluck generate | head` has heard enough at some point."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Else Python would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as error:
        raise MachineError(f"standard output takes no more ({error.strerror})", "a place for the text") from error
    return True
