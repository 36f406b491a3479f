"""The identity file: the one secret of a peer, readable by its owner only, held by one process at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError, MachineError, StorageError
from protocol.identity.identity import Identity, identity_from_libp2p_bytes
from protocol.identity.key_disk import EXPECTED, REMEDY, missing_on_disk


@dataclass(frozen=True, slots=True)
class HeldIdentity:
    """An identity whose file is locked by this process.

    Attributes:
        was_created: True when this call made the file: show its path once, and say "back this up".
    """

    identity: Identity
    path: Path
    was_created: bool


@contextmanager
def open_identity(path: Path) -> Iterator[HeldIdentity]:
    """Load the identity at `path`, or make one; the file stays locked until the context ends.

    Raises:
        MachineError: unreadable, readable by others, on a disk that cannot keep it to its owner, or in use by another process.
        ConfigError: not an identity file.
    """
    was_created = _create_if_absent(path)
    descriptor = _open_checked(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MachineError(
                f"identity {path} is in use by another process",
                "one process per identity",
                "stop the other one, or use another --state-dir",
            ) from error
        except OSError as error:
            raise MachineError(f"the disk of {path} has no file locks ({error.strerror})", EXPECTED, REMEDY) from error
        yield HeldIdentity(_read(descriptor, path), path, was_created)
    finally:
        os.close(descriptor)


def read_identity(path: Path) -> Identity:
    """The identity at `path`, for signing next to the process that holds it. The caller must not take part under its name.

    Raises:
        MachineError: not there, unreadable, or readable by others.
        ConfigError: not an identity file.
    """
    descriptor = _open_checked(path)
    try:
        return _read(descriptor, path)
    finally:
        os.close(descriptor)


def secrets_of(path: Path) -> tuple[bytes, ...]:
    """The secret bytes of the identity at `path`, to search texts for them: the file and the seed in it. Empty when it cannot be
    read.
    """
    try:
        with path.open("rb") as file:
            whole = file.read(4096)
    except OSError:
        return ()
    return whole, whole[-64:-32]


def _read(descriptor: int, path: Path) -> Identity:
    try:
        return identity_from_libp2p_bytes(os.pread(descriptor, 4096, 0))
    except ConfigError as error:
        raise ConfigError(
            f"{path}: {error.found}", error.expected, "restore your backup, or move the file away"
        ) from error


def _create_if_absent(path: Path) -> bool:
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_disk(path)
        _write_new(path, Identity(secrets.token_bytes(32)).libp2p_private_key_bytes())
    except FileExistsError:
        return False  # another process made it first
    except OSError as error:
        raise StorageError(
            f"identity {path} cannot be written: {error.strerror}", "a writable folder", "choose another --state-dir"
        ) from error
    return True


def _write_new(path: Path, data: bytes) -> None:
    """Write all or nothing, and never over an existing file: a lost key cannot be restored."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        _name(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    _sync_folder(path.parent)


def _name(temporary: Path, path: Path) -> None:
    """Give the file its name if no file has that name yet. Raises FileExistsError, or another OSError."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # the disk has no hard links: claim the name with an empty file, which the whole one replaces
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(path)
            raise


def _check_disk(path: Path) -> None:
    """Raises MachineError: the disk cannot hold a key. OSError: it takes no file."""
    missing = missing_on_disk(path.parent)
    if missing:
        raise MachineError(f"the disk of {path} {missing}", EXPECTED, REMEDY)


def _sync_folder(folder: Path) -> None:
    """Sync a folder: a file's name is in its folder, which is synced by itself."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_checked(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        is_another_owner = isinstance(error, PermissionError)
        raise MachineError(
            f"identity {path} cannot be opened: {error.strerror}",
            "a file that you own",
            f"chown it, then chmod 600 {path}" if is_another_owner else "choose another --state-dir, or move it away",
        ) from error
    mode = os.fstat(descriptor).st_mode & 0o777
    if mode & 0o077:
        os.close(descriptor)
        with suppress(OSError):  # where no other file can be made, the modes of this one count
            _check_disk(path)
        raise MachineError(f"identity {path} has mode {mode:04o}: others can read it", "mode 0600", f"chmod 600 {path}")
    return descriptor
