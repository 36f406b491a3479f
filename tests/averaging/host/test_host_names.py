"""What a daemon may tell others to reach it by."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from averaging.host.host_names import HostName

NAMES = TypeAdapter(HostName)


@pytest.mark.parametrize("text", ["", "198.51.100.7", "host.example.org", "my_box-2", "2001:db8::7", "::1", "a" * 253])
def test_an_address_or_a_name_alone_is_taken_as_it_is(text: str) -> None:
    assert NAMES.validate_python(text) == text


@pytest.mark.parametrize(
    "text",
    ["http://host.example.org", "host.example.org:7600", "[::1]", "a b", "host/x", "h\n", "höst.example", "a" * 254],
)
def test_whatever_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValidationError, match=r"an address or a name alone, as 198\.51\.100\.7 or host\.example\.org"):
        NAMES.validate_python(text)
