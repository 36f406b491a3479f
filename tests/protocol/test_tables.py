"""Plain text for people."""

from __future__ import annotations

import pytest

from protocol.tables import bits, duration, in_bytes, least_duration, printable, several, short_count, whole


def test_text_of_strangers_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert printable("\r\x07") == "\\r\\x07"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (5400, "1.5 h"),
        (3 * 86400, "3.0 days"),
        ("soon", "unknown"),
        (True, "unknown"),
    ],
)
def test_duration_has_a_unit(seconds: object, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (2_500_000, "2.5 MB"),
        (3e12, "3.0 TB"),
        (5e15, "5000.0 TB"),
        (None, "-"),
    ],
)
def test_bytes_have_a_unit(count: object, text: str) -> None:
    assert in_bytes(count) == text


def test_what_is_no_number_is_a_dash() -> None:
    assert (whole(1234.4), whole(None), whole("x")) == ("1,234", "-", "-")
    assert (bits(0.6931471805599453), bits(None)) == ("1.000", "-")


def test_count_is_short_however_large_it_is() -> None:
    counts = (0, 950, 12_345, 14_745_600, 2_100_000_000, None, True)
    assert [short_count(count) for count in counts] == ["0", "950", "12.3k", "14.7M", "2.1B", "-", "-"]


def test_one_of_a_thing_has_no_s() -> None:
    found = [several(count, "round") for count in (0, 1, 2, 12_345, 0.5)]
    assert found == ["0 rounds", "1 round", "2 rounds", "12,345 rounds", "0.5 rounds"]


def test_what_takes_a_moment_takes_less_than_a_second() -> None:
    assert [least_duration(value) for value in (0.2, 1, 90, "soon")] == ["less than 1 s", "1 s", "2 min", "unknown"]
