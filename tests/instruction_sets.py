"""Processes in which NumPy does without vector instructions that this machine has.

NumPy names what it was built to choose among at its start, under names that change from one release to the next, and says nothing of
a name that it does not know. So it is asked which there are, and the process itself looks whether they are off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

VARIABLE: Final = "NPY_DISABLE_CPU_FEATURES"

_WIDE: Final = ("AVX512", "X86_V4")
"""The prefixes of the names of 512 bit instructions."""


def dispatched() -> tuple[str, ...]:
    """The features that NumPy chose on this machine beyond those that it always needs; none if it was built for this machine alone."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return tuple(name for name in __cpu_dispatch__ if __cpu_features__.get(name))


def without(is_left_out: Callable[[str], bool] = lambda _: True) -> Mapping[str, str]:
    """The environment of a process without these; without all of them, unless told."""
    return {VARIABLE: " ".join(filter(is_left_out, dispatched()))}


def is_wide(name: str) -> bool:
    """Whether these are 512 bit instructions."""
    return name.startswith(_WIDE)


def still_on(environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """In such a process: what of what it is to do without NumPy uses all the same."""
    return sorted(set(environment.get(VARIABLE, "").split()) & set(dispatched()))


def check_off() -> None:
    """Raises RuntimeError where something that this process is to do without is on."""
    if found := still_on():
        raise RuntimeError(f"NumPy uses {', '.join(found)}; expected none of {os.environ[VARIABLE]}")
