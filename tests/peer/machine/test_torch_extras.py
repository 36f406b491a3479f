from __future__ import annotations

import shutil
from importlib.machinery import ModuleSpec

import pytest

from peer.machine import torch_extras
from peer.machine.torch_extras import has_compiler, has_torchao


@pytest.mark.parametrize(
    ("modules", "programs", "compiles", "small"),
    [
        ({"triton"}, {"gcc"}, True, False),
        ({"triton", "torchao"}, {"clang"}, True, True),
        ({"triton"}, set(), False, False),
        ({"torchao"}, {"cc"}, False, True),
    ],
)
def test_it_tells_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, modules: set[str], programs: set[str], compiles: bool, small: bool
) -> None:
    monkeypatch.setattr(torch_extras, "find_spec", lambda name: ModuleSpec(name, None) if name in modules else None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    assert (has_compiler(), has_torchao()) == (compiles, small)
