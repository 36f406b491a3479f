"""What a peer keeps of its membership in one run, so that it can come back while the coordinator is away. Mode 0600."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import Base64Bytes, BaseModel, ConfigDict, ValidationError

from protocol.errors import StorageError

FILE_NAME: Final = "membership.json"


class SavedMembership(BaseModel):
    """Credential, TLS key and everything the coordinator said at admission; bytes are base64 in the file."""

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


def save_membership(folder: Path, membership: SavedMembership) -> None:
    """Write the file whole or not at all.

    Raises:
        StorageError: the folder cannot be written.
    """
    path = folder / FILE_NAME
    temporary = path.with_suffix(".unfinished")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(membership.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "a writable folder with space") from error


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


def take_session(folder: Path) -> int:
    """The number of this process life, counted on disk before it is used (see envelope.first_sequence).

    Raises:
        StorageError: the folder cannot be written.
    """
    path = folder / "session"
    temporary = path.with_suffix(".unfinished")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        session = int(path.read_text()) + 1 if path.exists() else 1
        with open(temporary, "w", encoding="ascii") as file:
            file.write(str(session))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} cannot be counted up: {error}", "a writable folder", "remove the file if it is damaged"
        ) from error
    return session
