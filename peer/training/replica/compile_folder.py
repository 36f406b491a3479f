"""The name of the folder for compiled code. Apart from what compiles, which the daemon does not import."""

from __future__ import annotations

from typing import Final

COMPILE_FOLDER: Final = "cache"
"""In a peer's state. Everything in it can be made again."""
