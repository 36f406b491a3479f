"""Invites: made, listed, withdrawn, and printed again by a later start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from coordinator.admission.invites import (
    InviteAddresses,
    IssuedInvite,
    invite_of_start,
    issue_invite,
    list_invites,
    withdraw_invite,
)
from coordinator.ledger.ledger import LEDGER_FILE, Applicant, Ledger, open_ledger
from coordinator.policy.admission import AdmissionDecision, Verdict, invite_error
from coordinator.run.run_files import RunFiles, open_run
from protocol.errors import UsageError
from protocol.identity.invite import decode_invite, hash_secret
from protocol.ids import PeerId
from tests.coordinator.run.test_run_files import HOST, write_run_file

NOW_S: Final = 1_700_000_000.0
REACH: Final = InviteAddresses(("10.0.0.1:4600",), ())
KEY: Final = b"k" * 32


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return open_run(write_run_file(tmp_path), tmp_path / "state", HOST, now_unix_s=NOW_S)


@pytest.fixture
def ledger(run: RunFiles) -> Iterator[Ledger]:
    with open_ledger(run.folder / LEDGER_FILE) as opened:
        yield opened


def _start(
    ledger: Ledger, run: RunFiles, at_s: float = NOW_S, *, uses: int = 100, is_asked: bool = False
) -> IssuedInvite:
    issued = invite_of_start(ledger, run, REACH, KEY, uses=uses, hours=24.0, is_asked=is_asked, now_unix_s=at_s)
    assert issued is not None
    return issued


def _use(ledger: Ledger, line: str, times: int) -> None:
    admit = AdmissionDecision(Verdict.ADMIT_WITH_INVITE, "")
    for place in range(times):
        applicant = Applicant(PeerId(f"peer {place}"), bytes(32), hash_secret(decode_invite(line).secret))
        ledger.admit(applicant, lambda *_: admit, lambda _: b"", now_unix_s=1)


def test_later_start_prints_the_invite_that_is_still_valid(ledger: Ledger, run: RunFiles) -> None:
    first = _start(ledger, run)
    _use(ledger, first.line, 3)
    second = _start(ledger, run, NOW_S + 3600)
    assert (second.line, second.num_left, second.expires_unix_s) == (first.line, 97, first.expires_unix_s)
    assert len(ledger.invites()) == 1
    moved = invite_of_start(
        ledger,
        run,
        InviteAddresses(("10.0.0.2:4600",), ()),
        KEY,
        uses=100,
        hours=24.0,
        is_asked=False,
        now_unix_s=NOW_S,
    )
    assert moved is not None
    assert decode_invite(moved.line).secret == decode_invite(first.line).secret
    assert decode_invite(moved.line).coordinator_addresses == ("10.0.0.2:4600",)


def test_start_makes_another_invite_once_the_last_one_admits_nobody_or_others_are_asked_for(
    ledger: Ledger, run: RunFiles
) -> None:
    first = _start(ledger, run)
    asked = _start(ledger, run, uses=5, is_asked=True)
    assert asked.num_left == 5
    assert _start(ledger, run, uses=5, is_asked=True).line == asked.line
    late = _start(ledger, run, NOW_S + 24 * 3600)
    assert len({first.line, asked.line, late.line}) == len(ledger.invites()) == 3


def test_start_makes_no_other_invite_once_its_owner_has_withdrawn_the_last_one(ledger: Ledger, run: RunFiles) -> None:
    withdraw_invite(ledger, _start(ledger, run, uses=5, is_asked=True).line, NOW_S)
    for is_asked in (False, True):
        for at_s in (NOW_S, NOW_S + 48 * 3600):
            arguments = {"uses": 5, "hours": 24.0, "is_asked": is_asked, "now_unix_s": at_s}
            assert invite_of_start(ledger, run, REACH, KEY, **arguments) is None  # type: ignore[arg-type]
    assert len(ledger.invites()) == 1
    assert _start(ledger, run, uses=6, is_asked=True).num_left == 6


def test_secret_is_in_no_file_of_the_ledger(ledger: Ledger, run: RunFiles) -> None:
    secret = decode_invite(_start(ledger, run).line).secret
    assert all(secret not in path.read_bytes() for path in run.folder.glob(f"{LEDGER_FILE}*"))


def test_invites_are_listed_with_their_uses_and_ends(ledger: Ledger, run: RunFiles) -> None:
    lines = [issue_invite(ledger, run, REACH, uses=2, hours=hours, now_unix_s=NOW_S).line for hours in (1, 5, 5)]
    _use(ledger, lines[1], 2)
    listed = list_invites(ledger, NOW_S + 2 * 3600)
    assert [(each.uses, each.max_uses, each.ends) for each in listed] == [
        (0, 2, "expired"),
        (2, 2, "used up"),
        (0, 2, ""),
    ]
    said = withdraw_invite(ledger, listed[2].id, NOW_S)
    assert said == f"withdrawn: invite {listed[2].id} admits nobody from now on; 0 peers joined with it and may stay"
    assert list_invites(ledger, NOW_S)[2].ends == "withdrawn"
    assert withdraw_invite(ledger, lines[2], NOW_S) == f"invite {listed[2].id} is withdrawn already"
    with pytest.raises(UsageError, match="no invite of this run begins with nosuch; expected one invite"):
        withdraw_invite(ledger, "nosuch", NOW_S)


def test_withdrawn_invite_admits_nobody_and_says_so(ledger: Ledger, run: RunFiles) -> None:
    line = issue_invite(ledger, run, REACH, uses=2, hours=1.0, now_unix_s=NOW_S).line
    withdraw_invite(ledger, line, NOW_S)
    error = invite_error(ledger.invite(hash_secret(decode_invite(line).secret)), NOW_S)
    assert error is not None
    assert "withdrawn" in error.one_line()


@pytest.mark.parametrize("which", ["", "ab", "ffffffff", "%"])
def test_no_invite_or_several_are_not_withdrawn(ledger: Ledger, run: RunFiles, which: str) -> None:
    issue_invite(ledger, run, REACH, uses=2, hours=1.0, now_unix_s=NOW_S)
    with pytest.raises(UsageError, match="potluck invite list"):
        withdraw_invite(ledger, which, NOW_S)
