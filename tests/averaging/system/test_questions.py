"""Questions before something is deleted."""

from __future__ import annotations

import io

import pytest

from averaging.system.questions import is_agreed
from protocol.errors import UsageError


def test_a_script_without_an_answer_hears_of_the_flag_and_is_not_told_that_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UsageError, match="--yes"):
        is_agreed("remove all of this?", yes=False)
    assert is_agreed("remove all of this?", yes=True)
    for answer, is_yes in (("y", True), ("n", False)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
        assert is_agreed("remove all of this?", yes=False) is is_yes
