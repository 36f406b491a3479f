"""The saved membership of one run, which lets a peer return while the coordinator is away. File mode 0600."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import Base64Bytes, BaseModel, ConfigDict, ValidationError

from protocol.errors import LocalProtocolError, StorageError
from protocol.identity.envelope import next_session
from protocol.ids import RunId

FILE_NAME: Final = "membership.json"
_RUNS: Final = "runs"
_RUN_LETTERS: Final = 16
"""Letters of a run's id in the name of its folder."""

_LAST_RUN: Final = "last_run"
"""In the state folder: the name of the folder of the run that was joined last."""

_HOST_HEARD: Final = "host_heard"
KEPT_PEERS: Final = 16
KEPT_ADDRESSES_EACH: Final = 4

_CHANGING: Final = threading.Lock()
"""Several services of one daemon change the file, each on its own thread. The identity lock keeps out other processes."""


class SavedMembership(BaseModel):
    """Credential, TLS key and the coordinator's answer at admission; bytes are base64 in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    addresses: tuple[str, ...]
    ca_certificate_der: Base64Bytes
    tls_key_pem: Base64Bytes
    credential: Base64Bytes
    manifest: Base64Bytes
    dataset: Base64Bytes
    start_record: Base64Bytes
    coordinator_peer_id: str
    bootstrap: tuple[str, ...]
    peer_addresses: tuple[str, ...] = ()
    """Last known addresses of other peers, those listed longest first."""

    @property
    def ways_in(self) -> tuple[str, ...]:
        """Addresses to dial. If the host is away, the last known peers are the way back in."""
        return tuple(dict.fromkeys((*self.bootstrap, *self.peer_addresses)))


def run_folder(state_dir: Path, run_id: RunId) -> Path:
    """The folder of one run."""
    return state_dir / _RUNS / run_id.hex()[:_RUN_LETTERS]


def run_folders(state_dir: Path) -> list[Path]:
    """The folders of all saved runs, sorted by name."""
    return sorted(path for path in (state_dir / _RUNS).glob("[0-9a-f]" * _RUN_LETTERS) if path.is_dir())


def is_known(folder: Path) -> bool:
    """Whether this peer was ever admitted to the run in `folder`."""
    return (folder / FILE_NAME).exists()


def last_run_folder(state_dir: Path) -> Path | None:
    """The run that was joined last, None when no run was ever joined from here.

    Without a record, or with one of a run that is gone, it is the run whose membership was written last: releases without the
    record left such folders.
    """
    try:
        recorded = state_dir / _RUNS / (state_dir / _LAST_RUN).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        recorded = None
    if recorded in run_folders(state_dir) and recorded is not None and is_known(recorded):
        return recorded
    files = sorted((state_dir / _RUNS).glob(f"*/{FILE_NAME}"), key=lambda path: path.stat().st_mtime)
    return files[-1].parent if files else None


def remember_last_run(folder: Path) -> None:
    """Record that the run in `folder` was joined last. Blocks.

    Raises:
        StorageError: the state folder cannot be written.
    """
    path = folder.parent.parent / _LAST_RUN
    try:
        write_durably(path, folder.name.encode("ascii"))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "a writable folder with space") from error


def save_membership(folder: Path, membership: SavedMembership) -> None:
    """Write the file whole or not at all.

    Raises:
        StorageError: the folder cannot be written.
    """
    path = folder / FILE_NAME
    try:
        write_durably(path, membership.model_dump_json().encode())
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "a writable folder with space") from error


def lasting(addresses: Iterable[str]) -> tuple[str, ...]:
    """The first KEPT_PEERS peers of these multiaddresses, with KEPT_ADDRESSES_EACH of each. Each address ends in /p2p/<peer id>."""
    by_peer: dict[str, list[str]] = {}
    for address in addresses:
        by_peer.setdefault(address.rpartition("/p2p/")[2], []).append(address)
    kept = list(by_peer.values())[:KEPT_PEERS]
    return tuple(address for of_peer in kept for address in of_peer[:KEPT_ADDRESSES_EACH])


def with_kept(addresses: tuple[str, ...], kept: tuple[str, ...]) -> tuple[str, ...]:
    """`addresses`, filled up with kept addresses of peers not among them while there is room. After a network partition, or with
    few peers left, those lead back to the others.
    """
    listed = {address.rpartition("/p2p/")[2] for address in addresses}
    others = [old for old in kept if old.rpartition("/p2p/")[2] not in listed]
    return lasting((*addresses, *others))


def remember_peers(folder: Path, addresses: tuple[str, ...]) -> None:
    """Save the addresses of other peers (`with_kept`). Blocks.

    Raises:
        StorageError: the file is damaged or cannot be written.
    """
    with _CHANGING:
        saved = load_membership(folder)
        if saved is not None:
            _save_changed(folder, saved, peer_addresses=with_kept(addresses, saved.peer_addresses))


def remember_start(folder: Path, start_record: bytes) -> None:
    """Save the host's start record. Blocks.

    Raises:
        StorageError: the file is damaged or cannot be written.
    """
    _change(folder, start_record=start_record)


def remember_credential(folder: Path, credential: bytes, tls_key_pem: bytes) -> None:
    """Save a newer credential and its key. Blocks.

    Raises:
        StorageError: the file is damaged or cannot be written.
    """
    _change(folder, credential=credential, tls_key_pem=tls_key_pem)


def _change(folder: Path, **values: object) -> None:
    with _CHANGING:
        saved = load_membership(folder)
        if saved is not None:
            _save_changed(folder, saved, **values)


def _save_changed(folder: Path, saved: SavedMembership, **values: object) -> None:
    if any(getattr(saved, name) != value for name, value in values.items()):
        save_membership(folder, saved.model_copy(update=values))


def write_durably(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and durably: the file is synced, then its directory. Blocks; raises OSError."""
    from averaging.storage.file_storage import (
        sync_folder,
    )  # imports numpy; `potluck join` reads a membership before that

    temporary = path.with_suffix(".unfinished")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def load_membership(folder: Path) -> SavedMembership | None:
    """The saved membership, None when there is none.

    Raises:
        StorageError: damaged; remove it and join with an invite again.
    """
    path = folder / FILE_NAME
    try:
        return SavedMembership.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StorageError(
            f"{path} cannot be read", "the file as it was written", "remove it and join with an invite again"
        ) from error


def take_session(folder: Path, now_unix_s: float) -> int:
    """The number of this process life, saved before it is used (see envelope.next_session).

    Raises:
        StorageError: the folder cannot be written, or the file is damaged.
    """
    path = folder / "session"
    try:
        session = next_session(int(path.read_text()) if path.exists() else 0, now_unix_s)
        write_durably(path, str(session).encode("ascii"))
    except (OSError, ValueError, LocalProtocolError) as error:
        raise StorageError(
            f"the session number in {path} cannot be increased: {error}",
            "a writable folder",
            "remove the file if it is damaged",
        ) from error
    return session


def remember_host_heard(folder: Path, unix_s: float) -> None:
    """Save when the host was last heard. Blocks.

    Raises:
        StorageError: the folder cannot be written.
    """
    path = folder / _HOST_HEARD
    try:
        write_durably(path, str(int(unix_s)).encode("ascii"))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "a writable folder with space") from error


def host_heard_s(folder: Path) -> float:
    """When the host was last heard, unix time; 0 if it was never saved or cannot be read. An unreadable value only costs the grace
    time for voters.
    """
    try:
        return float(int((folder / _HOST_HEARD).read_text()))
    except (OSError, ValueError):
        return 0.0
