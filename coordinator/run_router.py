"""The router file that a host names in run.toml: looked at before anything is packed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from averaging.data.document_router import router_from_bytes, router_root
from protocol.errors import ConfigError
from protocol.manifest import RunConfig
from protocol.plain_file import check_plain_file

_REMEDY: Final = "correct experts.router in run.toml, or leave it out"


def check_router(config: RunConfig, base: Path) -> None:
    """Refuse a router file that is not there or not of this run, as seen from the folder `base`. Blocks.

    Raises:
        ConfigError: no such file, or not one of so many experts.
    """
    if config.experts is None or not config.experts.router:
        return
    path = base / config.experts.router
    check_plain_file(path, "a router file", _REMEDY)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "a router file", _REMEDY) from error
    try:
        router_from_bytes(data, router_root(data), config.experts.num_experts)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.found}", error.expected, _REMEDY) from error
