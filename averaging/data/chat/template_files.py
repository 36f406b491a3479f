"""Finds a run's chat template: the file that run.toml names, or the one that comes with the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from averaging.data.chat.template_process import ChatTemplate
from averaging.data.tokenizer_folder.companion_files import CONFIG_NAME, MAP_NAME, map_counts
from protocol.errors import ConfigError, MachineError
from protocol.plain_file import check_plain_file
from protocol.run.data_section import DataSection

_TEMPLATE: Final = "chat_template.jinja"
_KEY: Final = "chat_template"

_DEFAULT: Final = "default"
"""The template of several that is meant for conversations without tools."""

MOST_TEMPLATE_BYTES: Final = 1 << 20
_MOST_CONFIG_BYTES: Final = 1 << 26

_REMEDY: Final = "name a file with a template in data.chat_template"


def find_template(data: DataSection, base: Path) -> ChatTemplate:
    """The template of a section whose rows are chats. Files are relative to `base`. Blocks.

    Raises:
        ConfigError: there is none, or a file of another kind.
        MachineError: a file cannot be read.
    """
    folder = (base / data.tokenizer).parent if data.tokenizer.endswith(".json") else None
    config = {} if folder is None else _object(folder / CONFIG_NAME)
    named = _object(folder / MAP_NAME) if folder is not None and map_counts(config) else {}
    variables = _special_tokens({**config, **named})
    if data.chat_template:
        path = base / data.chat_template
        return ChatTemplate(_text(path, MOST_TEMPLATE_BYTES), str(path), variables)
    if folder is not None and (folder / _TEMPLATE).exists():
        path = folder / _TEMPLATE
        return ChatTemplate(_text(path, MOST_TEMPLATE_BYTES), str(path), variables)
    source = _named(config.get(_KEY))
    if folder is None or source is None:
        found = f'data.format = "chat" with tokenizer = "{data.tokenizer}"'
        raise ConfigError(f"{found}, which has no chat template", "a template of chats", _REMEDY)
    return ChatTemplate(source, str(folder / CONFIG_NAME), variables)


def _named(value: object) -> str | None:
    """The template of a configuration that has one, or several by name."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
    found = named.get(_DEFAULT)
    return found if isinstance(found, str) else None


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _object(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    try:
        values = json.loads(_text(path, _MOST_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON, or has a number that is too long", "a JSON object", "mend it") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no JSON object", "a JSON object", "mend or remove it")
    return values


def _text(path: Path, most_bytes: int) -> str:
    check_plain_file(path, "a template of chats", "check data.chat_template")
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8", "text in UTF-8", "save it as UTF-8") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}", "a readable file", _REMEDY) from error
    if len(data) > most_bytes:
        raise ConfigError(f"{path} is longer than {most_bytes >> 10} KiB", "a template of chats", _REMEDY)
    return text
