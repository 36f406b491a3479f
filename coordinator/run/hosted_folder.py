"""The state folder of a host: its path, whether a run is hosted there, and the host's status."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError, MachineError, StorageError, UnreachableError

STOP_WITHIN_S: Final = 60.0


def host_folder(state_dir: Path | None) -> Path:
    """The given folder, or the one in the settings."""
    from coordinator.policy.config import HostConfig

    return HostConfig.load({"state_dir": state_dir}).state_dir


def require_run(folder: Path) -> Path:
    """Path of the ledger in a host's folder.

    Raises:
        ConfigError: no run was ever hosted from there.
    """
    from coordinator.ledger.ledger import LEDGER_FILE

    if not (folder / LEDGER_FILE).exists():
        raise ConfigError(
            f"no run is hosted from {folder}",
            "the folder of a hosted run",
            "start one with `potluck host RUN_FILE`, or name its folder with --state-dir",
        )
    return folder / LEDGER_FILE


def fetch_status(state_dir: Path | None) -> dict[str, object]:
    """The running host's /api/status.

    Raises:
        ConfigError: no run was ever hosted from there.
        UnreachableError: the host is not running.
    """
    from averaging.host.http_client import get_json, read_status_address
    from coordinator.run.start_command import last_command

    folder = host_folder(state_dir)
    require_run(folder)
    try:
        return get_json(read_status_address(folder) + "/api/status")
    except (UnreachableError, ConfigError, StorageError) as error:
        if is_running(folder):
            raise UnreachableError(
                f"the host of {folder} is starting or leaving", "", "ask again in a moment"
            ) from error
        raise UnreachableError(f"no host runs from {folder}", "", f"start it with: {last_command(folder)}") from error


def fetch_rows(folder: Path, what: str) -> list[dict[str, object]]:
    """All "peers" or "rounds" of the running host, of all pages. Blocks, at most some seconds a page.

    Raises:
        UnreachableError: the host is not running.
        ConfigError, StorageError: as `read_status_address`.
    """
    from averaging.host.http_client import get_rows, read_status_address

    return get_rows(read_status_address(folder), what)


def is_running(folder: Path) -> bool:
    """Whether a host runs from a folder. A peer that runs from it is none. Blocks."""
    from averaging.system.process_record import running_daemon
    from coordinator.run.start_command import COMMAND_FILE

    return (folder / COMMAND_FILE).exists() and running_daemon(folder) is not None


def refuse_second_host(folder: Path) -> None:
    """Refuse to start a host where one runs. The lock on the identity ensures it; this says it before anything slow.

    Raises:
        MachineError: a host runs from there.
    """
    if is_running(folder):
        raise MachineError(f"a host runs from {folder} already", "one host for a folder", "potluck stop ends it")


def stop_host(folder: Path) -> str:
    """Ask the host of a folder to leave, and wait until it has. Returns one line for the user. Blocks.

    Raises:
        UnreachableError: none runs from there.
        TemporaryError: it is still leaving.
    """
    from averaging.host.http_client import get_json, read_status_address
    from averaging.system.process_record import end_daemon, running_daemon
    from coordinator.run.hosted_runs import hosted_runs
    from coordinator.run.start_command import closing_words, last_command, run_at_close

    running = running_daemon(folder)
    if running is None:
        raise UnreachableError(f"no host runs from {folder}", "a running host", "see: potluck status")
    status: dict[str, object] = {}
    with suppress(UnreachableError, ConfigError, StorageError):  # it starts or leaves
        status = get_json(read_status_address(folder) + "/api/status")
    end_daemon(folder, running, "host", STOP_WITHIN_S)
    phases = [row["phase"] for row in hosted_runs(folder)]  # the run may have come to its end meanwhile
    run = run_at_close(next(iter(phases), None), status.get("num_here"))
    return f"the host has {closing_words(last_command(folder), run)}"
