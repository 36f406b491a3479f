"""Deletes a run that was joined: its state, credential and fetched models. The identity and the cached data stay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from averaging.storage.file_storage import folder_bytes
from peer.membership.named_run import find_run, run_name
from peer.membership.saved_membership import is_known, last_run_folder
from protocol.errors import ConfigError, MachineError, StorageError
from protocol.identity.identity_file import open_identity
from protocol.tables import in_bytes, printable

_FINAL_STATUS: Final = "final_status.json"
"""The last status of the peer in its last run (peer/status/status.py). It must not outlive the run."""

_DOOMED: Final = ".forgotten-"
"""The folder has another name while it is deleted, so that half of it never looks like a run."""


def forget_run(state_dir: Path, name: str, confirm: Callable[[str], bool]) -> str:
    """Delete the run of that name or id, once the owner has said yes to `confirm`'s question. Returns one line for the owner. Blocks.

    Raises:
        ConfigError: no such run, or several.
        MachineError: a peer runs in it.
        StorageError: it cannot be deleted.
    """
    folder = find_run(state_dir, name)
    identity = state_dir / "identity"
    is_last = folder == last_run_folder(state_dir) or not is_known(folder)
    called = f"{printable(run_name(folder) or 'not joined')} ({folder.name}, {in_bytes(folder_bytes(folder))})"
    question = f"delete {called} in {folder.parent}? Its training that was not counted yet is lost"
    try:
        if not identity.exists():
            return _asked(folder, called, question, confirm, is_last)
        with open_identity(identity):
            return _asked(folder, called, question, confirm, is_last)
    except MachineError as error:
        if isinstance(error, StorageError):
            raise
        if is_last:
            raise MachineError(
                f"{called}: {error.found}", "a peer that has ended", "end it with: potluck stop"
            ) from error
        return _asked(folder, called, question, confirm, is_last)  # the peer runs in another run


def is_joined(state_dir: Path, name: str) -> bool:
    """Whether a run of that name or id was joined from a state folder. Blocks."""
    try:
        return bool(name) and find_run(state_dir, name).is_dir()
    except ConfigError:
        return False


def _asked(folder: Path, called: str, question: str, confirm: Callable[[str], bool], is_last: bool) -> str:
    if not confirm(question):
        return "nothing was deleted"
    doomed = folder.with_name(_DOOMED + folder.name)
    try:
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed)
        if is_last:
            (folder.parent.parent / _FINAL_STATUS).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be deleted ({error.strerror})", "a writable folder") from error
    return (
        f"deleted: {called}; text that it fetched may stay in {folder.parent.parent / 'data'}, a cache of limited size"
    )


@contextmanager
def cleared_if_refused(folder: Path) -> Iterator[None]:
    """Delete the folder of a run at the end of the block if its host never admitted this peer. A folder with state of a unit stays:
    its membership was removed by hand, and its votes count. Blocks.
    """
    try:
        yield
    finally:
        _clear(folder)


def _clear(folder: Path) -> None:
    with suppress(OSError):
        if is_known(folder) or any(path.is_dir() for path in folder.iterdir()):
            return
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
