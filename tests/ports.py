"""Free ports for tests that close a port and expect it to be free still. Ports that the kernel hands out may be taken by any
connection of a test that runs beside.
"""

from __future__ import annotations

import os
import socket
from itertools import count
from typing import Final

LOWEST: Final = 10_000
HIGHEST: Final = 31_990
"""Below 32768, where Linux begins to hand ports out by itself (ip_local_port_range)."""

_MOST_TRIES: Final = 1000
_numbers = count(os.getpid() * 37)
"""Another place for each process, so that two that run side by side rarely try the same port."""


def free_port(address: str = "127.0.0.1", num_in_a_row: int = 1) -> int:
    """The first of so many TCP ports in a row that are free at this moment, and that the kernel gives to nobody by itself.

    Raises:
        OSError: none is free after many tries.
    """
    for _ in range(_MOST_TRIES):
        port = LOWEST + next(_numbers) * num_in_a_row % (HIGHEST - LOWEST)
        if all(_is_free(address, each) for each in range(port, port + num_in_a_row)):
            return port
    raise OSError(
        f"found no {num_in_a_row} free ports in a row on {address}; expected some below {HIGHEST}: end other programs"
    )


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
