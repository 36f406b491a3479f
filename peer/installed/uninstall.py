"""`potluck uninstall`: removes what a peer has written on this machine. Deletes only names of our own and follows no link."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from averaging.host.http_client import STATUS_ADDRESS_FILE
from averaging.host.log_file import LOG_FOLDER
from averaging.host.used_settings import SETTINGS_FILE
from averaging.system.known_places import Place, measured
from averaging.system.usual_folders import state_root
from peer.cards.layout_speeds import SPEEDS_FILE
from peer.checks.reach import TOLD_FILE
from peer.history.round_log import HISTORY_FOLDER
from peer.installed.places import DATA, IDENTITY
from peer.membership.kept_addresses import FILE_NAME as ADDRESSES_FILE
from peer.owner.daily_traffic import TRAFFIC_FILE
from peer.owner.pause_file import PAUSE_FILE
from peer.owner.running_peer import PROCESS_FILE, running_peer, stop_peer
from peer.owner.user_service import UNIT, Runner, remove_service, run_systemctl
from peer.profile.profile_files import PROFILE_FOLDER
from peer.settings.config import PeerConfig
from peer.status.status import FINAL_STATUS_FILE
from peer.training.replica.compile_folder import COMPILE_FOLDER
from protocol.errors import ConfigError, MachineError, StorageError
from protocol.identity.identity_file import open_identity
from protocol.tables import in_bytes, printable

_PACKAGE: Final = "potluck-train"

_OURS: Final = {
    "runs": "runs: their state, credentials and fetched models",
    DATA: "data cache",
    LOG_FOLDER: "logs",
    HISTORY_FOLDER: "history of your rounds",
    COMPILE_FOLDER: "compiled code of training",
    PROFILE_FOLDER: "profile of training steps",
    IDENTITY: "identity: without a copy nobody can be this peer again",
}
"""The large parts of a state folder."""

_SMALL: Final = (
    "last_run",
    "session",
    ADDRESSES_FILE,
    TOLD_FILE,
    SPEEDS_FILE,
    TRAFFIC_FILE,
    PAUSE_FILE,
    PROCESS_FILE,
    FINAL_STATUS_FILE,
    SETTINGS_FILE,
    STATUS_ADDRESS_FILE,
)
_FORMS: Final = "|".join(re.escape(form) for name in _SMALL for form in (name, name.rpartition(".")[0]) if form)
_UNFINISHED: Final = re.compile(rf"({_FORMS})\.(unfinished|tmp|[0-9a-f]{{8}})|\.{IDENTITY}\.[0-9]+")
"""The remains of a small file that a killed process was writing."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The files that a peer has written on this machine.

    Attributes:
        folder: its state folder.
        ours: what will be deleted, each in `folder`.
        others: names in `folder` that no peer writes; they stay.
        unit: the file of the user's service; None if there is none.
    """

    folder: Path
    ours: tuple[Place, ...]
    others: tuple[str, ...]
    unit: Path | None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not self.ours and self.unit is None


def find_installed(folder: Path, unit: Path) -> Installed:
    """Find the files of a peer. Blocks.

    Raises:
        ConfigError: the state folder is a link.
        StorageError: it cannot be read.
    """
    if folder.is_symlink():
        raise ConfigError(
            f"{folder} is a link", "the folder itself", f"name it: --state-dir {printable(folder.resolve())}"
        )
    try:
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
    except OSError as error:
        raise StorageError(f"{folder} cannot be read ({error.strerror})", "a readable folder") from error
    ours = [measured(_OURS.get(name, "note of its own"), folder / name) for name in names if _is_ours(name)]
    others = tuple(name for name in names if not _is_ours(name))
    return Installed(folder, tuple(ours), others, unit if os.path.lexists(unit) else None)


def _is_ours(name: str) -> bool:
    return name in _OURS or name in _SMALL or _UNFINISHED.fullmatch(name) is not None


def plan_lines(found: Installed) -> list[str]:
    """List the removals, with sizes, and what stays."""
    lines = [f"in {printable(found.folder)}:"] if found.ours else []
    large = [place for place in found.ours if place.path.name in _OURS]
    small = [place for place in found.ours if place.path.name not in _OURS]
    lines += [f"  {in_bytes(p.num_bytes):>8}  {p.path.name}  {p.what}{_link_note(p)}" for p in large]
    if small:
        total = sum(place.num_bytes or 0 for place in small)
        lines.append(f"  {in_bytes(total):>8}  {len(small)} small files, such as {small[0].path.name}")
    if running_peer(found.folder) is not None:
        lines.append("the running peer leaves first, with a goodbye")
    if found.unit is not None:
        lines.append(f"the service of your own systemd: {printable(found.unit)}")
    if found.others:
        shown = ", ".join(printable(name) for name in found.others[:5])
        lines.append(f"not ours, stays there: {shown}{' ...' if len(found.others) > 5 else ''}")
    return lines


def _link_note(place: Place) -> str:
    return f" ({place.note}; only the link is removed)" if place.path.is_symlink() else ""


def uninstall(
    found: Installed,
    confirm: Callable[[str], bool],
    systemctl: Runner = run_systemctl,
    is_hosted: Callable[[Path], bool] = lambda _folder: False,
) -> list[str]:
    """Remove what was found, once the owner has said yes. Returns lines for the owner. Blocks until a running peer has left.

    Raises:
        ConfigError: a run is hosted from the same folder.
        MachineError: another process uses the identity.
        TemporaryError: the peer is still leaving.
        StorageError: something cannot be deleted.
    """
    if is_hosted(found.folder):
        raise ConfigError(
            f"a run is hosted from {found.folder}, too", "a folder of the peer alone", "delete what you want by hand"
        )
    if not confirm("remove all of this?"):
        return ["nothing was removed"]
    said = [_end_service(found.unit, systemctl)] if found.unit is not None else []
    if running_peer(found.folder) is not None:
        stop_peer(found.folder)
        said.append("the peer has left")
    with _unused(found.folder):
        for name in sorted(os.listdir(found.folder)) if found.folder.is_dir() else []:
            if _is_ours(name):  # listed again: a peer that leaves writes its last status
                _delete(found.folder / name)
    with suppress(OSError):
        found.folder.rmdir()  # only if it is empty
    with suppress(OSError, ConfigError):
        if found.folder.parent == state_root():
            found.folder.parent.rmdir()  # a host's folder keeps it
    stays = "" if not found.folder.exists() else ", apart from what is not ours"
    return [*said, f"removed: {printable(found.folder)}{stays}"]


def _end_service(unit: Path, systemctl: Runner) -> str:
    """Stop and remove the service. Without a systemd that answers, its files alone are deleted."""
    try:
        return remove_service(unit, systemctl).partition(";")[0]
    except StorageError:
        raise
    except MachineError as error:
        _delete(unit)
        with suppress(FileNotFoundError):
            (unit.parent / "default.target.wants" / UNIT).unlink()  # the link that systemd made of it
        return f"deleted: {printable(unit)} ({error.found})"


@contextmanager
def _unused(folder: Path) -> Iterator[None]:
    """Hold the identity's lock, so that no peer starts from the folder meanwhile."""
    if not (folder / IDENTITY).is_file():
        yield
        return
    with open_identity(folder / IDENTITY):
        yield


def _delete(path: Path) -> None:
    """Delete a file, a link, or a folder with all that is in it; what a link leads to stays."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)  # removes links, and does not follow them
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{error.filename or path} cannot be deleted ({error.strerror})",
            "a folder that you may write",
            "mend that, and say `potluck uninstall` again",
        ) from error


def what_stays(host_folder: Path | None) -> list[str]:
    """Name the rest, which the owner may remove by hand: settings, a hosted run, and the program itself."""
    file = PeerConfig.file()
    lines = [f"stays, because you wrote it: {file}"] if file is not None and file.exists() else []
    if host_folder is not None:
        lines.append(f"stays, with the run that you host: {printable(host_folder)}")
    return [*lines, f"to remove the program itself: {program_removal(sys.prefix, sys.executable, *_installer())}"]


def program_removal(prefix: str, executable: str, installer: str, is_editable: bool) -> str:
    """The command that removes the package from the place where this one runs."""
    parts = Path(prefix).parts
    if is_editable or not installer:
        return "delete the folder of your clone"
    if "uv" in parts and "tools" in parts:
        return f"uv tool uninstall {_PACKAGE}"
    if "uv" in parts and ("archive-v0" in parts or "environments-v2" in parts):
        return f"uv cache clean {_PACKAGE}"
    if "pipx" in parts:
        return f"pipx uninstall {_PACKAGE}"
    return f"uv pip uninstall {_PACKAGE}" if installer == "uv" else f"{executable} -m pip uninstall {_PACKAGE}"


def _installer() -> tuple[str, bool]:
    """The program that installed the package, "" for none, and whether it is a link to a clone."""
    try:
        found = distribution(_PACKAGE)
    except PackageNotFoundError:
        return "", False
    direct = found.read_text("direct_url.json") or ""
    return (found.read_text("INSTALLER") or "pip").strip(), '"editable": true' in direct
