from __future__ import annotations

import shutil
from importlib.machinery import ModuleSpec

import pytest

from peer.machine import torch_extras
from peer.machine.torch_extras import has_torchao, why_no_compiler


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without modules and programs."""
    monkeypatch.setattr(torch_extras, "find_spec", lambda _name: None)
    monkeypatch.setattr(shutil, "which", lambda _name: None)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("kind", "lacks"), [("cpu", "C compiler"), ("cuda", "triton"), ("mps", "Apple")])
def test_what_a_compiler_lacks_is_named(kind: str, lacks: str) -> None:
    assert lacks in why_no_compiler(kind, {})


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("environment", "program"), [({}, "clang"), ({"CC": "mine -O1"}, "mine")])
def test_a_compiler_is_found_by_its_usual_name_or_the_owners(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], program: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == program else None)
    assert why_no_compiler("cpu", environment) == ""


@pytest.mark.parametrize("is_there", [False, True])
def test_it_tells_whether_the_extra_for_small_moments_is_installed(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(torch_extras, "find_spec", lambda name: ModuleSpec(name, None) if is_there else None)
    assert has_torchao() == is_there
