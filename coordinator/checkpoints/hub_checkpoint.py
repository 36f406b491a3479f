"""Downloads a checkpoint from the Hugging Face Hub into a folder. Only safetensors and JSON files are fetched. Blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from averaging.data.sources.texts import not_installed
from protocol.errors import ConfigError, MachineError, UnreachableError

_CONFIG: Final = ["config.json"]
_ALL: Final = [
    *_CONFIG,
    "*.safetensors",
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
]


def fetch_checkpoint(name: str, folder: Path, check: Callable[[Path], object]) -> None:
    """Download a checkpoint, or what is missing of it. The library shows the progress.

    Args:
        name: "OWNER/NAME".
        folder: to write to.
        check: is called with the folder once config.json is there, and raises if the weights are not worth fetching.

    Raises:
        ConfigError: there is no such checkpoint, or not for everybody; or what `check` raises.
        MachineError: huggingface_hub is not installed, or the files cannot be written.
        UnreachableError: the Hub does not answer.
    """
    _fetch(name, folder, _CONFIG)
    check(folder)
    _fetch(name, folder, _ALL)


def _fetch(name: str, folder: Path, patterns: list[str]) -> None:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise not_installed("huggingface_hub", "checkpoints of the Hugging Face Hub") from error
    try:
        # only files at the top: many repositories have other formats below
        snapshot_download(name, local_dir=folder, allow_patterns=patterns, ignore_patterns=["*/*"])
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{name} is not on the Hugging Face Hub, or not for everybody",
            "OWNER/NAME of one that you may read",
            _line(error),
        ) from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{name} is no name on the Hugging Face Hub", "OWNER/NAME", _line(error)) from error
    except (ConnectionError, TimeoutError, errors.LocalEntryNotFoundError, errors.HfHubHTTPError) as error:
        raise UnreachableError(
            f"{name}: {_line(error)}", "the Hugging Face Hub", "look at the network, or name a folder on this machine"
        ) from error
    except OSError as error:
        raise MachineError(
            f"{name} cannot be fetched ({_line(error)})", "room and a writable folder", "mend it"
        ) from error


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
