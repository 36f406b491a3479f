"""The address that a host pushes its newest checkpoint to. Credentials never stand in it: they come from the environment."""

from __future__ import annotations

import re
from typing import Final

PUSH_EXTRAS: Final = {"file": "", "memory": "", "s3": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
"""The kinds of address, each with the extra of potluck-train that it needs; empty for none."""

_KINDS: Final = "file://, s3://, gs:// or hf://"
_SECRETS: Final = re.compile(r"[?&#;]|%40", re.IGNORECASE)


def url_problem(url: str) -> str:
    """Why a checkpoint cannot be pushed to this address; empty if it may work. The address is not repeated: it may hold a secret."""
    if not url.isprintable() or " " in url:
        return f"an address with a space or a control character; expected {_KINDS} and a path"
    kind, separator, rest = url.partition("://")
    if not separator or kind not in PUSH_EXTRAS:
        shown = kind if separator and kind.isalnum() and len(kind) <= 16 else "no kind that is known"
        return f"an address of {shown}; expected {_KINDS} and a path"
    if "@" in rest.partition("/")[0] or _SECRETS.search(rest):
        return "an address with credentials or options in it; expected them in the environment, and the address without"
    if kind == "file" and not rest.startswith("/"):
        return "a file:// address without a whole path; expected file:///folder/below/the/root"
    return "" if rest.strip("/") else f"an address without a path; expected {_KINDS}, and where to"
