"""The host's own settings: where it keeps the run and on which addresses it listens.

Sources, the later winning: defaults, `host.toml` in the configuration folder, POTLUCK_HOST_* variables, flags.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import platformdirs
from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from averaging.host.host_names import HostName
from averaging.host.variables import check_variables
from protocol.errors import ConfigError

CONFIG_FILE: Final = platformdirs.user_config_path("potluck") / "host.toml"

Port = Annotated[int, Field(ge=0, le=65535)]


class HostConfig(BaseSettings):
    """Settings of one host daemon.

    Attributes:
        state_dir: keys, ledger, packed data and checkpoints of one run; one daemon at a time.
        listen_host: address on which peers reach the host; "127.0.0.1" keeps the run on this machine.
        announce_host: address or name to put into invites instead, for port forwarding and public names.
        grpc_port: TCP port of admission and reports, 0 for any free one (kept for later starts).
        p2p_port: TCP port of the bootstrap node that also serves the data, 0 for any free one (kept for later starts).
        http_host: address of the status page and metrics; only this machine by default.
        http_port: TCP port of the status page, 0 for any free one.
        public_http_host: address of the public view of the status page.
        public_http_port: TCP port of it, 0 for any free one; not served where none is given.
        invite_uses: how many peers the invite printed at the start admits.
        invite_hours: how long it is valid.
    """

    model_config = SettingsConfigDict(env_prefix="POTLUCK_HOST_", extra="forbid", frozen=True)

    state_dir: Path = Field(default_factory=lambda: platformdirs.user_state_path("potluck") / "host")
    listen_host: str = "0.0.0.0"
    announce_host: HostName = ""
    grpc_port: Port = 0
    p2p_port: Port = 0
    http_host: str = "127.0.0.1"
    http_port: Port = 0
    public_http_host: str = "0.0.0.0"
    public_http_port: Port | None = None
    invite_uses: Annotated[int, Field(ge=1, le=100_000)] = 100
    invite_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 24.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags over variables over the file; no .env and no secrets folder."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=CONFIG_FILE)


def load_host_config(flags: Mapping[str, object]) -> HostConfig:
    """Merge the sources; flags that are None were not given.

    Raises:
        ConfigError: a value that cannot work, naming the key, what was found and what was expected; a variable of ours that is
            no setting.
    """
    check_variables("POTLUCK_HOST_", HostConfig.model_fields, os.environ)
    build: Callable[..., HostConfig] = HostConfig
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return build(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        flag = f"--{key.replace('_', '-')}, " if key in flags else ""
        raise ConfigError(
            f"host setting {key} is {first['input']!r}",
            first["msg"].removeprefix("Input should be "),
            f"set it with {flag}POTLUCK_HOST_{key.upper()} or in {CONFIG_FILE}",
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{CONFIG_FILE} cannot be read: {error}", "valid TOML", "mend or remove it") from error
