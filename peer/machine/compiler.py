"""Whether torch can compile on this machine, without importing it."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Final

_C_COMPILERS: Final = ("cc", "gcc", "clang")


def has_compiler() -> bool:
    """Whether torch finds what it compiles with: Triton, and a C compiler for its launchers."""
    return find_spec("triton") is not None and any(shutil.which(name) for name in _C_COMPILERS)
