from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from averaging.codecs.build_hook import LIBRARY, SOURCE, compile_blocks

ROOT = Path(__file__).parents[3]


def test_without_a_compiler_it_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert "no-compiler" in compile_blocks(ROOT, tmp_path / "blocks.so")
    assert list(tmp_path.iterdir()) == []


def test_what_a_compiler_says_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / SOURCE).parent.mkdir(parents=True)
    (tmp_path / SOURCE).write_text("this is no C\n", encoding="ascii")
    problem = compile_blocks(tmp_path, tmp_path / "blocks.so")
    assert "error" in problem
    assert "\n" not in problem
    assert not list(tmp_path.glob("blocks*"))


def test_where_functions_for_each_processor_cannot_be_built_there_is_one_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *CLONES*) echo no clones >&2; exit 1;; esac\nexec cc "$@"\n', encoding="ascii"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert compile_blocks(ROOT, tmp_path / "blocks.so") == ""
    assert (tmp_path / "blocks.so").exists()


def test_installations_and_wheels_build_it() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert (ROOT / wheel["hooks"]["custom"]["path"]).exists()
    assert f"/{LIBRARY}" in (ROOT / ".gitignore").read_text(encoding="utf8").splitlines()
