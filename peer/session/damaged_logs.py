"""A log of rounds that is damaged before its end is set aside, kept, and done without, with no person needed.

What was promised and voted after the damage is not known any more, and must not be contradicted: the peer comes back under another
number of its disk (R3), without verified state, and brings lineage and state here from others. Where nobody
has them it waits and says so (peer/session/await_state.py). The damaged file is never removed: it stays for a person to look at.

The log of the moves of all units holds no vote. What comes after a damaged record there says that the units' own logs tell of it.

Rules: R3 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

from averaging.rounds.head_vector import VECTOR_LOG
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.unit_log import LOG_NAME
from averaging.storage.file_storage import DamagedLogError, check_log, sync_folder
from peer.membership.incarnation import forget_incarnation
from protocol.errors import StorageError

log = structlog.get_logger()

_KEPT: Final = ".damaged-"
_VOTES_LOST: Final = (
    "this peer votes as one with a new disk, and what the log told comes from other peers, if any has it"
)
_NOTHING_LOST: Final = "what it told stands in the logs of the units"


def set_aside(folder: Path) -> tuple[str, ...]:
    """Rename the damaged logs in a run's folder, its units' too; a sentence on each. Before the disk's number is taken. Blocks.

    Raises:
        StorageError: a log cannot be read or renamed; nothing was lost.
    """
    told: list[str] = []
    for path in (*sorted(folder.glob(f"*/{LOG_NAME}")), folder / VECTOR_LOG):
        try:
            check_log(path)
        except DamagedLogError as error:
            kept = _keep(folder, path)
            sentence = (
                f"{error.found}: it is kept as {kept.name}, {_VOTES_LOST if _holds_votes(path) else _NOTHING_LOST}"
            )
            log.warning("log_set_aside", reason=sentence)
            told.append(sentence)
    return tuple(told)


def _holds_votes(path: Path) -> bool:
    return path.name == LOG_NAME


def _keep(folder: Path, path: Path) -> Path:
    taken = {kept.name for kept in path.parent.glob(f"{path.name}{_KEPT}*")}
    names = (f"{path.name}{_KEPT}{n}" for n in range(1, len(taken) + 2))
    kept = path.with_name(next(name for name in names if name not in taken))
    try:
        if _holds_votes(path):
            # first: a crash between the two must not leave the old number to a log without the votes of that number
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
    """Whether the unit's log was set aside and there is no other one yet. Blocks."""
    return any(unit_folder.glob(f"{LOG_NAME}{_KEPT}*")) and not (unit_folder / LOG_NAME).exists()


async def lost_index(folder: Path, chain: UnitChain) -> int:
    """The newest round whose state is on this disk without a log that leads to it, where the unit's log was set aside; else 0.

    Raises:
        StorageError: the folder cannot be read.
    """
    if not any((folder / chain.tools.unit).glob(f"{LOG_NAME}{_KEPT}*")):
        return 0
    return max((ref.index for ref in await chain.tools.generations.list()), default=0)
