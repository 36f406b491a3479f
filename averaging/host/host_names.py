"""A name or address that a daemon tells others to reach it by, as its owner wrote it in a setting."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

_MOST_LETTERS: Final = 253
"""Of a DNS name (RFC 1035, section 2.3.4, without the root's dot)."""

_SHAPE: Final = re.compile(r"[A-Za-z0-9._-]*|[0-9A-Fa-f:.]+")
"""A DNS name in ASCII or an IPv4 address; or an IPv6 address, which goes without brackets here. No scheme and no port."""


def _checked(text: str) -> str:
    if len(text) > _MOST_LETTERS or _SHAPE.fullmatch(text) is None:
        raise PydanticCustomError("host_name", "an address or a name alone, as 198.51.100.7 or host.example.org")
    return text


HostName = Annotated[str, AfterValidator(_checked)]
"""Empty where none is given. What is wrong here would else be found by volunteers, in an invite that leads nowhere."""
