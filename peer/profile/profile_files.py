"""The files by which the owner asks for a profile and gets it, in the peer's state folder. The newest profile replaces the one before.

A file, not a network interface: only the owner can write the folder, and no web page can reach it.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from averaging.system.private_file import write_private
from peer.training.profiling.profile_summary import (
    MOST_STEPS,
    MOST_SUMMARY_BYTES,
    SUMMARY_FILE,
    TRACE_FILE,
    ProfileSummary,
)
from protocol.errors import StorageError

PROFILE_FOLDER: Final = "profile"
REQUEST_FILE: Final = "request.json"
FRESH_S: Final = 60.0
"""A request that is older was made to a peer that did not run."""

_MOST_REQUEST_BYTES: Final = 1000
_LATEST_UNIX_S: Final = 253_000_000_000


class ProfileRequest(BaseModel):
    """A wish for a profile. `request` tells its answer from others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    num_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)]
    asked_unix_s: Annotated[float, Field(ge=0, lt=_LATEST_UNIX_S)]


def profile_folder(state_dir: Path) -> Path:
    """The folder of requests and answers."""
    return state_dir / PROFILE_FOLDER


def write_request(state_dir: Path, num_steps: int, now_unix_s: float) -> ProfileRequest:
    """Ask for a profile, whole or not at all. Blocks.

    Raises:
        StorageError: the folder cannot be written.
    """
    request = ProfileRequest(request=secrets.token_hex(8), num_steps=num_steps, asked_unix_s=now_unix_s)
    folder = profile_folder(state_dir)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        write_private(folder / REQUEST_FILE, request.model_dump_json())
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written: {error.strerror}", "", "ask from the account of the peer's owner"
        ) from error
    return request


def take_request(state_dir: Path, now_unix_s: float) -> ProfileRequest | None:
    """The request that waits, which is removed; None without one, or for one that is old or makes no sense. Blocks."""
    path = profile_folder(state_dir) / REQUEST_FILE
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_REQUEST_BYTES + 1)
        path.unlink()
        request = ProfileRequest.model_validate_json(data[:_MOST_REQUEST_BYTES])
    except (OSError, ValidationError):
        return None
    return request if abs(now_unix_s - request.asked_unix_s) <= FRESH_S else None


def withdraw_request(state_dir: Path) -> bool:
    """Remove a request that nobody has taken. Returns whether there was one."""
    try:
        (profile_folder(state_dir) / REQUEST_FILE).unlink()
    except OSError:
        return False
    return True


def write_problem(state_dir: Path, request: ProfileRequest, problem: str) -> None:
    """Answer that there is no profile, and why. A folder that takes no writes is left as it is."""
    summary = ProfileSummary(request=request.request, problem=problem)
    with suppress(OSError):
        write_private(profile_folder(state_dir) / SUMMARY_FILE, summary.model_dump_json())


def read_summary(state_dir: Path, request: ProfileRequest) -> ProfileSummary | None:
    """The answer to a request; None while there is none. Blocks.

    Raises:
        StorageError: it cannot be read, or makes no sense.
    """
    path = profile_folder(state_dir) / SUMMARY_FILE
    try:
        with path.open("rb") as file:
            data = file.read(MOST_SUMMARY_BYTES + 1)
        summary = ProfileSummary.model_validate_json(data)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise StorageError(f"{path} makes no sense", "a profile's summary", "remove it, and ask again") from error
    return summary if summary.request == request.request else None


def trace_path(state_dir: Path) -> Path:
    """The newest trace."""
    return profile_folder(state_dir) / TRACE_FILE
