"""Environment variables that are meant as settings of a daemon and are none."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

from protocol.errors import ConfigError

_OF_A_SERVICE: Final = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")
"""What Kubernetes sets in every container for a service that is called potluck-peer or potluck-host: nobody's settings."""


def check_variables(prefix: str, settings: Collection[str], names: Iterable[str]) -> None:
    """Look through the environment's `names` for one with our `prefix` ("POTLUCK_PEER_") that none of the `settings` has.

    It would change nothing in silence: a misspelt cap would be no cap.

    Raises:
        ConfigError: there is one; names the setting that may be meant.
    """
    for name in sorted(names):
        key = name.upper().removeprefix(prefix)
        if key == name.upper() or key.lower() in settings or _OF_A_SERVICE.fullmatch(key):
            continue
        meant = [f"{prefix}{close.upper()}" for close in get_close_matches(key.lower(), settings, n=1)]
        raise ConfigError(
            f"the environment variable {name[:80]} is no setting",
            meant[0] if meant else f"the name of a setting after {prefix}",
            "mend or unset it; --dry-run of `potluck join` and `potluck host` lists every setting",
        )
