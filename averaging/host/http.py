"""The web server of both daemons: a listening socket, and an ASGI application served on it, on trio."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from protocol.errors import MachineError

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework
    from starlette.applications import Starlette


ASKED_WITHIN_S: Final = 5.0
"""A connection on which no request's headers have come for so many seconds, those of its first one included, is closed. So connections
that say nothing, or a little at a time, hold no place for long.
"""


def bind_http(host: str, port: int, *, flag: str = "--http-port") -> socket.socket:
    """A listening socket; `getsockname()[1]` is its port if `port` is 0. `flag` is the flag that sets another port, for the error.

    Raises:
        MachineError: the port is in use or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except (OSError, UnicodeError) as error:  # a name with an empty label cannot be encoded
        listener.close()
        raise MachineError(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', error)})",
            "a free port on an address of this machine",
            f"give another with {flag}, or 0 for any",
        ) from error
    return listener


async def serve_http(
    listener: socket.socket, app: Starlette, *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled. Owns the socket and closes it at the end; `task_status` gets the URLs."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = 1.0
    config.keep_alive_timeout = ASKED_WITHIN_S
    asgi = cast("ASGIFramework", app)
    await serve(asgi, config, shutdown_trigger=trio.sleep_forever, task_status=task_status, mode="asgi")
