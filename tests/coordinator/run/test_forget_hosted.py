"""Hosted runs are deleted only on their owner's word and never under a host; an unused one gives way to other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.ledger import LEDGER_FILE, Applicant, open_ledger
from coordinator.policy.admission import AdmissionDecision, Verdict
from coordinator.run.forget_hosted import IDENTITY_FILE, forget_hosted, is_hosted
from coordinator.run.run_files import open_run
from protocol.errors import ConfigError, MachineError
from protocol.identity.identity_file import open_identity
from protocol.ids import PeerId
from tests.coordinator.run.test_run_files import HOST, write_run_file

NOW_S = 1_700_000_000.0


def _open(tmp_path: Path, learning_rate: str) -> bytes:
    run_file = tmp_path / "run.toml"
    text = run_file.read_text() if run_file.exists() else write_run_file(tmp_path).read_text()
    run_file.write_text(text.replace("learning_rate = 0.01", f"learning_rate = {learning_rate}"))
    return open_run(run_file, tmp_path / "state", HOST, now_unix_s=NOW_S).manifest.run_id


def _admit(folder: Path) -> None:
    with open_ledger(folder / LEDGER_FILE) as ledger:
        ledger.add_invite(bytes(32), max_uses=1, created_unix_s=1, expires_unix_s=9)
        decision = AdmissionDecision(Verdict.ADMIT_WITH_INVITE, "")
        applicant = Applicant(PeerId("peer"), bytes(32), bytes(32))
        ledger.admit(applicant, lambda *_: decision, lambda _: b"", now_unix_s=1)


def test_run_that_nobody_joined_gives_way_to_a_changed_file(tmp_path: Path) -> None:
    first = _open(tmp_path, "0.01")
    with open_ledger(tmp_path / "state" / LEDGER_FILE):
        pass
    assert _open(tmp_path, "0.02") != first
    _admit(tmp_path / "state")
    (tmp_path / "run.toml").write_text((tmp_path / "run.toml").read_text().replace("0.02", "0.03"))
    with pytest.raises(ConfigError, match=r"learning_rate differs .* potluck runs forget tiny"):
        _open(tmp_path, "0.03")


def test_hosted_run_is_deleted_once_its_owner_says_yes_and_not_while_its_host_runs(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    run_id = _open(tmp_path, "0.01").hex()
    assert is_hosted(folder, "tiny")
    assert is_hosted(folder, run_id[:8])
    assert not is_hosted(folder, "other")
    with open_identity(folder / IDENTITY_FILE), pytest.raises(MachineError, match="end it with: potluck stop"):
        forget_hosted(folder, "tiny", lambda _: True)
    (folder / "own.txt").write_text("not of the host")
    assert forget_hosted(folder, "tiny", lambda _: False) == "nothing was deleted"
    assert forget_hosted(folder, "tiny", lambda question: "nobody can host it again" in question).startswith("deleted:")
    assert [path.name for path in folder.iterdir()] == ["own.txt"]
