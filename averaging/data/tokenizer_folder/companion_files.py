"""The companion files of a tokenizer.json: those in its folder that transformers reads, too. Refused where they contradict it.

transformers adds the tokens of tokenizer_config.json or added_tokens.json to those of tokenizer.json, and takes special tokens from
special_tokens_map.json where the config lists no added tokens. A run's text is encoded by tokenizer.json alone, so files that would
change its tokens are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError, StorageError
from protocol.plain_file import check_plain_file

TOKENIZER_NAME: Final = "tokenizer.json"
CONFIG_NAME: Final = "tokenizer_config.json"
MAP_NAME: Final = "special_tokens_map.json"
GENERATION_NAME: Final = "generation_config.json"
MODEL_NAME: Final = "config.json"
ADDED_NAME: Final = "added_tokens.json"

CompanionFiles = Mapping[str, Mapping[str, object]]
"""The contents of the companion files of a tokenizer.json, by their names."""

_LISTED: Final = "added_tokens_decoder"
_PREFIX: Final = "add_prefix_space"
_MOST_BYTES: Final = 1 << 26
_REMEDY: Final = "save it with save_pretrained of transformers, or move tokenizer.json alone into another folder"


def read_companions(file: Path) -> dict[str, Mapping[str, object]]:
    """The companion files of a tokenizer.json, by their names. A tokenizer file of another name has none.

    Raises:
        ConfigError: one is no JSON object.
        StorageError: one cannot be read.
    """
    if file.name != TOKENIZER_NAME:
        return {}
    names = (CONFIG_NAME, MAP_NAME, GENERATION_NAME, MODEL_NAME, ADDED_NAME)
    return {name: _read(file.with_name(name)) for name in names if file.with_name(name).exists()}


def _read(path: Path) -> Mapping[str, object]:
    check_plain_file(path, "a JSON object", "check data.tokenizer")
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(_MOST_BYTES))
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror})", "a readable file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON, or has a number that is too long", "a JSON object", "mend it") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no JSON object", "a JSON object", "mend or remove it")
    return values


def map_counts(config: Mapping[str, object]) -> bool:
    """Whether transformers reads special_tokens_map.json and added_tokens.json, too: only if this tokenizer_config.json lists no added
    tokens. The map then wins over the config.
    """
    return _LISTED not in config


def check_companions(values: Mapping[str, object], companions: CompanionFiles, place: str) -> None:
    """Refuse companion files with which transformers would give a text other tokens than tokenizer.json does.

    Args:
        values: the contents of tokenizer.json.
        place: its name in errors.

    Raises:
        ConfigError: they add a token, give one another number, or put a space before each text or leave it out.
    """
    listed = values.get("added_tokens")
    own = {
        token.get("content"): token.get("id")
        for token in (listed if isinstance(listed, list) else ())
        if isinstance(token, dict)
    }
    for file, text, number in _added(companions):
        if own.get(text) != number:
            found = f"token {own[text]}" if text in own else "no added token"
            raise ConfigError(f"{text[:40]!r} is {found} of {place}", f"{number}, as {file} beside it says", _REMEDY)
    asked = companions.get(CONFIG_NAME, {}).get(_PREFIX)
    for adds in _prefixes(values.get("pre_tokenizer")):
        if isinstance(asked, bool) and asked != adds:
            found = f"{_PREFIX} is {json.dumps(adds)} in {place}"
            raise ConfigError(found, f"{json.dumps(asked)}, as {CONFIG_NAME} beside it says", _REMEDY)


def _added(companions: CompanionFiles) -> Iterator[tuple[str, str, int]]:
    """The file, the text and the number of each token that transformers adds."""
    config = companions.get(CONFIG_NAME, {})
    if map_counts(config):
        numbers = companions.get(ADDED_NAME, {})
        yield from ((ADDED_NAME, text, number) for text, number in numbers.items() if isinstance(number, int))
        return
    listed = config[_LISTED]
    for number, token in listed.items() if isinstance(listed, dict) else ():
        if isinstance(token, dict) and isinstance(text := token.get("content"), str) and number.isdecimal():
            yield CONFIG_NAME, text, int(number)


def _prefixes(pre_tokenizer: object) -> Iterator[bool]:
    """Whether each byte-level part of a tokenizer puts a space before a text."""
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": list(parts)}:
            for part in parts:
                yield from _prefixes(part)
        case {"type": "ByteLevel", "add_prefix_space": bool(adds)}:
            yield adds
