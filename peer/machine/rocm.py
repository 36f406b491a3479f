"""The environment that AMD cards need in a process that trains. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FAST_ATTENTION: Final = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"
"""Torch's switch for its attention kernels on cards of the RDNA kind. Without them it falls back, and says nothing, to products that
take memory by the square of the context.
"""

DRIVER: Final = Path("/dev/kfd")
"""There while AMD's driver for computing is loaded."""


def rocm_environment(driver: Path = DRIVER, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables to add for a process that trains; none without AMD's driver, or where the owner has set them."""
    return {FAST_ATTENTION: "1"} if driver.exists() and FAST_ATTENTION not in environment else {}
