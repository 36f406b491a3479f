"""The folder of p2pd's sockets: private, and with a short path, since a path of a unix socket has at most about a hundred letters."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from averaging.network.libp2p.p2pd import CONTROL_SOCKET
from protocol.errors import MachineError

SOCKET_PREFIX: Final = "potluck-p2p-"
FOLDER_MIN_AGE_S: Final = 60.0
"""A younger folder may belong to a p2pd that is just starting."""

_LONGEST_NAME: Final = "p2pclient-12345678901.sock"
"""hivemind's own socket has a name of this length, the longest one in the folder."""


def socket_roots(state_folder: Path, environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The places for the folder, best first: the owner's choice for temporary files, the system's usual one, the user's own one,
    which some systems remove when the user logs out, and the state folder.
    """
    named = [environment.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    places = [*named, "/tmp", environment.get("XDG_RUNTIME_DIR", ""), str(state_folder.absolute())]
    return tuple(dict.fromkeys(Path(place) for place in places if os.path.isabs(place)))


def make_socket_folder(roots: Iterable[Path]) -> Path:
    """Make a new folder in the first place that can have one, after removing those of killed processes from all. Blocks.

    Raises:
        MachineError: no place can; the reasons of each are in its line.
    """
    reasons = []
    roots = tuple(roots)
    for root in roots:
        _sweep(root)
    for root in roots:
        try:
            return _made_in(root)
        except OSError as error:
            reasons.append(f"{root} ({error.strerror or error})")
    raise MachineError(
        f"no folder can hold the sockets of the network: {', '.join(reasons)}",
        "a private, writable folder with a short path",
        "set TMPDIR to one",
    )


def _sweep(root: Path) -> None:
    for old in root.glob(f"{SOCKET_PREFIX}*"):
        with suppress(OSError):  # it belongs to somebody else, or was removed meanwhile
            details = old.lstat()
            is_ours = stat.S_ISDIR(details.st_mode) and details.st_uid == os.getuid()
            if is_ours and time.time() - details.st_mtime > FOLDER_MIN_AGE_S and _is_refused(old / CONTROL_SOCKET):
                shutil.rmtree(old, ignore_errors=True)


def _made_in(root: Path) -> Path:
    """A new folder in which sockets were tried. Raises OSError: it is not writable, not private, too long, or has no sockets."""
    folder = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=root))
    try:
        if folder.stat().st_mode & 0o077:
            raise OSError("its disk keeps no file modes, so that others could use them")
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(str(folder / _LONGEST_NAME))
        (folder / _LONGEST_NAME).unlink()
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _is_refused(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
