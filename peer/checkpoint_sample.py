"""What the model of a checkpoint writes: reads the folder's safetensors and model numbers, samples on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import StorageError
from protocol.ids import UnitName

PROMPT: Final = "def "
SAMPLE_BYTES: Final = 320
SAMPLE_SEED: Final = 0


class _Manifest(BaseModel):
    """What sampling needs of a checkpoint's manifest.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    unit: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    model: DecoderConfig


def sample_from_checkpoint(path: Path, *, prompt: str = PROMPT, num_bytes: int = SAMPLE_BYTES) -> str:
    """The prompt and what the checkpoint's model writes after it.

    Raises:
        StorageError: the folder is not a checkpoint of a built-in decoder.
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
    return sample_text(manifest.model, flat_N, prompt=prompt, num_bytes=num_bytes, seed=SAMPLE_SEED)
