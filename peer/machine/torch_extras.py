"""The compiler and the extras that torch can use on this machine, without importing them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

_C_COMPILERS: Final = ("cc", "gcc", "clang")


def why_no_compiler(device_type: str, environment: Mapping[str, str] = os.environ) -> str:
    """The first thing that compiling lacks on this machine for a device ("cpu", "cuda", "mps"), in one line; empty if nothing."""
    if sys.platform == "win32":
        return "torch's compiler is not supported on Windows"
    if device_type == "mps":
        return "torch's compiler for Apple's cards is not finished"
    if device_type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    named = environment.get("CC", "").split()
    if not any(shutil.which(name) for name in (*named[:1], *_C_COMPILERS)):
        return "there is no C compiler (install gcc)"
    return ""


def has_torchao() -> bool:
    """Whether the extra `small` is installed."""
    return find_spec("torchao") is not None
