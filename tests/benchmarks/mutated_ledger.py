"""A mutated ledger: the SQLite file as a stopped host left it, and as a killed one did, with its -wal."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.ledger.ledger import LEDGER_FILE, Applicant, CheckpointRow, CommitRow, Ledger, LossPoint, open_ledger
from coordinator.ledger.ledger_damage import COUNT_SUFFIX
from coordinator.ledger.run_memory import EventRow, HeardRow, remember
from coordinator.policy.admission import AdmissionDecision, InviteFacts, Verdict
from protocol.errors import PotluckError
from protocol.ids import CommitId, PeerId, Root, UnitName
from tests.benchmarks.mutating import Outcome, Reported, mutated, outcome_of

UNIT: Final = UnitName("fragment-0")
NUM_COMMITS: Final = 24
_TABLES: Final = (
    "kv",
    "invites",
    "peers",
    "credentials",
    "commits",
    "loss_points",
    "checkpoints",
    "events",
    "heard",
    "credits",
)
_WAL: Final = LEDGER_FILE + "-wal"


@dataclass(frozen=True, slots=True)
class _Copy:
    """A ledger's files at one moment, and what they say."""

    files: dict[str, bytes]
    rows: object


def _admit(ledger: Ledger, number: int) -> None:
    secret = bytes([number]) * 32
    ledger.add_invite(secret, max_uses=1, created_unix_s=number, expires_unix_s=1000 + number)
    applicant = Applicant(PeerId(f"peer{number}"), bytes([number]) * 32, secret)

    def decide(invite: InviteFacts | None, is_admitted: bool, is_banned: bool) -> AdmissionDecision:
        return AdmissionDecision(Verdict.ADMIT_WITH_INVITE, "invited")

    ledger.admit(applicant, decide, lambda serial: b"certificate %d" % serial * 40, now_unix_s=number)


def _write(ledger: Ledger, numbers: Sequence[int]) -> None:
    """The files that a host writes in n rounds."""
    for number in numbers:
        commit, parent = (CommitId(bytes([n + 1]) * 32) for n in (number, number - 1))
        _admit(ledger, number)
        ledger.add_progress(
            [CommitRow(commit, UNIT, parent, number, random.Random(number).randbytes(700 * (1 + number % 9)), number)],
            [LossPoint("heldout", number, 100 * number, 5.0 / (1 + number), PeerId("peer0"))],
        )
        ledger.add_checkpoint(CheckpointRow(commit, UNIT, number, 100 * number, Root(parent), f"{number:08d}", number))
        if number >= 2:
            ledger.drop_checkpoint(CommitId(bytes([number - 1]) * 32))
        ledger.put("addresses", b'["127.0.0.1:%d"]' % number)
        heard = HeardRow(PeerId(f"peer{number}"), number, "here")
        remember(ledger, [EventRow(number, number, "peer", f"peer{number} came", heard.peer)], [heard])
    ledger.ban(PeerId("peer0"), "equivocation", lambda number: b"signed %d" % number)


def _rows(ledger: Ledger) -> object:
    return [sorted(ledger.rows(f"SELECT * FROM {table}")) for table in _TABLES]


def _files(folder: Path) -> dict[str, bytes]:
    names = (LEDGER_FILE, _WAL, LEDGER_FILE + COUNT_SUFFIX)
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def _copies(folder: Path) -> tuple[_Copy, _Copy]:
    """Of a host that was stopped, and of one that was killed some rounds later."""
    with open_ledger(folder / LEDGER_FILE) as ledger:
        _write(ledger, range(NUM_COMMITS // 2))
        rows = _rows(ledger)
    stopped = _Copy(_files(folder), rows)
    with open_ledger(folder / LEDGER_FILE) as ledger:
        _write(ledger, range(NUM_COMMITS // 2, NUM_COMMITS))
        return stopped, _Copy(_files(folder), _rows(ledger))


async def measure_ledger(number: int, chance: random.Random, folder: Path) -> list[Outcome]:
    """The same rows as before (the bytes that changed say nothing), or one error before any of them is used."""
    (folder / "origin").mkdir()
    stopped, killed = _copies(folder / "origin")
    targets = ((stopped, LEDGER_FILE, "stopped"), (killed, LEDGER_FILE, "killed"), (killed, _WAL, "-wal"))
    place = folder / "damaged"

    async def trial() -> Reported:
        copy, name, where = chance.choice(targets)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        spoilt, how = mutated(copy.files[name], chance)
        for file, data in {**copy.files, name: spoilt}.items():
            (place / file).write_bytes(data)
        try:
            with open_ledger(place / LEDGER_FILE) as ledger:
                rows = _rows(ledger)
        except PotluckError as error:
            is_named = str(place / LEDGER_FILE) in error.one_line()
            return f"{how}, {where}", "refused" if is_named else "missed", [error.one_line()]
        return f"{how}, {where}", "same" if rows == copy.rows else "missed", None

    return [await outcome_of("ledger", trial) for _ in range(number)]
