from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.identity.chosen_name import MAX_CHARACTERS, called, checked_name, received_name

FINE = (
    "anna",
    "Анна",
    "山田 太郎",
    "a",
    "x" * MAX_CHARACTERS,
    "<b>anna</b>",
    'quo"te\\',
    "calm-otter",
    "{{7*7}}",
    "אבג",
    "🦦",
)
HOSTILE = {
    "10 kB": "a" * 10_000,
    "too long": "a" * (MAX_CHARACTERS + 1),
    "newline": "anna\nroot",
    "carriage return": "anna\rroot",
    "ANSI escape": "\x1b[2J\x1b[31manna",
    "C1 escape": "\x9b31manna",
    "NUL": "an\0na",
    "bidi override": "anna\u202egnp",
    "bidi isolate": "\u2067anna\u2069",
    "zero-width space": "an\u200bna",
    "zero-width joiner": "an\u200dna",
    "byte order mark": "\ufeffanna",
    "soft hyphen": "an\u00adna",
    "Hangul filler": "\u3164",
    "blank of Braille": "\u2800",
    "variation selector": "a\ufe0f",
    "tag character": "a\U000e0041",
    "line separator": "a\u2028b",
    "lone surrogate": "a\ud800",
    "an accent alone": "\u0301",
    "private use": "\ue000",
}


@pytest.mark.parametrize("text", FINE)
def test_a_name_that_shows_as_it_is_is_taken(text: str) -> None:
    assert checked_name(text, "nickname") == received_name(text) == text


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_refused_to_its_owner_and_is_none_to_everybody_else(text: str) -> None:
    with pytest.raises(ConfigError, match="1 to 32 printable characters") as refused:
        checked_name(text, "nickname")
    assert refused.value.one_line().isprintable()
    assert len(refused.value.one_line()) < 600
    assert received_name(text) == ""


def test_names_are_trimmed_and_normalised() -> None:
    assert checked_name("  Ame\u0301lie ", "team") == received_name("Ame\u0301lie") == "Am\u00e9lie"
    assert checked_name(" ", "team") == checked_name("", "team") == ""


def test_the_peers_own_name_stands_before_a_chosen_one_that_equals_anothers() -> None:
    assert called("calm-otter", "brisk-lentil") == "calm-otter (brisk-lentil)"
    assert called("calm-otter", "") == "calm-otter"
