"""Which process runs the peer of a state folder, and how `potluck stop` asks it to leave."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from averaging.system import process_record
from averaging.system.process_record import PROCESS_FILE as PROCESS_FILE
from averaging.system.process_record import RunningDaemon as RunningPeer
from averaging.system.process_record import running_here as running_here
from protocol.errors import MachineError, UnreachableError

STOP_WITHIN_S: Final = 120.0
"""A peer hands over what only it has, and waits for the last uploads. The system's service waits as long."""


def running_peer(state_dir: Path) -> RunningPeer | None:
    """The peer that runs from a state folder; None if none does. Blocks."""
    return process_record.running_daemon(state_dir)


def stop_peer(state_dir: Path, within_s: float = STOP_WITHIN_S) -> str:
    """Ask the peer of a state folder to leave, and wait until it has. Returns one line for the owner. Blocks.

    Raises:
        UnreachableError: none runs from there.
        TemporaryError: it is still leaving.
    """
    running = running_peer(state_dir)
    if running is None:
        raise UnreachableError(f"no peer runs from {state_dir}", "a running peer", "see: potluck status")
    process_record.end_daemon(state_dir, running, "peer", within_s)
    return f"the peer has left; go on with: {join_command(state_dir)}"


def refuse_second_peer(state_dir: Path) -> None:
    """Refuse to start a peer where one runs. The lock on the identity ensures it; this says it before anything slow.

    Raises:
        MachineError: a peer runs from there.
    """
    if running_peer(state_dir) is not None:
        raise MachineError(f"a peer runs from {state_dir} already", "one peer for a folder", "potluck stop ends it")


def join_command(state_dir: Path) -> str:
    """The command that goes on with the last run of this state folder. It names the folder unless it is the configured one."""
    from peer.settings.config import PeerConfig

    configured = PeerConfig.load({}).state_dir
    return "potluck join" if state_dir == configured else f"potluck join --state-dir {shlex.quote(str(state_dir))}"
