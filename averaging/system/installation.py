"""Faults of an installation that no command can work with: the system, the release of Python, a package. Imports only Python's own
modules.
"""

from __future__ import annotations

from typing import Final

LEAST_PYTHON: Final = (3, 11)
OURS: Final = frozenset(("potluck", "protocol", "averaging", "peer", "coordinator"))
_AGAIN: Final = "`make install` in a clone, else `pip install {}`"


def unsuited_system(platform: str, python: tuple[int, int]) -> str:
    """Why Potluck cannot run here, and what to do, in one line; empty if it can.

    Args:
        platform: as sys.platform.
        python: major and minor release.
    """
    if platform in ("win32", "cygwin"):
        return (
            "Windows itself cannot run Potluck; expected Linux; install WSL 2 (`wsl --install` in PowerShell), "
            "then install Potluck in there"
        )
    if python < LEAST_PYTHON:
        found, least = (".".join(map(str, release)) for release in (python, LEAST_PYTHON))
        return f"this is Python {found}; expected {least} or newer; install one, and Potluck with it"
    return ""


def broken_package(error: ImportError) -> str:
    """The line for a package that is missing or cannot be loaded; empty if it is one of ours, which is a bug."""
    package = (error.name or "").partition(".")[0]
    if not package or package in OURS:
        return ""
    if isinstance(error, ModuleNotFoundError):
        return (
            f"the Python package {package} is missing; expected all that Potluck is installed with; "
            f"install Potluck again: {_AGAIN.format('potluck-train')}"
        )
    return (
        f"the Python package {package} cannot be loaded ({error}); expected all that Potluck is installed with; "
        f"install it again: {_AGAIN.format('--force-reinstall potluck-train')}"
    )
