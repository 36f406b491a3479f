"""What `potluck demo` was asked for, checked before it begins: three minutes later would be too late."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from protocol.errors import ConfigError, StorageError
from protocol.run.experts_section import Shards

MAX_TOKENS: Final = 1 << 53
"""As a run.toml allows."""

MAX_LIMIT_S: Final = 7 * 86400.0
"""Nobody waits a week for a demo."""

_REMEDY: Final = "see: potluck demo --help"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the demo was asked for.

    Attributes:
        directory: keeps everything; None for a temporary folder that is removed at the end.
        json_file: where the summary for machines goes, None for nowhere.
        plot_file: where the loss curve goes (PNG).
        total_tokens: at which the run ends.
        limit_s: after which the demo gives up.
        shards: what the peers hold: "data", all of the model; "expert", the trunk and one of two experts;
            "pipeline", one of three stages.
    """

    directory: Path | None
    json_file: Path | None
    plot_file: Path
    total_tokens: int
    limit_s: float
    shards: str = "data"

    def check(self) -> None:
        """Look whether it can begin and whether what it makes can be kept; writes nothing.

        Raises:
            ConfigError: a number or a folder that cannot work.
            StorageError: a file that could not be written at the end.
        """
        if not 1 <= self.total_tokens <= MAX_TOKENS:
            raise ConfigError(f"tokens is {self.total_tokens}", f"1 to {MAX_TOKENS}", _REMEDY)
        # Written so that NaN is refused too.
        if not 0 < self.limit_s <= MAX_LIMIT_S:
            raise ConfigError(f"limit-s is {self.limit_s:g}", f"seconds, more than 0, at most {MAX_LIMIT_S:g}", _REMEDY)
        if self.shards not in get_args(Shards):
            raise ConfigError(f"shards is {self.shards!r}", " or ".join(get_args(Shards)), _REMEDY)
        if self.directory is not None:
            _check_directory(self.directory)
        _check_file(self.plot_file, "--plot")
        if self.json_file is not None:
            _check_file(self.json_file, "--json")


def _check_directory(directory: Path) -> None:
    try:
        is_used = directory.exists() and any(directory.iterdir())
    except OSError as error:
        raise ConfigError(f"{directory} cannot be used ({error.strerror})", "a new or empty folder", _REMEDY) from error
    if is_used:
        raise ConfigError(f"{directory} is not empty", "a new or empty folder", "give another with --dir")


def _check_file(path: Path, flag: str) -> None:
    folder = path.parent
    try:
        is_good = folder.is_dir() and not path.is_dir() and os.access(path if path.exists() else folder, os.W_OK)
    except OSError:  # a name that no file can have
        is_good = False
    if not is_good:
        raise StorageError(f"{path} cannot be written", "a file in a folder that is there", f"give another with {flag}")
