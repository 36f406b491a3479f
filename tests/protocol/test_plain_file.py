from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.plain_file import check_plain_file


def test_pipe_socket_and_device_are_refused_by_their_kind_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        for kind in ("pipe", "device", "socket"):
            with pytest.raises(ConfigError) as caught:
                check_plain_file(tmp_path / kind, "a run.toml", "write one")
            assert caught.value.one_line() == f"{tmp_path / kind} is a {kind}; expected a run.toml; write one"


def test_file_link_folder_and_what_is_not_there_are_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "link", ".", "nowhere", "file/below", "loop", "x" * 300, "no\0name"):
        check_plain_file(tmp_path / name, "a run.toml")
