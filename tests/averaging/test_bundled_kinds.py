from __future__ import annotations

import pytest

from averaging.arithmetic.outer.outer_kind import OuterKind
from averaging.bundled_kinds import load_kind
from protocol.errors import LocalProtocolError

PACKAGE = "averaging.arithmetic.outer"


def test_a_kind_is_found_by_its_name() -> None:
    assert load_kind(PACKAGE, "mean", "mean", OuterKind).name == "mean"


def test_a_line_without_a_module_is_told_with_the_modules_name() -> None:
    with pytest.raises(LocalProtocolError, match=r"no module averaging\.arithmetic\.outer\.adam; expected .*'adam'"):
        load_kind(PACKAGE, "adam", "adam", OuterKind)


@pytest.mark.parametrize(("module", "name"), [("mean", "nesterov"), ("outer_kind", "mean")])
def test_a_module_without_that_kind_is_told(module: str, name: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"no OuterKind named '{name}' in KINDS of {PACKAGE}.{module}"):
        load_kind(PACKAGE, module, name, OuterKind)


def test_a_kind_of_another_family_is_not_taken() -> None:
    with pytest.raises(LocalProtocolError, match="no _Other named 'mean'"):
        load_kind(PACKAGE, "mean", "mean", _Other)


class _Other:
    name = "mean"
