from __future__ import annotations

import errno
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from averaging.codecs import codec_by_name
from averaging.codecs.build_hook import LIBRARY, SOURCE, compile_blocks, is_of_source
from averaging.codecs.compiled import CompiledBlocks

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


@pytest.mark.parametrize("name", ["", "cc -ffast-math"])
def test_what_cc_names_does_not_change_how_numbers_are_rounded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", name)
    assert compile_blocks(ROOT, tmp_path / "blocks.so", "-O1") == ""
    small = np.float32(1e-40)
    blocks, codec, room = CompiledBlocks(tmp_path / "blocks.so"), codec_by_name("int4"), bytearray(68)
    assert small * np.float32(0.5) > 0, "numbers below the smallest normal one are not flushed by whoever loads it"
    for seed in range(50):
        values_n = torch.randn(128, generator=torch.Generator().manual_seed(seed))
        assert blocks.encode(codec, values_n, None, 128, memoryview(room))
        assert bytes(room) == codec.encode(values_n)


def test_a_compiler_that_cannot_be_named_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc '")
    assert compile_blocks(ROOT, tmp_path / "blocks.so").startswith("CC: ")


def test_where_nothing_can_be_written_or_removed_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert compile_blocks(ROOT, tmp_path / "nowhere" / "blocks.so", "-O1") != ""


def test_without_a_compiler_a_library_of_this_source_is_kept_and_another_one_is_not(tmp_path: Path) -> None:
    library, source = tmp_path / LIBRARY, tmp_path / SOURCE
    source.parent.mkdir(parents=True)
    source.write_bytes((ROOT / SOURCE).read_bytes())
    assert not is_of_source(tmp_path, library)
    assert compile_blocks(tmp_path, library, "-O1") == ""
    assert is_of_source(tmp_path, library)
    source.write_bytes(source.read_bytes() + b"\n")
    assert not is_of_source(tmp_path, library)
    for damaged in (b"not a library", library.read_bytes()[:20_000]):
        library.write_bytes(damaged)
        assert not is_of_source(tmp_path, library)


def test_installations_and_wheels_build_it() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert (ROOT / wheel["hooks"]["custom"]["path"]).exists()
    assert f"/{LIBRARY}" in (ROOT / ".gitignore").read_text(encoding="utf8").splitlines()
