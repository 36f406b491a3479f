"""The kinds of address that this machine can push to, checked before anything slow is imported."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from protocol.errors import ConfigError, MachineError
from protocol.run.push_url import PUSH_EXTRAS, url_problem

_PACKAGES: Final = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
"""The package of each kind that fsspec itself does not bring."""


def check_push(url: str) -> None:
    """Refuse an address that cannot work on this machine, without connecting to it.

    Raises:
        ConfigError: an unknown kind, or credentials in it.
        MachineError: a package for this kind is not installed.
    """
    if problem := url_problem(url):
        raise ConfigError(problem, "", "correct the address")
    kind = url.partition("://")[0]
    package = _PACKAGES.get(kind, "fsspec")
    if find_spec(package) is None:
        extra = PUSH_EXTRAS[kind]
        raise MachineError(
            f"{package} is not installed", f"it, for {kind}:// addresses", f'pip install "potluck-train[{extra}]"'
        )
