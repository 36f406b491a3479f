"""Carbon of a kilowatt-hour by country. A table, pure.

Source: Ember, Yearly Electricity Data, with processing by Our World in Data
(ourworldindata.org/grapher/carbon-intensity-electricity), grams of CO2 equivalents of the life cycle for each kilowatt-hour that is
generated. Values are means of 2024, where that is published; of 2023 for ae, eu, id, il, is and sa; of 2022 for ua.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from protocol.errors import ConfigError

JOULES_PER_KWH: Final = 3.6e6
GRAMS_PER_KG: Final = 1000.0

MOST_G_PER_KWH: Final = 5000.0
"""More than any way to make electricity: above it a number is a mistake."""

WORLD: Final = "world"

GRIDS: Final[dict[str, float]] = {
    "ae": 493, "ar": 359, "at": 103, "au": 552, "bd": 695, "be": 118, "bg": 264, "br": 103, "ca": 175, "ch": 37,
    "cl": 266, "cn": 560, "co": 286, "cz": 414, "de": 344, "dk": 143, "ee": 341, "eg": 572, "es": 146, "eu": 237,
    "fi": 72, "fr": 44, "gb": 211, "gr": 320, "hr": 174, "hu": 183, "id": 682, "ie": 280, "il": 567, "in": 708,
    "is": 28, "it": 288, "jp": 482, "ke": 85, "kr": 414, "lt": 139, "lu": 135, "lv": 136, "mx": 485, "my": 604,
    "ng": 508, "nl": 253, "no": 31, "nz": 120, "pe": 263, "ph": 613, "pk": 399, "pl": 615, "pt": 112, "ro": 246,
    "ru": 449, "sa": 696, "se": 36, "sg": 499, "si": 228, "sk": 96, "th": 554, "tr": 470, "tw": 636, "ua": 256,
    "us": 384, "vn": 471, "za": 709, WORLD: 473,
}  # fmt: skip
"""Grams of CO2 equivalents a kilowatt-hour, by the country's two letters (ISO 3166-1), of the European Union and of the world."""


def grid_g_per_kwh(grid: str) -> float:
    """Grams of CO2 a kilowatt-hour of a grid: of a name in the table, or a number of grams.

    Raises:
        ConfigError: a grid that is not in the table, or grams out of range; names the nearest ones.
    """
    name = grid.strip().lower()
    if name in GRIDS:
        return GRIDS[name]
    try:
        grams = float(name)
    except ValueError:
        close = get_close_matches(name, GRIDS, n=3, cutoff=0.3)
        remedy = f"such as {', '.join(close)}" if close else "or grams of CO2 a kilowatt-hour, such as 344"
        raise ConfigError(f"grid {grid!r}", f'a country\'s two letters, "eu" or "{WORLD}"', remedy) from None
    if not 0.0 <= grams <= MOST_G_PER_KWH:
        raise ConfigError(f"grid {grid!r}", f"0 to {MOST_G_PER_KWH:g} grams of CO2 a kilowatt-hour")
    return grams


def known_grid(grid: str) -> str:
    """The name of a grid as a key of a file has it; empty for none. Raises ValueError for one that nobody knows."""
    try:
        if grid:
            grid_g_per_kwh(grid)
    except ConfigError as error:
        raise ValueError(error.one_line()) from error
    return grid


def carbon_kg(kwh: float, g_per_kwh: float) -> float:
    """Kilograms of CO2 equivalents of this energy."""
    return kwh * g_per_kwh / GRAMS_PER_KG
