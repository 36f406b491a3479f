"""The functions that the host's command line calls, without a running host."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner

from averaging.host.http_client import STATUS_ADDRESS_FILE
from averaging.system.process_record import running_here
from coordinator.admission.invites import InviteAddresses, remember_reach
from coordinator.checkpoints.checkpoints import write_checkpoint
from coordinator.command_line import add_commands
from coordinator.commands import (
    ban,
    host,
    init_run,
    make_invite,
)
from coordinator.ledger.ledger import LEDGER_FILE, Applicant, open_ledger
from coordinator.policy.admission import AdmissionDecision, Verdict
from coordinator.run.hosted_folder import fetch_status
from coordinator.run.run_files import IDENTITY_FILE, load_run, open_run
from coordinator.run.start_command import UNKNOWN, remember_command
from protocol.errors import ConfigError, StorageError, UnreachableError
from protocol.identity.identity import Identity
from protocol.identity.identity_file import open_identity
from protocol.identity.invite import decode_invite, hash_secret
from protocol.identity.names import peer_name
from protocol.identity.revocation import open_revocation
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from protocol.run.manifest import load_run_config
from tests.coordinator.chain_world import UNIT, Chain
from tests.coordinator.checkpoints.test_checkpoints import content
from tests.coordinator.history.history_world import make_small, open_history
from tests.coordinator.progress.test_chain_log import grown
from tests.coordinator.run.test_run_files import HOST, write_run_file


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    open_run(write_run_file(tmp_path), folder, HOST, now_unix_s=1_700_000_000.0)
    with open_ledger(folder / LEDGER_FILE) as ledger:
        remember_reach(ledger, InviteAddresses(("127.0.0.1:4001",), ()))
    return folder


def test_init_writes_a_run_file_that_works_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    init_run(path)
    assert load_run_config(path).run.name
    with pytest.raises(ConfigError, match="exists already"):
        init_run(path)


def test_init_prints_the_run_file_for_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    init_run(Path("-"))
    printed = capfd.readouterr().out
    init_run(Path("run.toml"))
    assert printed == Path("run.toml").read_text(encoding="utf8")
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_init_writes_the_kind_of_run_that_is_asked_for_and_nothing_for_one_that_there_is_not(tmp_path: Path) -> None:
    init_run(tmp_path / "stages.toml", "pipeline")
    assert load_run_config(tmp_path / "stages.toml").run.shards == "pipeline"
    assert "`potluck host stages.toml` opens it" in (tmp_path / "stages.toml").read_text(encoding="utf8")
    with pytest.raises(ConfigError, match="shards is 'stages'; expected data or expert or pipeline"):
        init_run(tmp_path / "none.toml", "stages")
    assert not (tmp_path / "none.toml").exists()


def test_init_from_a_checkpoint_is_for_runs_whose_peers_hold_the_whole_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--from model with --shards pipeline; expected data"):
        init_run(tmp_path / "run.toml", "pipeline", "model")


def test_invite_is_remembered_by_its_hash_only(state: Path) -> None:
    invite = decode_invite(make_invite(state, uses=3, hours=2.0))
    with open_ledger(state / LEDGER_FILE) as ledger:
        facts = ledger.invite(hash_secret(invite.secret))
        assert facts is not None
        assert (facts.max_uses, facts.expires_unix_s) == (3, invite.expires_unix_s)
    assert invite.secret not in (state / LEDGER_FILE).read_bytes()
    assert invite.coordinator_addresses == ("127.0.0.1:4001",)


async def test_archive_of_a_run_is_checked_and_listed_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, runner, chain = typer.Typer(), CliRunner(), grown(Chain(), 14)
    add_commands(app, _no_models, _no_models)
    make_small(monkeypatch)
    with open_history(tmp_path, chain) as world:
        await world.history.restore()
        young = runner.invoke(app, ["ledger", "--state-dir", str(tmp_path)]).stdout
        assert young == "no round is archived yet: the certificates of all rounds are in the ledger\n"
        world.take(chain)
        await world.look(9)
    old = runner.invoke(app, ["ledger", "--state-dir", str(tmp_path)]).stdout
    assert re.fullmatch(
        rf"{UNIT}  rounds 1 to 3  3 certificates  \d+ bytes  {UNIT}-000000001-000000003.xz\n"
        r"1 file checked, all whole; later rounds are in the ledger\n",
        old,
    )
    (row,) = json.loads(runner.invoke(app, ["ledger", "--state-dir", str(tmp_path), "--json"]).stdout)
    assert (row["first_round"], row["last_round"], row["num_certificates"]) == (1, 3, 3)
    (tmp_path / "archive" / row["file"]).unlink()
    refused = runner.invoke(app, ["ledger", "--state-dir", str(tmp_path)]).exception
    assert isinstance(refused, StorageError)


def test_invites_are_listed_and_withdrawn_on_the_command_line(state: Path) -> None:
    app, runner = typer.Typer(), CliRunner()
    add_commands(app, _no_models, _no_models)
    assert runner.invoke(app, ["invite", "list", "--state-dir", str(state)]).stdout == "no invite was made yet\n"
    made = runner.invoke(app, ["invite", "--state-dir", str(state), "--uses", "3"])
    assert decode_invite(made.stdout).max_uses == 3
    assert re.match(
        r"for 3 peers, until \w{3} \d\d \w{3} \d\d:\d\d; on their machines: potluck join LINE;", made.stderr
    )
    listed = json.loads(runner.invoke(app, ["invite", "list", "--state-dir", str(state), "--json"]).stdout)
    (row,) = listed
    said = runner.invoke(app, ["invite", "withdraw", row["id"], "--state-dir", str(state)]).stdout
    assert said.startswith(f"withdrawn: invite {row['id']}")
    shown = runner.invoke(app, ["invite", "--state-dir", str(state), "list"]).stdout
    assert shown == f"{row['id']}  used by 0 of 3  withdrawn\n"


def test_invite_of_a_host_that_does_not_run_says_so_with_the_command_that_starts_it(state: Path) -> None:
    app, runner = typer.Typer(), CliRunner()
    add_commands(app, _no_models, _no_models)
    remember_command(state, UNKNOWN)
    said = "; nobody can join before the host runs: potluck host run.toml"
    assert said in runner.invoke(app, ["invite", "--state-dir", str(state)]).stderr
    with running_here(state):
        assert "nobody can join" not in runner.invoke(app, ["invite", "--state-dir", str(state)]).stderr


def test_complete_run_gives_no_invite(state: Path) -> None:
    target = load_run(state).manifest.config.run.total_tokens
    row = write_checkpoint(state / "checkpoints", content(), now_unix_s=7)
    with open_ledger(state / LEDGER_FILE) as ledger:
        ledger.add_checkpoint(replace(row, total_tokens=target))
    with pytest.raises(ConfigError, match="is complete, so nobody can join it"):
        make_invite(state, uses=1, hours=1.0)


@pytest.mark.parametrize(("uses", "hours"), [(0, 1.0), (10**20, 1.0), (1, 0.0), (1, 1e9), (1, float("nan"))])
def test_invite_with_impossible_numbers_is_refused(state: Path, uses: int, hours: float) -> None:
    with pytest.raises(ConfigError, match="an invite for"):
        make_invite(state, uses=uses, hours=hours)


def _admit(state: Path, *peers: PeerId) -> None:
    with open_ledger(state / LEDGER_FILE) as ledger:
        for peer in peers:
            applicant = Applicant(peer, bytes(32), b"")
            ledger.admit(
                applicant, lambda *_: AdmissionDecision(Verdict.ADMIT_WITH_INVITE, ""), lambda _: b"", now_unix_s=1
            )


def test_ban_signs_an_entry_with_the_hosts_key_while_the_host_holds_it(state: Path) -> None:
    peer = Identity(b"p" * 32).peer_id
    _admit(state, peer)
    (state / IDENTITY_FILE).write_bytes(HOST.libp2p_private_key_bytes())
    (state / IDENTITY_FILE).chmod(0o600)
    with open_identity(state / IDENTITY_FILE):
        assert ban(state, peer, reason="forged results").startswith(f"banned {peer_name(peer)}")
        assert "banned already" in ban(state, peer_name(peer), reason="once more")
    run_id = load_run(state).manifest.run_id
    with open_ledger(state / LEDGER_FILE) as ledger:
        assert ledger.is_banned(peer)
        (entry,) = ledger.revocations()
    found = open_revocation(entry, verifier=Ed25519Verifier(), run_id=run_id, host_public_key=HOST.public_key)
    assert (found.peer, found.reason, found.number) == (peer, "forged results", 1)


def test_folder_that_hosts_nothing_is_named(tmp_path: Path) -> None:
    for command in (
        fetch_status,
        lambda folder: make_invite(folder, uses=1, hours=1.0),
        lambda folder: ban(folder, "x", reason=""),
    ):
        with pytest.raises(ConfigError, match="no run is hosted from"):
            command(tmp_path)


def test_status_of_a_stopped_host_says_so(state: Path) -> None:
    for left_behind in (None, "http://127.0.0.1:9\n", "nonsense"):
        if left_behind is not None:
            (state / STATUS_ADDRESS_FILE).write_text(left_behind, encoding="utf8")
        with pytest.raises(UnreachableError, match=r"no host runs from .*start it with: potluck host run\.toml"):
            fetch_status(state)


def test_host_refuses_a_bad_run_file_before_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    init_run(path)
    path.write_text(path.read_text().replace("total_tokens = 20_000_000", "total_tokens = 0"))
    with pytest.raises(ConfigError, match=r"run\.total_tokens is 0"):
        host(path, {"state_dir": tmp_path / "state"})
    assert not (tmp_path / "state").exists()


def _no_models() -> NoReturn:
    raise AssertionError("an invite merges nothing")


@pytest.mark.parametrize(("columns", "is_drawn"), [("300", True), ("40", False)])
def test_invite_as_a_qr_code_needs_a_terminal_that_is_wide_enough(
    state: Path, monkeypatch: pytest.MonkeyPatch, columns: str, is_drawn: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    app = typer.Typer()
    add_commands(app, _no_models, _no_models)
    done = CliRunner().invoke(app, ["invite", "--qr", "--state-dir", str(state)])
    line, *rest = done.stdout.splitlines()
    assert done.exit_code == 0
    assert decode_invite(line).secret
    assert (len(rest) > 20, "too narrow" in done.stderr) == (is_drawn, not is_drawn)
