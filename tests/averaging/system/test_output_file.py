from __future__ import annotations

import os
import sys
from io import StringIO
from pathlib import Path

import pytest

from averaging.system.output_file import is_printed, output_name, write_output
from protocol.errors import StorageError, UsageError

TEXT = "größe\r\n"


def test_text_goes_to_the_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("earlier")
    write_output(file, TEXT)
    assert file.read_bytes() == TEXT.encode("utf8")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", [TEXT, TEXT.encode("utf8")], ids=["text", "bytes"])
def test_dash_is_standard_output_and_no_file(
    content: str | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    print("first")
    write_output(Path("-"), content)
    assert capfdbinary.readouterr().out == b"first\n" + TEXT.encode("utf8")
    assert list(tmp_path.iterdir()) == []


def test_only_a_dash_alone_is_standard_output() -> None:
    assert [is_printed(file) for file in (Path("-"), Path("a/-"), Path("-a"), None)] == [True, False, False, False]
    assert output_name(Path("-")) == "standard output"
    assert output_name(Path("a/-")) == "a/-"


def test_what_is_no_text_does_not_go_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    with pytest.raises(UsageError, match="a file or a pipe"):
        write_output(Path("-"), b"\x00")


def test_closed_standard_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(StorageError, match="standard output is closed"):
        write_output(Path("-"), TEXT)


def test_file_that_cannot_be_written_is_named_with_the_flag_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none/a.txt cannot be written .*; see --out"):
        write_output(tmp_path / "none" / "a.txt", TEXT, "see --out")
    with pytest.raises(StorageError, match="cannot be written"):
        write_output(tmp_path, TEXT)
    assert list(tmp_path.iterdir()) == []


def test_named_pipe_gets_the_text_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(pipe, TEXT)
        assert os.read(reader, 100) == TEXT.encode("utf8")
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "a.txt", tmp_path / "link"
    link.symlink_to(target)
    write_output(link, TEXT)
    assert link.is_symlink()
    assert target.read_bytes() == TEXT.encode("utf8")
