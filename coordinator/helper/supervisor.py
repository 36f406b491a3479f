"""Runs the helper while the run's peers need it. It is an ordinary peer that trains nothing, holds no state and has no vote (R25).

Rules: R25 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import IO, Final

import structlog
import trio

from averaging.network.seams.interfaces import Clock
from coordinator.helper.helper_core import HelperPlan, helper_arguments, needs_helper

log = structlog.get_logger()

LOOK_EVERY_S: Final = 2.0
LEAVES_WITHIN_S: Final = 10.0
HELPER_FOLDER: Final = "helper"
OUTPUT_NAME: Final = "output.txt"
_PORTS: Final = 65_535


@dataclass(frozen=True, slots=True)
class HelperContext:
    """The tools of the helper's supervisor.

    Attributes:
        folder: the helper's state.
        listen_host, announce_host: as the host's own settings.
        first_port: the port to listen on if it and the next one are free; 0 for any.
        are_hidden: for each peer at work whether nobody can connect to it.
        is_over: whether the run is complete: the helper then ends by itself, once everybody has the last commit.
        issue_invite: a new invite for one peer.
        say: prints a line for the host's terminal.
        start: as `start_process`.
    """

    folder: Path
    listen_host: str
    announce_host: str
    first_port: int
    clock: Clock
    are_hidden: Callable[[], Sequence[bool]]
    is_over: Callable[[], bool]
    issue_invite: Callable[[], Awaitable[str]]
    say: Callable[[str], None]
    start: Callable[[Sequence[str], IO[bytes]], subprocess.Popen[bytes]] = field(
        default=lambda *given: start_process(*given)
    )


async def keep_helper(context: HelperContext) -> None:
    """Start the helper when it is needed and stop it when it is not, until cancelled; then stop it."""
    plan, process, begun_s = HelperPlan(), None, 0.0
    try:
        while True:
            now_s, is_over = context.clock.monotonic_s(), context.is_over()
            plan = plan.after_look(is_needed=needs_helper(context.are_hidden()), now_s=now_s)
            if process is not None and process.poll() is not None:
                tell = log.info if is_over and not process.returncode else log.warning
                tell("helper_ended", status=process.returncode, output=str(context.folder / OUTPUT_NAME))
                process, plan = None, plan.after_end(ran_s=now_s - begun_s, now_s=now_s)
            if process is None and not is_over and plan.is_to_run(now_s):
                process, begun_s = await _start(context), now_s
            elif process is not None and not is_over and not plan.is_to_run(now_s):
                log.info("helper_stopped", reason="the peers can connect to each other")
                await _stop(process)
                process = None
            await trio.sleep(LOOK_EVERY_S)
    finally:
        if process is not None:
            with trio.CancelScope(shield=True):
                await _stop(process)


async def _start(context: HelperContext) -> subprocess.Popen[bytes] | None:
    """Start the helper; None if this machine cannot start a process now, which is tried again."""
    folder = context.folder
    port = free_port(context.listen_host, context.first_port)
    has_joined = (folder / "runs").is_dir()
    invite = "" if has_joined else await context.issue_invite()
    arguments = helper_arguments(
        str(folder), invite, listen_host=context.listen_host, listen_port=port, announce_host=context.announce_host
    )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with (folder / OUTPUT_NAME).open("wb") as output:
            process = context.start(arguments, output)
    except OSError as error:
        log.warning("helper_not_started", reason=f"{error.strerror or error}")
        return None
    log.info("helper_started", pid=process.pid, port=port, output=str(folder / OUTPUT_NAME))
    forwarded = f"; forward TCP {port} and {port + 1} to this machine, too" if context.announce_host else ""
    context.say(
        "helper   nobody can connect to most of the peers, so a helper here reduces for them "
        f"(TCP {port} and {port + 1}, output {folder / OUTPUT_NAME}; off by --no-helper){forwarded}"
    )
    return process


def start_process(arguments: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `potluck ARGUMENTS` with its own session and none of this user's peer settings; it dies with this process.

    Call it on the main thread: the kernel ends the process with the thread that started it.
    """
    launcher = Path(str(resources.files("averaging.network.libp2p") / "p2pd_launcher.py"))
    command = [sys.executable, "-I", "-S", str(launcher), str(os.getpid())]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POTLUCK_PEER_")}
    return subprocess.Popen(
        [*command, sys.executable, "-P", "-m", "potluck", *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**environment, "XDG_CONFIG_HOME": os.devnull},
    )


async def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let the helper say goodbye, then end it."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with trio.move_on_after(LEAVES_WITHIN_S):
        while process.poll() is None:
            await trio.sleep(0.05)
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def free_port(host: str, wanted: int) -> int:
    """`wanted` if it and the next port are free, else a free port."""
    if 0 < wanted < _PORTS and all(_is_free(host, port) for port in (wanted, wanted + 1)):
        return wanted
    with _bound(host, 0) as probe:
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int) -> bool:
    try:
        with _bound(host, port):
            return True
    except OSError:
        return False


def _bound(host: str, port: int) -> socket.socket:
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.bind((host, port))
    except OSError:
        probe.close()
        raise
    return probe
