"""The folders in which a user's programs keep things. Asked when they are needed: a user of a container may have no home folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import platformdirs

from protocol.errors import ConfigError

_OURS = "potluck"


def state_root(flag: str = "--state-dir") -> Path:
    """The folder above the usual state folders of the host and the peer. `flag` names the folder instead.

    Raises:
        ConfigError: this user has no home folder, and no variable names another one.
    """
    found = _asked(lambda: platformdirs.user_state_path(_OURS))
    if found is None:
        raise ConfigError(
            "this user has no home folder, in which state is usually kept",
            "HOME or XDG_STATE_HOME",
            f"set one, or name {flag}",
        )
    return found


def config_folder() -> Path | None:
    """The folder of the owner's settings, which need not exist; None without a home folder."""
    return _asked(lambda: platformdirs.user_config_path(_OURS))


def home_folder() -> str:
    """The user's home folder; empty if there is none."""
    found = _asked(Path.home)
    return "" if found is None else str(found)


def _asked(ask: Callable[[], Path]) -> Path | None:
    try:
        found = ask()
    except (RuntimeError, KeyError):  # no variable, and no entry in the system's list of users
        return None
    return found if found.is_absolute() else None  # older releases of platformdirs give "~" itself
