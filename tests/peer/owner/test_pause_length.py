from __future__ import annotations

import pytest

from peer.owner.pause_length import pause_minutes
from protocol.errors import UsageError


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("60", 60.0), ("30m", 30.0), ("1h", 60.0), ("1h30m", 90.0), ("1.5h", 90.0), (" 2D ", 2880.0), ("90 min", 90.0)],
)
def test_length_of_a_pause_is_understood_with_and_without_a_unit(text: str, minutes: float) -> None:
    assert pause_minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "0h", "soon", "-5", "nan", "inf", "1 week", "400d", "9" * 60, "1e3", "h"])
def test_other_lengths_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"--for is .*such as 30m, 1h or 2d"):
        pause_minutes(text)
