"""Finds a run that was joined from a state folder: by its name, by the beginning of its id, or the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from peer.membership.saved_membership import FILE_NAME, last_run_folder, load_membership, run_folders
from protocol.errors import ConfigError, PotluckError
from protocol.identity.verifier import Ed25519Verifier
from protocol.run.manifest import open_manifest
from protocol.tables import printable

_FEWEST_LETTERS: Final = 4
"""Of a run's id. Fewer would fit several runs soon."""


def find_run(state_dir: Path, name: str) -> Path:
    """The folder of the run of that name, or whose id begins so; of the last run for "". A run that was never joined to the end
    has an id and no name. Blocks.

    Raises:
        ConfigError: there is none, or there are several.
    """
    folders = run_folders(state_dir)
    if not name:
        last = last_run_folder(state_dir)
        if last is None:
            raise ConfigError(f"no run was joined from {state_dir}", "a joined run", "potluck join potluck1:...")
        return last
    by_id = [folder for folder in folders if len(name) >= _FEWEST_LETTERS and folder.name.startswith(name.lower())]
    found = [folder for folder in folders if run_name(folder) == name] or by_id
    if len(found) == 1:
        return found[0]
    shown = printable(name)[:80]
    if found:
        ids = ", ".join(folder.name for folder in found)
        raise ConfigError(f"{len(found)} runs are called {shown}", f"one run: {ids}", "name it by its id")
    known = ", ".join(f"{run_name(folder) or '?'} ({folder.name})" for folder in folders)
    expected = f"one of these: {printable(known)}" if known else "a run that was joined"
    raise ConfigError(f"no run {shown} was joined from {state_dir}", expected, "see: potluck runs")


def run_name(folder: Path) -> str | None:
    """The name of the run in `folder`; None if it was never joined to the end, or its files are damaged. Blocks."""
    try:
        saved = load_membership(folder)
        if saved is None:
            return None
        return open_manifest(saved.manifest, verifier=Ed25519Verifier()).config.run.name
    except PotluckError:
        return None


def run_of(folder: Path, name: str = "") -> Path | None:
    """The run's folder for a peer's state folder, or for the run's folder itself; None if `folder` is neither. Raises as
    `find_run`.
    """
    if (folder / FILE_NAME).is_file():
        return folder
    return find_run(folder, name) if run_folders(folder) else None
