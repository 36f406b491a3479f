"""The volunteer's own settings: what this machine offers and where it keeps things.

Sources, the later winning: defaults, `peer.toml` in the configuration folder, POTLUCK_PEER_* variables, flags.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

import platformdirs
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from averaging.host.host_names import HostName
from averaging.host.variables import check_variables
from peer.settings.hours_core import parse_hours
from protocol.errors import ConfigError
from protocol.host.expert_choice import parse_experts

CONFIG_FILE: Final = platformdirs.user_config_path("potluck") / "peer.toml"

Port = Annotated[int, Field(ge=0, le=65535)]
Ceiling = Annotated[int, Field(ge=0, le=120)]
"""Degrees Celsius, 0 for none: no chip survives hotter."""

Gigabytes = Annotated[float, Field(gt=0.0, le=1e6)]
"""Of 1e9 bytes; a limit of nothing would be no limit that anything can keep."""


class PeerConfig(BaseSettings):
    """Settings of one peer daemon.

    Attributes:
        state_dir: identity, credential, durable rounds and cached data; one daemon at a time.
        expert: numbers of the experts to hold in a run of experts, as "0" or "0,1"; empty for those that the run lacks most.
        listen_host: address on which other peers reach us; "127.0.0.1" keeps the peer on this machine.
        listen_port: TCP port of the peer-to-peer transport, 0 for any free one.
        bulk_port: TCP port on which weights and data come straight from other peers, 0 for any free one; left out the one after
            `listen_port`, or any free one where that is 0 or the next is taken.
        announce_host: address to tell others instead of `listen_host`, for port forwarding.
        no_listen: take no inbound connections: contribute fully, reduce nothing.
        http_host: address of the status page and metrics; only this machine by default.
        http_port: 0 for any free port, printed at the start.
        device: where training runs; "auto" takes cuda, then mps, then cpu.
        num_threads: CPU threads of the training process, 0 for torch's own choice.
        slowdown: train at this fraction of full speed, as a divisor: 3 trains at a third.
        weekly_hours: when training is welcome, as "mon-fri 22:00-07:00, sat-sun 00:00-24:00"; empty for always.
        time_zone: in which those hours are meant, as "Europe/Paris"; empty for this machine's own.
        only_when_idle: train only when nobody has used the machine for `idle_after_s`; not at all where that cannot be known.
        duty_percent: train in this share of the time, beside `slowdown`: 25 trains a quarter of it.
        train_on_battery: train also while the machine runs on its battery.
        max_gpu_celsius: no training at and above this temperature of the first NVIDIA card until it is cooler, 0 for no ceiling.
        max_cpu_celsius: the same of the processor.
        upload_bytes_per_s: cap on bulk upload, 0 for the measured share of the link.
        download_bytes_per_s: cap on bulk download, 0 for none.
        daily_quota_gb: gigabytes (1e9 bytes) to send and receive in a day, 0 for any; after them only control messages until midnight.
        max_gpu_memory_gb: gigabytes that training may take of the card, None for all of it; the driver's own few hundred megabytes
            come on top. A model that does not fit is not trained.
        max_memory_gb: gigabytes of memory that daemon, transport and training process may hold together, None for any; nothing is
            trained above it until they hold less than nine tenths.
        cache_bytes: most that cached data shards may take on disk.
        screen: "live" redraws one screen, "plain" prints lines, "auto" decides by whether the output is a terminal.
    """

    model_config = SettingsConfigDict(env_prefix="POTLUCK_PEER_", extra="forbid", frozen=True)

    state_dir: Path = Field(default_factory=lambda: platformdirs.user_state_path("potluck") / "peer")
    listen_host: str = "0.0.0.0"
    listen_port: Port = 0
    bulk_port: Port | None = None
    announce_host: HostName = ""
    no_listen: bool = False
    http_host: str = "127.0.0.1"
    http_port: Port = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    num_threads: Annotated[int, Field(ge=0, le=1024)] = 0
    slowdown: Annotated[float, Field(ge=1.0, le=1000.0)] = 1.0
    expert: str = ""
    weekly_hours: str = ""
    time_zone: str = ""
    only_when_idle: bool = False
    idle_after_s: Annotated[float, Field(ge=1.0, le=86_400.0)] = 300.0
    duty_percent: Annotated[float, Field(ge=1.0, le=100.0)] = 100.0
    train_on_battery: bool = False
    max_gpu_celsius: Ceiling = 0
    max_cpu_celsius: Ceiling = 0
    upload_bytes_per_s: Annotated[int, Field(ge=0)] = 0
    download_bytes_per_s: Annotated[int, Field(ge=0)] = 0
    daily_quota_gb: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    max_gpu_memory_gb: Gigabytes | None = None
    max_memory_gb: Gigabytes | None = None
    cache_bytes: Annotated[int, Field(ge=1 << 20)] = 2 << 30
    screen: Literal["auto", "live", "plain"] = "auto"

    @field_validator("weekly_hours")
    @classmethod
    def _check_hours(cls, text: str) -> str:
        if text:
            parse_hours(text)
        return text

    @field_validator("expert")
    @classmethod
    def _check_experts(cls, text: str) -> str:
        if text:
            parse_experts(text)
        return text

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, name: str) -> str:
        if name:
            zone_of(name)
        return name

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


def zone_of(name: str) -> ZoneInfo | None:
    """The time zone of that name, None for this machine's own.

    Raises:
        ConfigError: this machine knows none of that name.
    """
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError) as error:  # unknown, a path, a folder of zones
        raise ConfigError(
            f"peer setting time_zone is {name[:60]!r}",
            'a zone that this machine knows, as "Europe/Paris"',
            f"set it with POTLUCK_PEER_TIME_ZONE or in {CONFIG_FILE}",
        ) from error


def whole_bytes(gigabytes: float | None) -> int:
    """Whole bytes of a limit, at least 1, so that the smallest is still one; 0 where none is set."""
    return 0 if gigabytes is None else max(1, round(gigabytes * 1e9))


def load_peer_config(flags: Mapping[str, object]) -> PeerConfig:
    """Merge the sources; flags that are None were not given.

    Raises:
        ConfigError: a value that cannot work, naming the key, what was found and what was expected; a variable of ours that is
            no setting.
    """
    check_variables("POTLUCK_PEER_", PeerConfig.model_fields, os.environ)
    build: Callable[..., PeerConfig] = PeerConfig
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return build(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        flag = f"--{key.replace('_', '-')}, " if key in flags else ""
        raise ConfigError(
            f"peer setting {key} is {first['input']!r}",
            first["msg"].removeprefix("Input should be "),
            f"set it with {flag}POTLUCK_PEER_{key.upper()} or in {CONFIG_FILE}",
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{CONFIG_FILE} cannot be read: {error}", "valid TOML", "mend or remove it") from error
