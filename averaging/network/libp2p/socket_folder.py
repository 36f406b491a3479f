"""The folder of p2pd's sockets: private, and with a short path, since paths of unix sockets have at most 107 letters."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from averaging.network.libp2p.p2pd import CONTROL_SOCKET

SOCKET_ROOT: Final = Path("/tmp")
SOCKET_PREFIX: Final = "potluck-p2p-"
FOLDER_MIN_AGE_S: Final = 60.0
"""A younger folder may belong to a p2pd that is just starting."""


def make_socket_folder() -> Path:
    """Make a new folder, after removing those of killed processes. Blocks."""
    for old in SOCKET_ROOT.glob(f"{SOCKET_PREFIX}*"):
        with suppress(OSError):  # it belongs to somebody else, or was removed meanwhile
            details = old.lstat()
            is_ours = stat.S_ISDIR(details.st_mode) and details.st_uid == os.getuid()
            if is_ours and time.time() - details.st_mtime > FOLDER_MIN_AGE_S and _is_refused(old / CONTROL_SOCKET):
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=SOCKET_ROOT))


def _is_refused(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
