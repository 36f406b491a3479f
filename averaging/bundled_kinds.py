"""Loads the arithmetic of a kind: the module of this package that has the kind's name. Names come from the tables in protocol/kinds
alone, never from a message or a file, so that nothing but code of this installation is ever imported.
"""

from __future__ import annotations

import importlib
from typing import Protocol, TypeVar

from protocol.errors import LocalProtocolError


class Named(Protocol):
    """A kind that is found by its name."""

    @property
    def name(self) -> str:
        """As the table in protocol/kinds has it."""
        ...


K = TypeVar("K", bound=Named)


def load_kind(package: str, module: str, name: str, base: type[K]) -> K:
    """The kind of this name in `KINDS` of the module `package`.`module`.

    Raises:
        LocalProtocolError: there is no such module, or it has no such kind that is a `base`.
    """
    path, remedy = f"{package}.{module}", "add it, or take its line out of protocol/kinds"
    try:
        found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise LocalProtocolError(f"no module {path}", f"the arithmetic of {name!r}", remedy) from None
    kinds: object = getattr(found, "KINDS", ())
    for kind in kinds if isinstance(kinds, tuple) else ():
        if isinstance(kind, base) and kind.name == name:
            return kind
    raise LocalProtocolError(f"no {base.__name__} named {name!r} in KINDS of {path}", "one", remedy)
