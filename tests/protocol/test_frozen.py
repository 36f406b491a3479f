from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

import pytest

from protocol.frozen import replace


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


def test_a_copy_has_the_changes_and_the_rest_and_the_original_is_left_alone() -> None:
    point = Point(1, 2)
    moved = replace(point, y=5)
    assert (moved, point) == (Point(1, 5), Point(1, 2))
    assert hash(moved) == hash(Point(1, 5))
    with pytest.raises(FrozenInstanceError):
        moved.x = 3  # type: ignore[misc]


def test_a_field_that_the_class_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="no field"):
        replace(Point(1), z=3)  # type: ignore[call-arg]
