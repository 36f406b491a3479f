from typing import Annotated

import pytest
from pydantic import ValidationError

from protocol.run.section import OneOf, Section


class _Numbers(Section):
    first: int = 1
    later: int = 2


def test_what_came_later_is_written_only_where_it_is_used() -> None:
    first_keys = frozenset(["first"])
    assert _Numbers().used({"first": 1, "later": 2}, first_keys) == {"first": 1}
    assert _Numbers(later=3).used({"first": 1, "later": 3}, first_keys) == {"first": 1, "later": 3}


def test_a_key_that_nobody_knows_and_a_number_in_quotes_are_refused() -> None:
    for values in ({"frist": 1}, {"first": "1"}):
        with pytest.raises(ValidationError):
            _Numbers.model_validate(values)


class _Colours(Section):
    colour: Annotated[str, OneOf(("red", "blue", "green"))] = "red"


def test_a_key_that_takes_some_words_alone_lists_them_where_another_is_written() -> None:
    assert _Colours(colour="blue").colour == "blue"
    with pytest.raises(ValidationError, match="Input should be 'red', 'blue' or 'green'"):
        _Colours(colour="pink")
    assert _Colours.model_json_schema()["properties"]["colour"]["enum"] == ["red", "blue", "green"]
