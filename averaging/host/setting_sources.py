"""Where each setting of a daemon comes from: a flag, a variable, its file, or nowhere, which is the default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic_settings import BaseSettings, EnvSettingsSource, TomlConfigSettingsSource

from protocol.estimates.dry_run import Setting


def settings_with_origins(config: BaseSettings, flags: Mapping[str, object], file: Path) -> list[Setting]:
    """Every setting of `config`, which was loaded from these sources already; flags that are None were not given. Reads the file.

    The sources are those that loaded it, asked one by one: the first that knows a setting is where it comes from.
    """
    kind = type(config)
    prefix = kind.model_config.get("env_prefix", "")
    in_variables = EnvSettingsSource(kind)()
    in_file = TomlConfigSettingsSource(kind, toml_file=file)()

    def origin(name: str) -> str:
        if flags.get(name) is not None:
            return f"flag --{name.replace('_', '-')}"
        if name in in_variables:
            return f"variable {prefix}{name.upper()}"
        return f"file {file}" if name in in_file else "default"

    values = config.model_dump(mode="json")
    return [Setting(name, origin(name), values[name]) for name in kind.model_fields]
