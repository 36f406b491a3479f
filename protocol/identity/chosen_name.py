"""The name and the team that a volunteer chooses. For display only: they are not unique, prove nothing, and identify nobody.

They are free text of strangers. So every place that shows one also shows the peer's own name, and none takes it as markup.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError
from protocol.tables import printable, shortened

MAX_CHARACTERS: Final = 32

EXPECTED: Final = f"1 to {MAX_CHARACTERS} printable characters, none of them invisible, the first no accent alone"

_INVISIBLE: Final = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
)  # fmt: skip
"""Characters that count as printable and show nothing: joiners, fillers, variation selectors and a blank."""


@dataclass(frozen=True, slots=True)
class ChosenName:
    """A peer's name for itself, and its team; each empty where it chose none."""

    nickname: str = ""
    team: str = ""

    def __bool__(self) -> bool:
        return bool(self.nickname or self.team)


NONE_CHOSEN: Final = ChosenName()


def checked_name(text: str, setting: str) -> str:
    """An owner's choice, normalised (NFC) and trimmed; empty for none.

    Raises:
        ConfigError: it cannot be shown safely on one line, or it is too long.
    """
    name = _normal(text)
    if name and not _is_fine(name):
        found = f"peer setting {setting} is '{printable(shortened(text, 2 * MAX_CHARACTERS))}'"
        raise ConfigError(found, EXPECTED, f"choose another with --{setting} or in peer.toml, or none")
    return name


def received_name(text: str) -> str:
    """A stranger's choice; empty where it is none that can be shown. Nothing depends on it, so it refuses no message."""
    if len(text) > 4 * MAX_CHARACTERS:
        return ""
    name = _normal(text)
    return name if _is_fine(name) else ""


def called(name: str, nickname: str) -> str:
    """A peer's own name with the one that it chose, as "calm-otter (anna)"."""
    return f"{name} ({nickname})" if nickname else name


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip(" ")


def _is_fine(name: str) -> bool:
    """Whether it is not too long and shows as it is. Control, bidirectional and zero-width characters are not printable."""
    if not 1 <= len(name) <= MAX_CHARACTERS or not name.isprintable() or unicodedata.category(name[0])[0] == "M":
        return False
    return not any(low <= ord(character) <= high for character in name for low, high in _INVISIBLE)
