"""`replace` for the frozen states of the machines, which change one or two of twenty fields thousands of times a second.

`dataclasses.replace` goes through `__init__`, which sets each field of a frozen class by a call of its own: too slow for a large
swarm. Types are checked as for `dataclasses.replace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dataclasses import replace
else:
    T = TypeVar("T")

    def replace(instance: T, /, **changes: object) -> T:
        """A copy with some fields changed; of dataclasses without slots and without `__post_init__` only.

        Raises:
            TypeError: a field that the class does not have.
        """
        fields = instance.__dict__
        merged = fields | changes
        if len(merged) != len(fields):
            raise TypeError(f"no field {sorted(changes.keys() - fields.keys())} in {type(instance).__name__}")
        copy = object.__new__(type(instance))
        object.__setattr__(copy, "__dict__", merged)
        return copy


__all__ = ["replace"]
