"""Which release of Potluck this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

FROM_A_CHECKOUT: Final = "from a checkout"


def installed_release() -> str:
    """The installed release ("0.1.0"), or FROM_A_CHECKOUT where it was never installed."""
    try:
        return version("potluck-train")
    except PackageNotFoundError:
        return FROM_A_CHECKOUT
