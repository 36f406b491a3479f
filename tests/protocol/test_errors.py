from __future__ import annotations

import pytest

from protocol.errors import ConfigError


def test_found_expected_and_remedy_come_in_that_order() -> None:
    assert ConfigError("a", "b", "c").one_line() == str(ConfigError("a", "b", "c")) == "a; expected b; c"
    assert ConfigError("a").one_line() == "a"


@pytest.mark.parametrize(
    ("found", "shown"),
    [("a\nb", r"a\nb"), ("a\r\tb", r"a\r\tb"), ("\x1b[2Jb", r"\x1b[2Jb"), ("a\u2028b", r"a\u2028b"), ("é", "é")],
)
def test_text_from_files_and_strangers_stays_on_one_line_and_commands_no_terminal(found: str, shown: str) -> None:
    assert ConfigError(found).one_line() == shown
