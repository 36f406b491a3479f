"""Files of certificates that the ledger needs no more: written whole, read for audits, never changed.

A file is xz-compressed: MAGIC, then the certificates in the order of their rounds, each after its length, u32 big-endian.
"""

from __future__ import annotations

import lzma
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from averaging.storage.file_storage import sync_folder
from protocol.errors import StorageError
from protocol.ids import UnitName

ARCHIVE_FOLDER: Final = "archive"
"""Folder in the host's folder."""

MAGIC: Final = b"potluck certificates 1\n"
_PRESET: Final = 1
"""Most bytes are signatures, which no effort compresses."""

_LENGTH_BYTES: Final = 4
MAX_FILE_BYTES: Final = 1 << 28
"""Of one file, unpacked: BLOCK_ROUNDS certificates of the most members are a tenth of that."""


def file_name(unit: UnitName, first_index: int, last_index: int) -> str:
    """Name of the file of these rounds."""
    return f"{unit}-{first_index:09d}-{last_index:09d}.xz"


def write_archive(folder: Path, name: str, certificates: Sequence[bytes]) -> bytes:
    """Write a file; durable when this returns. Blocks. Returns the SHA-256 of its bytes.

    Raises:
        StorageError: the disk is full or not writable; nothing is left behind.
    """
    parts = [MAGIC, *(part for raw in certificates for part in (len(raw).to_bytes(_LENGTH_BYTES, "big"), raw))]
    data = lzma.compress(b"".join(parts), preset=_PRESET)
    temporary = folder / f".writing-{name}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / name)
        sync_folder(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StorageError(
            f"{folder / name} could not be written ({error.strerror or error})",
            "a writable disk with space",
            "nothing was lost: these certificates stay in the ledger",
        ) from error
    return sha256(data).digest()


def read_archive(path: Path, expected_sha256: bytes) -> list[bytes]:
    """The certificates in a file, oldest first. Blocks.

    Raises:
        StorageError: it cannot be read, or is not what was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} could not be read ({error.strerror or error})", "the archive as written") from error
    if sha256(data).digest() != expected_sha256:
        raise StorageError(f"{path} is damaged", "the file as it was written", "restore a copy of the host's folder")
    plain = lzma.LZMADecompressor().decompress(data, MAX_FILE_BYTES)
    if not plain.startswith(MAGIC):
        raise StorageError(f"{path} is no archive of certificates", f"{MAGIC!r} first", "install the newest release")
    found, begin = list[bytes](), len(MAGIC)
    while begin < len(plain):
        stop = begin + _LENGTH_BYTES + int.from_bytes(plain[begin : begin + _LENGTH_BYTES], "big")
        if stop > len(plain):
            raise StorageError(f"{path} is cut short", "whole certificates", "restore a copy of the host's folder")
        found.append(plain[begin + _LENGTH_BYTES : stop])
        begin = stop
    return found
