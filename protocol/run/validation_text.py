"""Pydantic's problems with a run.toml or a manifest, in the three parts of our errors."""

from __future__ import annotations

from pydantic import ValidationError


def explained(name: str, error: ValidationError) -> tuple[str, str, str]:
    """The first problem of a validation as found, expected, remedy; `name` is the checked file."""
    # Wrong values come before missing ones: a misspelt key is usually both.
    rank = {"extra_forbidden": 0, "missing": 2}
    first = min(error.errors(include_url=False), key=lambda problem: rank.get(problem["type"], 1))
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return (
            f"{name}: {key} is not a known key",
            "a key that `potluck init` writes",
            "check its spelling or remove it",
        )
    if first["type"] == "missing":
        return f"{name}: {key} is missing", "a value", "compare with the file that `potluck init` writes"
    if first["type"] == "value_error":
        place = f"{name}: {key}" if key else name
        return f"{place}: {first['msg'].removeprefix('Value error, ')}", "", "change it and start again"
    value = repr(first["input"])[:60]
    expected = first["msg"].removeprefix("Input should be ")
    return f"{name}: {key} is {value}", expected[:1].lower() + expected[1:], "change it and start again"
