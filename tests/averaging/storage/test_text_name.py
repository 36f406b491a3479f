from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from averaging.storage.text_name import text_name


def test_library_that_takes_text_alone_reads_a_file_whose_name_is_none(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    path = (tmp_path / "a.safetensors").rename(tmp_path / os.fsdecode(b"caf\xe9.safetensors"))
    with text_name(path) as named:
        assert load_file(named)["a"].tolist() == [1.0, 1.0]
    assert not named.exists()


def test_name_that_is_text_stays_as_it_is(tmp_path: Path) -> None:
    with text_name(tmp_path / "größer") as named:
        assert named == tmp_path / "größer"
