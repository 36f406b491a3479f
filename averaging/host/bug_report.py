"""`potluck bugreport`: facts about this machine and its daemons in a zip file, without secrets.

Gathers and writes; protocol/identity/redaction.py decides what is hidden.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from averaging.host.daemon_views import DaemonView, LocalDaemon
from averaging.host.log_file import FILE_BYTES, LOG_FOLDER, log_files
from averaging.system.machine_limits import read_cores, read_memory
from averaging.system.output_file import is_printed, write_output
from averaging.system.usual_folders import home_folder
from protocol.errors import ConfigError, PotluckError, StorageError
from protocol.identity.redaction import Redactor
from protocol.ids import PROTOCOL_VERSION

Entries = Mapping[str, str]
"""Names in the zip, and their texts."""

_PACKAGES: Final = (
    "potluck-train", "torch", "hivemind", "trio", "grpcio", "protobuf", "numpy", "pydantic", "cryptography", "structlog", "typer",
)  # fmt: skip
_MOST_FILES: Final = 5000
"""Most lines of a layout; a run of a year has some thousand files."""

_LOGS_EACH: Final = 2
"""Log files of each daemon in a report, the newest ones."""

_TELLING: Final = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL")


def gathered(found: Sequence[tuple[LocalDaemon, Path]], *, keeps_addresses: bool) -> dict[str, str]:
    """The entries of a report about these daemons and their folders, without secrets. Blocks, at most some seconds for each."""
    entries = {"machine.json": as_json(machine_facts([folder for _, folder in found]))}
    secrets = secrets_of_environment()
    for kind, folder in found:
        view = _view(kind, folder)
        secrets += kind.secrets(folder)
        status = {"is_running": view.is_running, "note": view.note, "status": view.status}
        entries |= {
            f"{view.kind}/status.json": as_json(status),
            f"{view.kind}/settings.json": as_json(kind.settings(folder)),
            f"{view.kind}/files.txt": layout(folder),
        }
        entries |= {f"{view.kind}/logs/{name}": text for name, text in newest_logs(folder, kind.LOG_NAME).items()}
    return cleaned(entries, Redactor(secrets, hides_addresses=not keeps_addresses, home=home_folder()))


def _view(kind: LocalDaemon, folder: Path) -> DaemonView:
    """The daemon's view. A failure, such as a damaged ledger, becomes its note, because reports are about failures."""
    try:
        return kind.read_daemon(folder)
    except PotluckError as error:
        name = kind.LOG_NAME.removesuffix(".log")
        return DaemonView(name, str(folder), is_running=False, note=error.one_line(), status={})


def machine_facts(folders: Sequence[Path]) -> dict[str, object]:
    """Versions, processors, memory and disk, in bytes. Blocks for milliseconds."""
    memory, cores = read_memory(), read_cores()
    return {
        "protocol_version": PROTOCOL_VERSION,
        "python": sys.version,
        "system": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "num_cpus": cores.of_machine,
        "usable_cpus": cores.usable,
        "load_average": os.getloadavg(),
        "memory_bytes": memory.total_bytes,
        "memory_available_bytes": memory.available_bytes,
        "disk_free_bytes": {str(folder): _free_bytes(folder) for folder in folders},
        "potluck_variables": sorted(name for name in os.environ if name.startswith("POTLUCK_")),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def secrets_of_environment() -> list[bytes]:
    """Values of variables whose names say that they are secret."""
    return [
        value.encode("utf8", "surrogateescape")
        for name, value in os.environ.items()
        if any(word in name.upper() for word in _TELLING)
    ]


def layout(folder: Path) -> str:
    """Every file below the folder, its size in bytes before its name; unreadable ones are skipped."""
    lines = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                lines.append((str(path.relative_to(folder)), path.lstat().st_size))
            except OSError:
                continue
    shown = [f"{size:>14,}  {name}" for name, size in sorted(lines)[:_MOST_FILES]]
    return "\n".join([*shown, f"{len(lines)} files, {sum(size for _, size in lines):,} bytes"]) + "\n"


def newest_logs(folder: Path, name: str) -> dict[str, str]:
    """The newest log files of the daemon whose log is called `name`, by their names."""
    found = {}
    for path in log_files(folder / LOG_FOLDER / name)[:_LOGS_EACH]:
        try:
            with path.open("rb") as file:
                found[path.name] = file.read(FILE_BYTES).decode("utf8", "replace")
        except OSError:
            continue
    return found


def as_json(value: object) -> str:
    """The value, indented for readers."""
    return json.dumps(value, indent=1, default=str) + "\n"


def cleaned(entries: Entries, redactor: Redactor) -> dict[str, str]:
    """The entries without secrets."""
    return {name: redactor.clean(text) for name, text in entries.items()}


def write_zip(path: Path, entries: Entries) -> None:
    """Write the zip whole or not at all, readable by the owner, or to the pipe behind standard output.

    Raises:
        UsageError: standard output is a terminal.
        ConfigError: the file exists already.
        StorageError: it cannot be written.
    """
    data = _zipped(entries)
    if is_printed(path):
        write_output(path, data)
        return
    if path.exists():
        raise ConfigError(f"{path} exists already", "a new file", "choose another name with --out, or remove it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(
            f"{path} cannot be written ({error.strerror})", "a writable folder with space", "choose another with --out"
        ) from error


def _zipped(entries: Entries) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in entries.items():
            archive.writestr(name, text.encode("utf8", "replace"))
    return made.getvalue()
