"""The command line as a user meets it: fast help, one-line errors, exit codes.

Each command is started as a user does somewhere: here, or in tests/e2e. Its other lines come from processes forked off one whose
Python has started (tests/forked.py), because that start is most of the work of one line.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from rich.console import Console
from rich.live import Live
from typer.testing import CliRunner

import potluck
from averaging.host.http_client import STATUS_ADDRESS_FILE
from averaging.host.log_file import LogFile, keep_log, log_line
from averaging.host.stderr_log import log_to_stderr
from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from peer.membership.saved_membership import SavedMembership, save_membership
from peer.settings.config import PeerConfig
from peer.status.status import PeerStatus, write_final_status
from protocol.errors import ConfigError
from protocol.identity.identity import Identity
from protocol.ids import PROTOCOL_VERSION
from tests.forked import Forked, open_forked
from tests.peer.checks.test_known_runs import keep
from tests.peer.membership.test_joining import INVITE as EXPIRED

ROOT = Path(__file__).parents[1]
INVITE = replace(EXPIRED, expires_unix_s=4_000_000_000)
HEAVY = {
    "torch",
    "numpy",
    "hivemind",
    "grpc",
    "google",
    "pydantic",
    "cryptography",
    "trio",
    "prometheus_client",
    "sqlite3",
}
MOST_IMPORTS = 550
"""Modules, the interpreter's own among them: 440 when this was written, in 0.3 s of processor time."""


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    """The process from which `_potluck` forks."""
    with open_forked() as forked:
        _FORKED.append(forked)
        yield
    _FORKED.clear()


_FORKED: list[Forked] = []


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **variables}


def _potluck(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, whose Python has started already."""
    return _FORKED[0].run(*arguments, cwd=ROOT, environment=_environment(variables))


def _potluck_from_its_start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """As a shell starts it."""
    return subprocess.run(
        [sys.executable, "-m", "potluck", *arguments],
        cwd=ROOT,
        env=_environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    done = _potluck_from_its_start("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"peer", "coordinator", "typer"} <= {name.partition(".")[0] for name in imported}
    assert {name.partition(".")[0] for name in imported} & HEAVY == set()
    assert len(imported) < MOST_IMPORTS


def test_help_names_every_command_and_every_exit_code() -> None:
    text = _potluck("--help").stdout
    for word in (
        "init",
        "host",
        "join",
        "invite",
        "ban",
        "status",
        "peers",
        "rounds",
        "logs",
        "bugreport",
        "checkpoint",
        "demo",
        "doctor",
        "generate",
        "health",
        "pause",
        "resume",
        "130",
        "75",
    ):
        assert word in text


def test_help_groups_the_commands_by_whom_they_are_for() -> None:
    text = _potluck("--help").stdout
    places = [text.index(word) for word in ("For hosts", "host  ", "For volunteers", "join  ", "For both", "status  ")]
    assert places == sorted(places)


def test_version_names_the_protocol_too() -> None:
    done = _potluck_from_its_start("--version")
    assert done.returncode == 0
    assert f"protocol {PROTOCOL_VERSION}" in done.stdout


def _one_line(done: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """The one line that a command said when it failed, and nothing else anywhere."""
    assert done.returncode == exit_code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("potluck: ")
    assert done.stdout == ""
    return line


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["no-such-command"], "No such command 'no-such-command'"),
        (["checkpoint", "no-such-command"], "potluck checkpoint --help"),
        (["--no-such-flag"], "No such option"),
        (["join", "--no-such-flag"], "potluck join --help"),
        (["host"], "Missing argument"),
        (["host", "run.toml", "another.toml"], "another.toml"),
        (["join", "--state-dir"], "--state-dir"),
        (["demo", "--tokens", "many"], "--tokens"),
        (["pause", "--for", "soon"], "--for"),
        (["pause", "--for", "0"], "--for is '0'"),
        (["pause", "--for", "nan"], "--for is 'nan'"),
        (["pause", "--for", "inf"], "--for is 'inf'"),
        (["pause", "now"], "potluck pause --help"),
        (["doctor", "--no-such-flag"], "potluck doctor --help"),
        (["checkpoint", "export", "only-one"], "OUT_DIR"),
        (["checkpoint", "merge", "only-one"], "OUT_DIR"),
        (["generate"], "CHECKPOINT"),
        (["generate", "folder", "--tokens", "many"], "--tokens"),
    ],
)
def test_command_line_that_cannot_be_meant_is_one_line_and_exit_2(arguments: list[str], found: str) -> None:
    assert found in _one_line(_potluck(*arguments), 2)


@pytest.mark.parametrize("arguments", [[], ["checkpoint"]])
def test_no_command_at_all_shows_what_there_is(arguments: list[str]) -> None:
    done = _potluck(*arguments)
    assert done.returncode == 2
    assert "checkpoint" in done.stdout + done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "0.5"])
def test_setting_that_cannot_work_is_one_line_and_exit_3(value: str) -> None:
    assert _one_line(_potluck("join", "--slowdown", value), 3).startswith("potluck: peer setting slowdown is ")


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_pipe_in_the_place_of_a_run_file_is_one_line_and_exit_3_and_waits_for_nobody(
    tmp_path: Path, flags: list[str]
) -> None:
    pipe = tmp_path / "run.toml"
    os.mkfifo(pipe)
    found = _one_line(_potluck("host", str(pipe), "--state-dir", str(tmp_path / "host"), *flags), 3)
    assert f"{pipe} is a pipe; expected a run.toml" in found
    assert not (tmp_path / "host").exists()


def test_health_without_a_daemon_is_one_line_and_exit_5(tmp_path: Path) -> None:
    assert "no daemon runs from" in _one_line(_potluck_from_its_start("health", "--state-dir", str(tmp_path)), 5)
    mine = {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert str(tmp_path / "potluck" / "peer") in _one_line(_potluck("health", **mine), 5)


def test_doctor_with_a_device_that_cannot_be_is_one_line_and_exit_3() -> None:
    assert "peer setting device is 'gpu'" in _one_line(_potluck_from_its_start("doctor", "--device", "gpu"), 3)


@pytest.mark.parametrize("module", ["typer", "coordinator.command_line", "protocol.errors"])
def test_interrupt_while_modules_are_read_is_one_line_and_exit_130(module: str) -> None:
    program = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
import potluck
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert _one_line(done, 130) == "potluck: interrupted; left at once"


def test_interrupt_of_a_command_is_one_line_and_exit_130() -> None:
    program = """
import coordinator.status.local_view, potluck
def interrupted(*_arguments, **_options):
    raise KeyboardInterrupt
coordinator.status.local_view.folder_of = interrupted
potluck.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "status"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert _one_line(done, 130) == "potluck: interrupted; left at once"


def test_bug_is_one_line_and_exit_1_and_its_traceback_is_in_the_file_that_the_line_names(tmp_path: Path) -> None:
    program = """
import coordinator.status.local_view, potluck
def broken(*_arguments, **_options):
    raise LookupError("nobody thought of it")
coordinator.status.local_view.folder_of = broken
potluck.main()
"""
    command = [sys.executable, "-c", program, "status"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    line = _one_line(done, 1)
    assert line.startswith("potluck: LookupError: nobody thought of it; this is a bug; please report it with ")
    (file,) = tmp_path.iterdir()
    assert line.endswith(str(file))
    assert "in broken" in file.read_text(encoding="utf8")


def test_init_writes_a_run_file_and_keeps_one_that_is_there(tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    assert _potluck_from_its_start("init", str(run_file)).returncode == 0
    run_file.write_text("mine", encoding="utf8")
    assert "exists already" in _one_line(_potluck("init", str(run_file)), 3)
    assert run_file.read_text(encoding="utf8") == "mine"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[run]\nnmae = 'x'\n", "nmae"),
        ("[round]\ntarget_tokens = 0\n", "target_tokens"),
        ("[inner]\nlearning_rate = -1.0\n", "learning_rate"),
        ("[round]\ntarget_tokens = 'many'\n", "target_tokens"),
        ("[run\n", "run.toml"),
    ],
    ids=["unknown key", "zero", "negative", "wrong type", "not TOML"],
)
def test_host_with_a_manifest_that_cannot_work_is_one_line_and_exit_3(tmp_path: Path, text: str, found: str) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(text, encoding="utf8")
    done = _potluck("host", str(run_file), "--state-dir", str(tmp_path / "host"))
    assert found in _one_line(done, 3)
    assert not (tmp_path / "host").exists()


def test_host_without_its_run_file_is_one_line_and_exit_3(tmp_path: Path) -> None:
    done = _potluck("host", str(tmp_path / "none.toml"), "--state-dir", str(tmp_path / "host"))
    assert "potluck init" in _one_line(done, 3)


def test_dry_run_ends_with_0_or_the_code_of_what_is_wrong_and_leaves_nothing(tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    # one that has expired: its host is not asked
    done = _potluck("join", replace(INVITE, expires_unix_s=1).encode(), "--dry-run", *state)
    assert (done.returncode, done.stderr) == (0, "")
    assert "could not be asked: the invite expired" in done.stdout
    assert done.stdout.endswith("nothing was started, written or used up\n")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.toml").write_text("[run\n", encoding="utf8")
    assert "is no TOML" in _one_line(_potluck("host", str(tmp_path / "run.toml"), "--dry-run", *state), 3)
    assert not (tmp_path / "state").exists()


GOOD = INVITE.encode()


@pytest.mark.parametrize(
    ("pasted", "exit_code", "found"),
    [
        (["hello"], 3, "begins with 'hello'"),
        (["potluk1:" + GOOD[9:]], 3, "expected potluck1:..."),
        ([GOOD[9:]], 3, "expected potluck1:..."),
        (["potluck1:"], 3, "cut off or mistyped"),
        (["potluck1:!!!!"], 3, "cut off or mistyped"),
        ([GOOD[:-20]], 3, "cut off or mistyped"),
        ([GOOD[:40] + ("A" if GOOD[40] != "A" else "B") + GOOD[41:]], 3, "cut off or mistyped"),
        (["potluck9:AAAA"], 7, "install a newer potluck"),
        ([], 3, "no invite"),
    ],
    ids=["word", "prefix", "no prefix", "nothing", "no base64", "cut off", "one letter", "newer", "none"],
)
def test_join_with_what_is_no_invite_is_one_line_and_writes_nothing(
    tmp_path: Path, pasted: list[str], exit_code: int, found: str
) -> None:
    done = _potluck("join", *pasted, "--state-dir", str(tmp_path / "peer"))
    assert found in _one_line(done, exit_code)
    assert not (tmp_path / "peer").exists()


def test_join_refuses_an_expired_invite_before_anything_slow(tmp_path: Path) -> None:
    assert "the invite expired" in _one_line(
        _potluck("join", EXPIRED.encode(), "--state-dir", str(tmp_path / "peer")), 6
    )


@pytest.mark.parametrize("arguments", [("join",), ("invite",), ("status",), ("checkpoint", "list"), ("pause",)])
def test_commands_that_need_no_model_import_neither_torch_nor_hivemind_nor_grpc(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    program = f"""
import sys, potluck
sys.argv = ["potluck", *{arguments!r}, "--state-dir", {str(tmp_path)!r}]
code = potluck._run()
sys.exit(code != 3 or bool({{"torch", "hivemind", "grpc"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_join_says_at_once_that_it_checks_and_loads_and_then_what_this_machine_lacks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _potluck("join", GOOD, "--state-dir", str(tmp_path / "file"))
    assert done.stdout == "checking this machine and loading the training program, some seconds ...\n"
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith("potluck: disk: ")
    assert "choose another with --state-dir" in line


@pytest.mark.parametrize(
    ("pieces", "understood"),
    [
        ([GOOD], GOOD),
        ([f" {GOOD[:50]}\n  {GOOD[50:]}\n"], GOOD),
        ([GOOD[:50], GOOD[50:60], GOOD[60:]], GOOD),
        ([" "], ""),
    ],
    ids=["whole", "wrapped", "in pieces", "blank"],
)
def test_invite_pasted_with_line_breaks_or_spaces_is_understood(
    pieces: list[str], understood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def run_peer(_config: object, text: str, _worker: object, _run: str) -> int:
        heard.append(text)
        return 0

    monkeypatch.setattr("peer.commands._check_invite", lambda *_: None)
    monkeypatch.setattr("peer.daemon.run_peer", run_peer)
    monkeypatch.setattr("peer.training.worker_process.early_worker", nullcontext)
    assert CliRunner().invoke(potluck.app, ["join", *pieces], catch_exceptions=False).exit_code == 0
    assert heard == [understood]


def test_doctor_understands_an_invite_and_the_flags_of_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []

    def run_doctor(config: PeerConfig, text: str, *, as_json: bool) -> int:
        heard.extend((config.state_dir, config.listen_port, config.announce_host, config.no_listen, text, as_json))
        return 4

    monkeypatch.setattr("peer.checks.doctor.run_doctor", run_doctor)
    flags = ["--json", "--state-dir", str(tmp_path), "--listen-port", "4001", "--announce-host", "a.example"]
    assert CliRunner().invoke(potluck.app, ["doctor", GOOD[:50], GOOD[50:], *flags]).exit_code == 4
    assert heard == [tmp_path, 4001, "a.example", False, GOOD, True]


STARTED_NOWHERE_ELSE = ("logs", "invite", "checkpoint")
"""Of the commands about a run: tests/e2e starts the others."""


@pytest.mark.parametrize(
    ("arguments", "exit_code", "found"),
    [
        (["status"], 3, "no run is hosted from"),
        (["peers"], 3, "no run is hosted from"),
        (["rounds"], 3, "no run is hosted from"),
        (["logs"], 3, "no run is hosted from"),
        (["invite"], 3, "no run is hosted from"),
        (["ban", "somebody"], 3, "no run is hosted from"),
        (["ledger"], 3, "no run is hosted from"),
        (["checkpoint", "list"], 3, "no run is hosted from"),
    ],
    ids=["status", "peers", "rounds", "logs", "invite", "ban", "ledger", "list"],
)
@pytest.mark.parametrize("folder", ["absent", "of something else"])
def test_command_about_a_run_without_a_run_is_one_line(
    tmp_path: Path, arguments: list[str], exit_code: int, found: str, folder: str
) -> None:
    (tmp_path / "of something else").mkdir()
    start = _potluck_from_its_start if folder == "absent" and arguments[0] in STARTED_NOWHERE_ELSE else _potluck
    line = _one_line(start(*arguments, "--state-dir", str(tmp_path / folder)), exit_code)
    assert found in line
    assert "--state-dir" in line


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_pause_where_no_peer_has_run_is_one_line_and_exit_3(tmp_path: Path, command: str) -> None:
    assert "no peer has run from" in _one_line(_potluck(command, "--state-dir", str(tmp_path / "none")), 3)
    assert list(tmp_path.iterdir()) == []


def test_pause_and_resume_say_what_they_did(tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(b"somebody")
    where = ("--state-dir", str(tmp_path))
    assert _potluck_from_its_start("pause", "--for", "30", *where).stdout.startswith("paused for 30 minutes")
    assert _potluck("pause", "--for", "1h", *where).stdout.startswith("paused for 60 minutes")
    assert _potluck("pause", *where).stdout.startswith(f"paused until `potluck resume --state-dir {tmp_path}`")
    assert (tmp_path / "pause.json").read_text(encoding="utf8") == '{"until_unix_s":null}\n'
    assert _potluck_from_its_start("resume", *where).stdout == "the pause is over\n"
    assert _potluck("resume", *where).stdout == "it was not paused\n"


def _peer_with_log(folder: Path) -> Path:
    (folder / "peer" / "runs").mkdir(parents=True)
    log = LogFile(folder / "peer" / "logs" / "peer.log")
    for number in range(5):
        log.write(log_line({"event": "joined", "level": "info", "timestamp": "T", "number": number}))
    log.close()
    return folder / "peer"


def test_logs_shows_the_newest_lines_readable(tmp_path: Path) -> None:
    done = _potluck("logs", "--lines", "2", "--state-dir", str(_peer_with_log(tmp_path)))
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["T [info     ] joined number=3", "T [info     ] joined number=4"]


def test_logs_of_a_folder_without_a_log_says_so_with_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    line = _one_line(_potluck("logs", "--state-dir", str(tmp_path)), 3)
    assert f"no log at {tmp_path}/logs/" in line
    assert "begins with its first message" in line, "a daemon that runs may have told nothing yet"


def test_logs_follows_until_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _peer_with_log(tmp_path)
    log = LogFile(folder / "logs" / "peer.log")
    events = iter(["more", "rotated"])

    def meanwhile(_seconds: float) -> None:
        event = next(events, None)
        if event is None:
            raise KeyboardInterrupt
        if event == "rotated":
            (folder / "logs" / "peer.log").rename(folder / "logs" / "peer.log.1")
            log.close()
        log.write(log_line({"event": event}))

    monkeypatch.setattr("averaging.host.local_commands.time.sleep", meanwhile)
    potluck.local_commands.logs(folder, follow=True, lines=0)  # Ctrl-C is its end, and no failure
    log.close()
    assert capsys.readouterr().out.splitlines() == ["more", "rotated"]


def test_bugreport_has_no_secret_wherever_it_was_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "both", tmp_path / "out.zip"
    identity, authority_key = Identity(b"s" * 31 + b"!"), bytes(range(32, 64))
    folder.mkdir()
    for name in ("identity", "identity.key"):
        (folder / name).write_bytes(identity.libp2p_private_key_bytes())
    (folder / "authority.key").write_bytes(authority_key)
    with open_ledger(folder / LEDGER_FILE):
        pass  # a folder with a ledger is a host's
    (folder / STATUS_ADDRESS_FILE).write_text("http://127.0.0.1:9\n", encoding="ascii")
    membership = SavedMembership.model_construct(
        addresses=("192.0.2.7:1",), ca_certificate_der=b"ca", tls_key_pem=b"tls key tls key", credential=b"C" * 70,
        manifest=b"", dataset=b"", start_record=b"", coordinator_peer_id="p", bootstrap=(), peer_addresses=(),
    )  # fmt: skip
    save_membership(folder / "runs" / "r", membership)
    monkeypatch.setenv("SOME_API_TOKEN", "hunter2hunter2")
    planted = [
        GOOD,
        (b"s" * 31 + b"!").hex(),
        base64.b64encode(b"s" * 31 + b"!").decode().rstrip("=")[:-1],
        identity.libp2p_private_key_bytes().hex(),
        authority_key.hex(),
        base64.urlsafe_b64encode(authority_key).decode().rstrip("=")[:-1],
        "tls key tls key",
        base64.b64encode(b"C" * 70).decode()[:90],
        "hunter2hunter2",
        "hf_abcdefghijklmnopqrstuvwx",
        "192.0.2.7",
    ]
    text = "\n".join(json.dumps({"event": "e", "said": secret}) for secret in planted)
    (folder / "logs").mkdir()
    for name in ("peer.log", "peer.log.1", "host.log", "host.log.1"):
        (folder / "logs" / name).write_text(text, encoding="utf8")
    for secret in planted:
        (folder / secret.replace("/", "_")[:200]).write_bytes(b"")
    write_final_status(folder, PeerStatus(peer="p", name="n", reason=" ".join(planted)))
    monkeypatch.setenv("POTLUCK_HOST_ANNOUNCE_HOST", "192.0.2.7")
    monkeypatch.setenv("POTLUCK_PEER_HTTP_HOST", GOOD)
    potluck.local_commands.bugreport(folder, out)
    with zipfile.ZipFile(out) as archive:
        kept = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(kept) == {
        "machine.json",
        *(f"{kind}/{name}" for kind in ("host", "peer") for name in ("status.json", "settings.json", "files.txt")),
        *(f"{kind}/logs/{kind}.log{end}" for kind in ("host", "peer") for end in ("", ".1")),
    }
    found = [(name, secret) for name, content in kept.items() for secret in planted if secret[:200] in content]
    assert found == []
    said = capsys.readouterr().out
    assert all(name in said.split("wrote")[0] for name in kept)


def test_bugreport_never_overwrites_a_file(tmp_path: Path) -> None:
    (tmp_path / "peer" / "runs").mkdir(parents=True)
    out = tmp_path / "out.zip"
    out.write_text("mine", encoding="utf8")
    done = _potluck_from_its_start("bugreport", "--state-dir", str(tmp_path / "peer"), "--out", str(out))
    assert done.returncode == 3
    assert "exists already" in done.stderr
    assert out.read_text(encoding="utf8") == "mine"


def test_runs_below_a_folder_are_listed_and_what_is_damaged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="no run in"):
        potluck.local_commands.runs(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        potluck.local_commands.runs(tmp_path / "absent")
    joined = keep(tmp_path / "mine")
    (tmp_path / "hers").mkdir()
    (tmp_path / "hers" / LEDGER_FILE).write_bytes(b"no ledger at all" * 300)
    potluck.local_commands.runs(tmp_path, as_json=True)
    reported = json.loads(capsys.readouterr().out)
    assert [row["folder"] for row in reported["host"]] == [str(tmp_path / "hers")]
    assert [(row["folder"], row["note"]) for row in reported["peer"]] == [(str(joined), "")]
    potluck.local_commands.runs(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"hosted from {tmp_path / 'hers'}"
    assert [line for line in lines if line.startswith("cannot be read whole: ") and "is damaged" in line]
    assert f"joined, in {tmp_path / 'mine' / 'runs'}" in lines
    assert [line for line in lines if line.startswith(joined.name) and line.endswith("first-light (last)")]


def test_runs_are_looked_for_where_settings_put_them(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    keep(elsewhere)
    mine = {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert "no run in" in _one_line(_potluck("runs", **mine), 3)
    assert "first-light" in _potluck_from_its_start("runs", POTLUCK_PEER_STATE_DIR=str(elsewhere), **mine).stdout
    for flag in ("--dir", "--state-dir"):  # the name that it has at all other commands
        assert "first-light" in _potluck("runs", flag, str(elsewhere), **mine).stdout


def _without_a_home(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user id that the system does not know, with no HOME: a container's `--user 12345`."""
    program = "import os, pwd, sys; pwd.getpwuid = {}.__getitem__; sys.path.insert(0, os.environ['HERE'])"
    program += "; import potluck; potluck.main()"
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "PYTHONPATH")}
    command = [sys.executable, "-P", "-c", program, *arguments]
    return subprocess.run(
        command, env={**environment, "HERE": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False
    )


def test_no_home_a_command_needs_only_the_name_of_a_state_folder(tmp_path: Path) -> None:
    line = _one_line(_without_a_home("health"), 3)
    assert "no home folder" in line
    assert "--state-dir" in line
    assert "no home" not in _without_a_home("health", "--state-dir", str(tmp_path)).stderr


def test_completion_of_bash_knows_the_commands() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COMP_WORDS": "potluck sta", "COMP_CWORD": "1"}
    environment["_POTLUCK_COMPLETE"] = "complete_bash"
    command = [sys.executable, "-m", "potluck"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["status"]


def test_mistyped_command_is_answered_with_the_one_that_may_be_meant() -> None:
    line = _one_line(_potluck("statu"), 2)
    assert line == "potluck: No such command 'statu'. Did you mean 'status'?"


def test_log_level_that_there_is_not_is_one_line() -> None:
    assert "POTLUCK_LOG is 'chatty'" in _one_line(_potluck("status", POTLUCK_LOG="chatty"), 3)


def test_what_the_system_refuses_is_one_line_and_no_bug() -> None:
    line = _one_line(_potluck("status", "--state-dir", "x" * 5000), 4)
    assert "File name too long" in line
    assert len(line) < 500


def _into(stdout: int, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "potluck", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=300, check=False)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_hangup_ends_a_command_with_a_code_of_the_readmes_table(number: signal.Signals, tmp_path: Path) -> None:
    for name in ("runs", "logs"):
        (tmp_path / name).mkdir()
    log = tmp_path / "logs" / "peer.log"
    log.write_text('{"event": "here"}\n')
    command = [sys.executable, "-m", "potluck", "logs", "--follow", "--state-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert b"here" in following.stdout.readline()
        with log.open("a") as more:
            more.write('{"event": "more"}\n')
        assert b"more" in following.stdout.readline()
        following.send_signal(number)
        assert following.wait(100) == 0


def test_reader_that_has_heard_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _into(writer, "--version")
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("wrapper", ["PacifyFlushWrapper", "_PacifyFlushWrapper"])
def test_reader_that_left_is_known_by_the_wrapper_of_any_release_of_click(
    wrapper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(**_: object) -> None:
        monkeypatch.setattr(sys, "stdout", type(wrapper, (io.StringIO,), {})())
        sys.exit(1)

    monkeypatch.setattr(potluck, "app", leave)
    assert potluck._run() == 0


def test_output_that_nobody_can_take_is_one_line_and_no_bug() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = _into(full, "--version")
    finally:
        os.close(full)
    assert done.returncode == 4
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("potluck: ")
    assert "No space left" in line


def test_log_beside_a_live_screen_does_not_tear_it_and_the_file_has_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POTLUCK_LOG", raising=False)
    before, terminal = structlog.get_config(), io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=200)
    try:
        log_to_stderr()
        with keep_log(tmp_path / "peer.log"), Live("the panel", console=console, auto_refresh=False):
            structlog.get_logger().info("round_waits")
            for minutes in range(3):
                structlog.get_logger().warning("holder_not_counted", reason=f"silent for {minutes} min")
    finally:
        structlog.configure(**before)
    assert terminal.getvalue().count("warning: silent for 0 min") == 1
    assert "silent for 1 min" not in terminal.getvalue()
    assert "round_waits" not in terminal.getvalue()
    assert "round_waits" in (tmp_path / "peer.log").read_text()


def test_bugreport_of_a_host_whose_ledger_is_damaged_says_that(tmp_path: Path) -> None:
    state, out = tmp_path / "host", tmp_path / "report.zip"
    state.mkdir()
    (state / LEDGER_FILE).write_bytes(b"no database")
    done = _potluck("bugreport", "--state-dir", str(state), "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    with zipfile.ZipFile(out) as archive:
        assert "is damaged" in json.loads(archive.read("host/status.json"))["note"]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("sys.platform = 'win32'", "install WSL 2"),
        ("sys.modules['typer'] = None", "the Python package typer is missing"),
    ],
)
def test_what_cannot_run_potluck_is_told_in_one_line(before: str, told: str) -> None:
    command = [sys.executable, "-c", f"import sys; {before}; import potluck"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told in _one_line(done, 4)
