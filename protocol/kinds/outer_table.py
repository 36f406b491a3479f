"""The outer steps that a run may take: one line each. The arithmetic of NAME is averaging/arithmetic/outer/NAME.py.

A new outer step is one line in `OUTER_STEPS` and that module (CONTRIBUTING.md, "Add an outer step").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from protocol.errors import LocalProtocolError

MOST_STATE_VECTORS: Final = 1
"""A unit's state has room for one vector beside the anchor (averaging/state/state.py)."""


@dataclass(frozen=True, slots=True)
class OuterFacts:
    """The facts of an outer step that everything but its arithmetic needs.

    Attributes:
        name: in run.toml and in commit records, and that of its module; a Python identifier.
        state_vectors: float32 vectors beside the anchor that the step reads and writes, 0 or 1.
        takes_momentum: whether `outer.momentum` may be more than 0.

    Raises:
        LocalProtocolError: more state vectors than a unit's state has room for.
    """

    name: str
    state_vectors: int = 0
    takes_momentum: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise LocalProtocolError(f"an outer step named {self.name!r}", "a name that a module can have")
        if not 0 <= self.state_vectors <= MOST_STATE_VECTORS:
            found = f"outer step {self.name!r} with {self.state_vectors} state vectors"
            raise LocalProtocolError(found, f"at most {MOST_STATE_VECTORS}", "a unit's state needs more room first")


_TABLE: Final = (
    OuterFacts("mean"),
    OuterFacts("nesterov", state_vectors=1, takes_momentum=True),
)

OUTER_STEPS: Final[Mapping[str, OuterFacts]] = MappingProxyType({facts.name: facts for facts in _TABLE})
"""By name."""


def with_momentum() -> str:
    """The kinds that take a momentum, as an error offers them: `kind = "nesterov"`."""
    return " or ".join(f'kind = "{facts.name}"' for facts in OUTER_STEPS.values() if facts.takes_momentum)
