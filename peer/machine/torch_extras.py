"""The compiler and the extras that torch can use on this machine, without importing them."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Final

_C_COMPILERS: Final = ("cc", "gcc", "clang")


def has_compiler() -> bool:
    """Whether torch finds what it compiles with: Triton, and a C compiler for its launchers."""
    return find_spec("triton") is not None and any(shutil.which(name) for name in _C_COMPILERS)


def has_torchao() -> bool:
    """Whether the extra `small` is installed."""
    return find_spec("torchao") is not None
