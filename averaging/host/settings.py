"""Settings of a daemon: one field of a pydantic model each.

Everything about a setting follows from its field: the flag `--http-port` (averaging/host/flags.py), the environment variable
`POTLUCK_PEER_HTTP_PORT`, the key `http_port` in peer.toml, its line in a dry run, and its row in SETTINGS.md. The docstring below
the field is its help text; it also explains an empty default.

Sources, the later winning: the default, the file, the variable, the flag.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from averaging.network.seams.host_names import ANY_HOST, unfit_to_announce, unfit_to_listen
from averaging.notices.webhook import shown_url, unfit_url
from averaging.system.usual_folders import config_folder
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from protocol.estimates.dry_run import Setting

Port = Annotated[int, Field(ge=0, le=65535)]

_OF_A_SERVICE: Final = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")
"""Variables that Kubernetes sets in every container for a service called potluck-peer or potluck-host. They are no settings."""


def _check_announced(text: str) -> str:
    text = text.removesuffix(".") if text.strip(".") else text
    if expected := unfit_to_announce(text) if text else "":
        raise PydanticCustomError("host_name", "{expected}", {"expected": expected})
    return text


def _check_listening(text: str) -> str:
    if expected := unfit_to_listen(text) if text else "":
        raise PydanticCustomError("listen_host", "{expected}", {"expected": expected})
    return text or ANY_HOST


HostName = Annotated[str, AfterValidator(_check_announced)]
"""A name or address at which others reach this daemon; empty for none. A wrong one would mislead volunteers."""


def _check_notify_url(text: str) -> str:
    if expected := unfit_url(text) if text else "":
        raise PydanticCustomError("notify_url", "{expected}", {"expected": expected})
    return text


NotifyUrl = Annotated[str, AfterValidator(_check_notify_url), PlainSerializer(shown_url), Field(repr=False)]
"""A webhook for notices; empty for none. Its path is a secret, so settings are shown and kept with its scheme and host alone."""

ListenHost = Annotated[str, AfterValidator(_check_listening)]
"""An address of this machine, or a name of one, to listen on: "::" for all of IPv4 and IPv6, "0.0.0.0" for all of IPv4."""


def sources_of(daemon: str) -> SettingsConfigDict:
    """The variables that hold the settings of one daemon, "peer" or "host". Its file has the same name, see `file`."""
    return SettingsConfigDict(env_prefix=f"POTLUCK_{daemon.upper()}_")


class _SettingsFile(TomlConfigSettingsSource):
    """The file of settings. Some editors begin it with a byte order mark."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, object]:
        return tomllib.loads(file_path.read_bytes().decode("utf-8-sig"))


class DaemonSettings(BaseSettings):
    """The base of a daemon's settings. A subclass adds its fields and `model_config = sources_of(daemon)`.

    Attributes:
        panels: the settings that the help shows together, by the title of their panel, in order. Others come first, under "Options".
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}

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
        return init_settings, env_settings, _SettingsFile(settings_cls, cls.file())

    @classmethod
    def file(cls) -> Path | None:
        """The file in which the owner may write settings; it need not exist. None without a home folder."""
        folder = config_folder()
        return None if folder is None else folder / f"{cls.daemon()}.toml"

    @classmethod
    def daemon(cls) -> str:
        """The daemon that these are the settings of, as given to `sources_of`."""
        return cls.model_config["env_prefix"].removeprefix("POTLUCK_").removesuffix("_").lower()

    @classmethod
    def load(cls, flags: Mapping[str, object]) -> Self:
        """Merge the sources. `flags` are those that the command offers; None means not given.

        Raises:
            ConfigError: an invalid value, with its key, what was found and what was expected; or a variable with our prefix that is
                no setting.
        """
        file, prefix = cls.file(), cls.model_config["env_prefix"]
        check_variables(prefix, cls.model_fields, os.environ)
        build: Callable[..., Self] = cls
        try:
            return build(**{name: value for name, value in flags.items() if value is not None})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            flag = f"{flag_of(key)}, " if key in flags else ""
            found = (
                repr(first["input"]) if key != "notify_url" else "an address that does not fit"
            )  # it may be a secret
            raise ConfigError(
                f"{cls.daemon()} setting {key} is {found}",
                first["msg"].removeprefix("Input should be "),
                f"set it with {flag}{prefix}{key.upper()}" + ("" if file is None else f" or in {file}"),
            ) from error
        except (ValueError, OSError, RecursionError) as error:
            raise ConfigError(f"{file} cannot be read: {error}", "valid TOML", "mend or remove it") from error


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the fields of a model, each on one line, by the names of the fields.

    Pydantic can read them, too (`use_attribute_docstrings`), but at each import, which would slow down every command.
    """
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if "__annotations__" not in vars(kind) or kind.__module__.startswith("pydantic"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        texts[field.target.id] = " ".join(text.split())
    return texts


def flag_of(name: str) -> str:
    """The flag of a setting: "http_port" gives "--http-port"."""
    return f"--{name.replace('_', '-')}"


def check_variables(prefix: str, settings: Collection[str], names: Iterable[str]) -> None:
    """Refuse environment variables that begin with our `prefix`, as "POTLUCK_PEER_", and name no setting.

    A misspelt cap would otherwise be ignored silently.

    Raises:
        ConfigError: the first such variable, with the setting that may be meant.
    """
    for name in sorted(names):
        key = name.upper().removeprefix(prefix)
        if key == name.upper() or key.lower() in settings or _OF_A_SERVICE.fullmatch(key):
            continue
        meant = [f"{prefix}{close.upper()}" for close in get_close_matches(key.lower(), settings, n=1)]
        raise ConfigError(
            f"the environment variable {name[:80]} is no setting",
            meant[0] if meant else f"the name of a setting after {prefix}",
            "mend or unset it; --dry-run of `potluck join` and `potluck host` lists every setting",
        )


def settings_with_origins(config: DaemonSettings, flags: Mapping[str, object]) -> list[Setting]:
    """Every setting of `config` with its origin: a flag, a variable, the file, or "default".

    `config` was loaded with `flags`. The file is read once more.
    """
    from protocol.estimates.dry_run import Setting  # imports the whole manifest

    kind, file = type(config), config.file()
    in_variables = EnvSettingsSource(kind)()
    in_file = _SettingsFile(kind, file)()

    def origin(name: str) -> str:
        if flags.get(name) is not None:
            return f"flag {flag_of(name)}"
        if name in in_variables:
            return f"variable {kind.model_config['env_prefix']}{name.upper()}"
        return f"file {file}" if name in in_file else "default"

    values = config.model_dump(mode="json")
    return [Setting(name, origin(name), values[name]) for name in kind.model_fields]
