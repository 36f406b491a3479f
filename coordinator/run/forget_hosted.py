"""Deletes a hosted run: one that its owner gives up, and one that was never used and is to be opened anew with other numbers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from averaging.host.daemon_views import Row
from averaging.host.http_client import STATUS_ADDRESS_FILE
from averaging.host.log_file import LOG_FOLDER
from averaging.host.used_settings import SETTINGS_FILE
from averaging.notices.notifier import TOLD_FILE
from averaging.system.process_record import PROCESS_FILE
from coordinator.ledger.ledger import LEDGER_FILE, START_RECORD, open_ledger
from coordinator.run.hosted_runs import MANIFEST_FILE, hosted_runs
from coordinator.run.start_command import COMMAND_FILE
from protocol.errors import MachineError, StorageError
from protocol.identity.identity_file import open_identity
from protocol.tables import in_bytes, printable

IDENTITY_FILE: Final = "identity.key"
_LEDGER_FILES: Final = tuple(LEDGER_FILE + end for end in ("", ".count", "-wal", "-shm"))
_OF_THE_RUN: Final = (
    MANIFEST_FILE,
    *_LEDGER_FILES,
    "authority.key",
    "authority.der",
    "data",
    "data.unfinished",
    "checkpoints",
    "units",
    "public_model",
    "helper",
)
"""The manifest goes first: without one there is no run, whatever else is left of it."""

_OF_THE_HOST: Final = (
    SETTINGS_FILE,
    STATUS_ADDRESS_FILE,
    PROCESS_FILE,
    COMMAND_FILE,
    TOLD_FILE,
    LOG_FOLDER,
    IDENTITY_FILE,
)
_FEWEST_LETTERS: Final = 4
"""Of a run's id, as for joined runs."""


def is_hosted(folder: Path, name: str) -> bool:
    """Whether the run of this name, or whose id begins so, is hosted from a folder. Blocks."""
    return any(_is_called(row, name) for row in hosted_runs(folder))


def forget_hosted(folder: Path, name: str, confirm: Callable[[str], bool]) -> str:
    """Delete the run that is hosted from a folder, its keys and checkpoints included, once its owner has said yes to `confirm`'s
    question. Returns one line for the owner. Blocks.

    Raises:
        MachineError: its host runs.
        StorageError: it cannot be deleted.
    """
    row = next(row for row in hosted_runs(folder) if _is_called(row, name))
    called = f"{printable(row.get('name') or '?')} (hosted from {folder}, {in_bytes(row.get('disk_bytes'))})"
    question = f"delete {called}? Its checkpoints, invites and keys are lost: nobody can host it again or join it"
    identity = folder / IDENTITY_FILE
    if not identity.exists():
        return _asked(folder, called, question, confirm)
    try:
        with open_identity(identity):
            return _asked(folder, called, question, confirm)
    except StorageError:
        raise
    except MachineError as error:
        raise MachineError(f"{called}: {error.found}", "a host that has ended", "end it with: potluck stop") from error


def is_unused(folder: Path) -> bool:
    """Whether no peer was ever admitted to the run in a folder, and no start record and no commit is known. Blocks.

    Raises:
        StorageError: the ledger is damaged, so this cannot be known.
    """
    if not (folder / LEDGER_FILE).exists():
        return False  # it may be lost
    with open_ledger(folder / LEDGER_FILE) as ledger:
        return not ledger.peers() and ledger.get(START_RECORD) is None and not ledger.checkpoints()


def delete_run(folder: Path) -> None:
    """Delete the run in a folder, but not the host's identity, log and settings. Its host must not run. Blocks.

    Raises:
        StorageError: it cannot be deleted.
    """
    _delete(folder, _OF_THE_RUN)


def _is_called(row: Row, name: str) -> bool:
    run_id = str(row.get("run_id") or "")
    return name == row.get("name") or (len(name) >= _FEWEST_LETTERS and run_id.startswith(name.lower()))


def _asked(folder: Path, called: str, question: str, confirm: Callable[[str], bool]) -> str:
    if not confirm(question):
        return "nothing was deleted"
    _delete(folder, (*_OF_THE_RUN, *_OF_THE_HOST))
    with suppress(OSError):  # other files are in it
        folder.rmdir()
    return f"deleted: {called}"


def _delete(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        path = folder / name
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.exists() or path.is_symlink():
                os.unlink(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be deleted ({error.strerror})", "a writable folder") from error
