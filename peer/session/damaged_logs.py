"""A round log damaged before its end is set aside and kept. The peer recovers without a person's help.

Promises and votes after the damage are unknown and must not be contradicted. The peer takes a new incarnation number (R3), starts
without verified state, and fetches lineage and state from others. If no peer has them, it waits and says so
(peer/session/await_state.py). The damaged file is never removed, so that a person can examine it.

The log of the moves of all units holds no vote. Records after damage in it are recovered from the units' own logs.

Rules: R3 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

from averaging.rounds.head_vector import VECTOR_LOG
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.log_entries import LOG_NAME
from averaging.storage.file_storage import DamagedLogError, check_log, sync_folder
from peer.membership.incarnation import forget_incarnation
from protocol.errors import StorageError

log = structlog.get_logger()

_KEPT: Final = ".damaged-"
_VOTES_LOST: Final = (
    "this peer votes as one with a new disk, and fetches the log's rounds from other peers, if any has them"
)
_NOTHING_LOST: Final = "its content is also in the logs of the units"


def set_aside(folder: Path) -> tuple[str, ...]:
    """Rename the damaged logs in a run's folder, including its units'. Returns one sentence for each. Call before taking the disk's
    incarnation number. Blocks.

    Raises:
        StorageError: a log cannot be read or renamed; nothing was lost.
    """
    sentences: list[str] = []
    for path in (*sorted(folder.glob(f"*/{LOG_NAME}")), folder / VECTOR_LOG):
        try:
            check_log(path)
        except DamagedLogError as error:
            kept = _keep(folder, path)
            sentence = (
                f"{error.found}: it is kept as {kept.name}, {_VOTES_LOST if _holds_votes(path) else _NOTHING_LOST}"
            )
            log.warning("log_set_aside", reason=sentence)
            sentences.append(sentence)
    return tuple(sentences)


def _holds_votes(path: Path) -> bool:
    return path.name == LOG_NAME


def _keep(folder: Path, path: Path) -> Path:
    taken = {kept.name for kept in path.parent.glob(f"{path.name}{_KEPT}*")}
    names = (f"{path.name}{_KEPT}{n}" for n in range(1, len(taken) + 2))
    kept = path.with_name(next(name for name in names if name not in taken))
    try:
        if _holds_votes(path):
            # First: after a crash in between, the old incarnation number must not go with a log that lacks its votes.
            forget_incarnation(folder)
        os.rename(path, kept)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"{path} is damaged and could not be renamed: {error.strerror or error}",
            "a writable disk with space",
            "nothing was lost by this; start again once it can be written",
        ) from error
    return kept


def has_begun_anew(unit_folder: Path) -> bool:
    """Whether the unit's log was set aside and not created again yet. Blocks."""
    return any(unit_folder.glob(f"{LOG_NAME}{_KEPT}*")) and not (unit_folder / LOG_NAME).exists()


async def lost_index(folder: Path, chain: UnitChain) -> int:
    """The newest round whose state is on this disk without a log that leads to it, if the unit's log was set aside; else 0.

    Raises:
        StorageError: the folder cannot be read.
    """
    if not any((folder / chain.tools.unit).glob(f"{LOG_NAME}{_KEPT}*")):
        return 0
    return max((ref.index for ref in await chain.tools.generations.list()), default=0)
