from __future__ import annotations

import pytest

from averaging.host.command_errors import report_usage
from protocol.errors import UsageError


class _Mistyped(Exception):
    """An error of a click that asks what was meant, beside a typer that has asked it already."""

    message = "No such command 'statu'. Did you mean 'status'?"

    def format_message(self) -> str:
        return f"{self.message} Did you mean 'status'?"


class _BadValue(Exception):
    message = "is it a number?"

    def format_message(self) -> str:
        return f"Invalid value for '--tokens': {self.message}"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_Mistyped(), "potluck: No such command 'statu'. Did you mean 'status'?\n"),
        (_BadValue(), "potluck: Invalid value for '--tokens': is it a number?\n"),
    ],
)
def test_question_is_asked_once_whoever_asks_it(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_usage(error) == UsageError.exit_code
    assert capsys.readouterr().err == said
