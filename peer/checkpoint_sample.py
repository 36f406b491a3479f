"""What the model of a checkpoint writes: reads the folder's safetensors and model numbers, samples on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import ConfigError, StorageError
from protocol.ids import UnitName

if TYPE_CHECKING:
    from peer.generate import TextTokenizer

TOKENIZER_NAME: Final = "tokenizer.json"
PROMPT: Final = "def "
SAMPLE_TOKENS: Final = 320
SAMPLE_SEED: Final = 0


class _TokenizerFile(BaseModel):
    """The file is the checkpoint's own: its hash is not looked at, as that of the tensors is not."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    end: int


class _Manifest(BaseModel):
    """What sampling needs of a checkpoint's manifest.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    unit: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    model: DecoderConfig
    tokenizer: _TokenizerFile | None = None


def sample_from_checkpoint(path: Path, *, prompt: str = PROMPT, num_tokens: int = SAMPLE_TOKENS) -> str:
    """The prompt and what the checkpoint's model writes after it.

    Raises:
        StorageError: the folder is not a checkpoint of a built-in decoder.
        MachineError: the run has a tokenizer file, and tokenizers is not installed.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from peer.generate import sample_text

    try:
        manifest = _Manifest.model_validate_json((path / "manifest.json").read_bytes())
        tensors = load_file(path / f"{manifest.unit}.safetensors")
        schema = decoder_schema(manifest.model, UnitName(manifest.unit))
        flat_N = torch.cat([tensors[spec.name].reshape(-1) for spec in schema.tensors])
    except (OSError, ValidationError, SafetensorError, KeyError) as error:
        raise StorageError(
            f"{path} cannot be read as a checkpoint: {error}", "a folder that `potluck checkpoint list` names"
        ) from error
    tokenizer = _tokenizer(path, manifest.tokenizer)
    seed = SAMPLE_SEED
    return sample_text(manifest.model, flat_N, prompt=prompt, num_tokens=num_tokens, seed=seed, tokenizer=tokenizer)


def _tokenizer(path: Path, stored: _TokenizerFile | None) -> TextTokenizer:
    from averaging.data.tokenizer import ByteTokenizer
    from averaging.data.vocabulary import FileTokenizer

    if stored is None:
        return ByteTokenizer()
    file = path / TOKENIZER_NAME
    try:
        return FileTokenizer(file.read_bytes(), str(file), stored.end)
    except (OSError, ConfigError) as error:
        raise StorageError(f"{file} cannot be read: {error}", "the tokenizer of the checkpoint's run") from error
