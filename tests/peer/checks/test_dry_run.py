"""`potluck join --dry-run` as its user meets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner

from peer.checks.known_runs import find_kept_run
from peer.commands import add_commands
from peer.settings.config import PeerConfig
from protocol.errors import ConfigError, PotluckError, UnreachableError
from protocol.estimates.dry_run import END
from protocol.ids import RunId
from tests.peer.checks.test_known_runs import MANIFEST, TO_IT, keep


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "peer.toml"
    monkeypatch.setattr(PeerConfig, "file", staticmethod(lambda: path))

    def nobody(*_arguments: object) -> None:
        raise UnreachableError("no coordinator answers at 127.0.0.1:7000", "a running `potluck host`")

    monkeypatch.setattr("peer.checks.known_runs.ask_for_run", nobody)
    return path


def _no_checkpoint(name: str, state_dir: Path | None) -> NoReturn:
    raise AssertionError(f"a dry run opens no checkpoint, and not {name}")


def _no_host() -> NoReturn:
    raise AssertionError("a dry run stops no host")


def _dry_run(*arguments: str) -> list[str]:
    app = typer.Typer()
    add_commands(app, _no_checkpoint, _no_host)
    done = CliRunner().invoke(app, ["join", "--dry-run", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output.splitlines()


def _listing(folder: Path) -> list[tuple[Path, int, int]]:
    return sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_nothing_is_written_or_started_whatever_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a dry run started something")

    monkeypatch.setattr("peer.checks.doctor.check_before_join", started)
    monkeypatch.setattr("peer.training.worker_process.early_worker", started)
    state = tmp_path / "state"
    for invite in ((), (TO_IT.encode(),)):
        lines = _dry_run(*invite, "--state-dir", str(state))
        assert lines[-1] == END
        assert "  model    unknown without the host" in lines
        assert not list(tmp_path.iterdir())
    keep(state)
    before = _listing(tmp_path)
    for invite in ((), (TO_IT.encode(),)):
        lines = _dry_run(*invite, "--state-dir", str(state))
        assert "  model         771,328 parameters" in lines
        assert f"  {MANIFEST.config.run.name}, joined from here before" in lines
        assert _listing(tmp_path) == before


def test_each_setting_says_where_it_comes_from(
    tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text("slowdown = 4.0\nhttp_port = 4\nlisten_port = 4\n", encoding="utf8")
    monkeypatch.setenv("POTLUCK_PEER_SLOWDOWN", "3")
    monkeypatch.setenv("POTLUCK_PEER_HTTP_PORT", "3")
    reported = {
        " ".join(line.split()) for line in _dry_run("--slowdown", "2", "--no-listen", "--state-dir", str(tmp_path))
    }
    assert {
        "slowdown 2.0 (flag --slowdown)",
        "no_listen true (flag --no-listen)",
        "http_port 3 (variable POTLUCK_PEER_HTTP_PORT)",
        f"listen_port 4 (file {config_file})",
        "device auto (default)",
    } <= reported


def test_the_invite_is_told_without_its_secret(tmp_path: Path) -> None:
    fresh = replace(TO_IT, run_id=RunId(b"o" * 32), expires_unix_s=1 << 40, secret=bytes(range(16)))
    text = "\n".join(_dry_run(fresh.encode(), "--state-dir", str(tmp_path)))
    assert "  invite to run 6f6f6f6f, good for another" in text
    assert "  host at 127.0.0.1:7000" in text
    assert fresh.secret.hex() not in text
    assert fresh.encode() not in text
    assert "expired" in "\n".join(_dry_run(TO_IT.encode(), "--state-dir", str(tmp_path)))


def test_a_newcomer_is_told_what_the_host_says_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _dry_run(TO_IT.encode(), "--state-dir", str(tmp_path / "none"))
    (line,) = [line for line in lines if "could not be asked" in line]
    assert line.startswith("  was not joined from here before; its host could not be asked: no coordinator answers at")
    keep(tmp_path / "other")
    reported = find_kept_run(tmp_path / "other", None)
    monkeypatch.setattr("peer.checks.known_runs.ask_for_run", lambda *_arguments: reported)
    lines = _dry_run(TO_IT.encode(), "--state-dir", str(tmp_path / "none"))
    assert f"  {MANIFEST.config.run.name}, was not joined from here before; as its host tells it" in lines
    assert "  model         771,328 parameters" in lines
    assert not (tmp_path / "none").exists()


def test_an_invite_is_asked_for_where_there_is_none(tmp_path: Path) -> None:
    assert "  an invite is needed: ask the host for one" in _dry_run("--state-dir", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "found"), [(["hello"], "begins with 'hello'"), (["--slowdown", "0"], "slowdown is")]
)
def test_what_could_not_be_joined_is_told_as_without_dry_run(arguments: list[str], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        _dry_run(*arguments)


@pytest.mark.parametrize(
    ("is_given", "says"),
    [(False, "no invite on standard input"), (True, "the invite expired")],
    ids=["nothing", "a line that a mail program has wrapped"],
)
def test_standard_input_is_read_to_its_end_for_an_invite_and_none_there_is_an_error(
    tmp_path: Path, is_given: bool, says: str
) -> None:
    app, line = typer.Typer(), replace(TO_IT, expires_unix_s=1).encode()
    add_commands(app, _no_checkpoint, _no_host)
    given = f"potluck join {line[:70]}\n{line[70:]}\n" if is_given else "\n"
    with pytest.raises(PotluckError, match=says):
        CliRunner().invoke(app, ["join", "-", "--state-dir", str(tmp_path)], input=given, catch_exceptions=False)
