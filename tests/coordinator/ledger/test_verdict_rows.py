from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger import verdict_rows
from coordinator.ledger.ledger import Ledger, open_ledger
from coordinator.ledger.verdict_rows import audited_in, put_verdict
from coordinator.policy.audited_work_core import MEMBER_PASSES, NOT_AUDITED
from protocol.host.work_verdict import untold_of, verdict_of
from protocol.ids import CommitId, PeerId, Root, UnitName

STRANGER, KEEPER = PeerId("stranger"), PeerId("keeper")


def _put(ledger: Ledger, contributor: PeerId, gap: float, number: int) -> None:
    verdict = verdict_of(
        UnitName("fragment-0"),
        CommitId(number.to_bytes(32, "big")),
        contributor,
        Root(bytes(32)),
        gap=gap,
        length_ratio=1.0,
    )
    put_verdict(ledger, PeerId("abc"[number % 3]), verdict, now_unix_s=number)


def test_a_peers_record_with_auditors_is_judged_by_the_usual_fit_of_trusted_work(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        for number in range(MEMBER_PASSES):
            _put(ledger, STRANGER, 0.2, number)
        assert audited_in(ledger, [STRANGER], [STRANGER]) == {STRANGER: NOT_AUDITED}, "nothing is usual yet"
        for number in range(MEMBER_PASSES):
            _put(ledger, KEEPER, 0.2, number)
        assert audited_in(ledger, [STRANGER], [STRANGER])[STRANGER].makes_member
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        _put(ledger, STRANGER, 0.0, 100)
        _put(ledger, STRANGER, 0.0, 101)
        assert audited_in(ledger, [STRANGER, KEEPER], [STRANGER])[STRANGER].is_doubted


def test_the_oldest_verdicts_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_rows, "MOST_VERDICTS", 5)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        for number in range(12):
            _put(ledger, STRANGER, 0.2, number)
        kept = verdict_rows.verdict_rows(ledger)
        assert [int.from_bytes(each.commit, "big") for each in kept] == [7, 8, 9, 10, 11]


def test_an_auditor_that_signs_very_many_verdicts_pushes_out_its_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_rows, "MOST_VERDICTS", 8)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        for number in (1, 2, 4, *range(6, 60, 3)):  # those that 3 divides are one auditor's
            _put(ledger, STRANGER, 0.2, number)
        kept = verdict_rows.verdict_rows(ledger)
        assert [int.from_bytes(each.commit, "big") for each in kept] == [1, 2, 4, 45, 48, 51, 54, 57]


def test_a_peer_that_told_no_steps_is_known_after_a_restart(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        for number, auditor in enumerate("ab"):
            commit = CommitId(number.to_bytes(32, "big"))
            untold = untold_of(UnitName("fragment-0"), commit, STRANGER, Root(bytes(32)))
            put_verdict(ledger, PeerId(auditor), untold, now_unix_s=number)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        assert audited_in(ledger, [STRANGER], [STRANGER])[STRANGER].tells_nothing


def test_verdicts_of_a_banned_auditor_and_about_banned_peers_count_no_more(tmp_path: Path) -> None:
    liar, cheat = PeerId("a"), PeerId("cheat")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        for number in range(2 * MEMBER_PASSES):
            _put(ledger, KEEPER, 0.4, number)
        for number in range(3 * MEMBER_PASSES):
            _put(ledger, cheat, 1.8, 100 + number)
        for number in (1, 3):  # one fail of each of two auditors
            _put(ledger, STRANGER, 0.0, number)
        assert audited_in(ledger, [STRANGER], [STRANGER])[STRANGER].is_doubted
        for banned in (liar, cheat):
            ledger.ban_again(banned, b"k" * 32, "lies", b"entry of " + banned.encode(), now_unix_s=6)
        found = audited_in(ledger, [STRANGER], [STRANGER])[STRANGER]
        assert (found.is_doubted, found.num_fails) == (False, 1)
