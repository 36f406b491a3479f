from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

from averaging.network.libp2p.socket_folder import SOCKET_PREFIX, SOCKET_ROOT, make_socket_folder


def test_the_folder_of_a_killed_process_is_swept_and_a_living_ones_stays() -> None:
    dead = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=SOCKET_ROOT))
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(dead / "p2pd.sock"))
    os.utime(dead, (0, 0))
    alive = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=SOCKET_ROOT))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(alive / "p2pd.sock"))
        listening.listen()
        os.utime(alive, (0, 0))
        made = make_socket_folder()
        assert not dead.exists()
        assert alive.exists()
        assert made.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(alive)
    shutil.rmtree(made)
