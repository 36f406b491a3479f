"""`potluck uninstall`: removes what a peer wrote, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import peer
from peer.installed.uninstall import find_installed, plan_lines, program_removal, uninstall
from peer.owner.running_peer import running_peer
from peer.owner.user_service import UNIT
from protocol.errors import ConfigError, MachineError
from protocol.identity.identity_file import open_identity
from tests.peer.owner.test_user_service import Systemctl

WRITTEN = (
    "last_run",
    "session",
    "addresses.json",
    "told_outbound_only",
    "traffic_today.json",
    "pause.json",
    "pause.json.0a1b2c3d",
    "final_status.json",
    "final_status.tmp",
    "settings_in_use.json",
    "settings_in_use.unfinished",
    "status_address",
    ".identity.4711",
)


NAMED = re.compile(r"state_dir / ([A-Za-z_]+|\"[^\"/]+\")")
"""The names that the peer's modules give to files and folders of its state folder."""


def yes(_question: str) -> bool:
    return True


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder as a peer leaves it."""
    folder = tmp_path / "peer"
    for name in ("runs/0123456789abcdef/whole", "data", "logs"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_bytes(b"x" * 2_000_000)
    for name in WRITTEN:
        (folder / name).write_text("1\n")
    with open_identity(folder / "identity"):
        pass
    return folder


def test_all_that_a_peer_wrote_is_shown_with_sizes_and_removed_after_one_yes(tmp_path: Path, state: Path) -> None:
    found = find_installed(state, tmp_path / UNIT)
    text = "\n".join(plan_lines(found))
    assert "2.0 MB  data  data cache" in text
    assert "2.0 MB  runs  " in text
    assert f"{len(WRITTEN)} small files" in text
    asked: list[str] = []
    assert uninstall(found, lambda question: bool(asked.append(question))) == ["nothing was removed"]
    assert sorted(os.listdir(state)) == sorted([*WRITTEN, "identity", "runs", "data", "logs"])
    assert len(asked) == 1
    assert uninstall(found, yes) == [f"removed: {state}"]
    assert not state.exists()
    assert find_installed(state, tmp_path / UNIT).is_empty


def test_every_file_and_folder_that_the_peer_names_in_its_state_folder_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    folder.mkdir()
    for path in sorted((Path(peer.__file__).parent).rglob("*.py")):
        for word in NAMED.findall(path.read_text(encoding="utf8")):
            module = import_module(
                ".".join(("peer", *path.relative_to(Path(peer.__file__).parent).with_suffix("").parts))
            )
            (folder / (word[1:-1] if word.startswith('"') else getattr(module, word))).touch()
    assert len(os.listdir(folder)) >= 12
    assert find_installed(folder, tmp_path / UNIT).others == ()


@pytest.mark.parametrize("beside", [(), ("host",)], ids=["alone", "beside a host"])
def test_folder_above_the_usual_state_folder_goes_with_it_unless_a_host_is_there(
    beside: tuple[str, ...], tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    above = tmp_path / "state" / "potluck"
    above.mkdir(parents=True)
    for name in beside:
        (above / name).mkdir()
    state.rename(above / "peer")
    uninstall(find_installed(above / "peer", tmp_path / UNIT), yes)
    assert sorted(path.name for path in above.parent.glob("potluck/*")) == sorted(beside)
    assert above.exists() == bool(beside)


def test_files_of_others_in_the_state_folder_stay_and_are_named(tmp_path: Path, state: Path) -> None:
    others = ("session.txt", "thesis.doc", "addresses.csv", "identity.backup")
    for name in others:
        (state / name).write_text("mine")
    found = find_installed(state, tmp_path / UNIT)
    assert found.others == tuple(sorted(others))
    assert "not ours, stays there: addresses.csv, identity.backup" in "\n".join(plan_lines(found))
    assert uninstall(found, yes) == [f"removed: {state}, apart from what is not ours"]
    assert sorted(os.listdir(state)) == sorted(others)


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path, state: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "file").write_text("mine")
    (state / "data" / "file").unlink()
    (state / "data").rmdir()
    (state / "data").symlink_to(treasure)
    (state / "runs" / "0123456789abcdef" / "link").symlink_to(treasure)
    found = find_installed(state, tmp_path / UNIT)
    assert f"a link to {treasure}; only the link is removed" in "\n".join(plan_lines(found))
    uninstall(found, yes)
    assert not state.exists()
    assert (treasure / "file").read_text() == "mine"


def test_a_state_folder_that_is_a_link_is_refused_and_the_true_one_named(tmp_path: Path, state: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(state)
    with pytest.raises(ConfigError, match=f"is a link; expected the folder itself; name it: --state-dir {state}"):
        find_installed(link, tmp_path / UNIT)


def test_nothing_is_removed_while_another_process_has_the_identity_or_a_run_is_hosted_there(
    tmp_path: Path, state: Path
) -> None:
    found = find_installed(state, tmp_path / UNIT)
    with open_identity(state / "identity"), pytest.raises(MachineError, match="in use by another process"):
        uninstall(found, yes)
    with pytest.raises(ConfigError, match="a run is hosted from"):
        uninstall(found, yes, is_hosted=lambda folder: folder == state)
    assert (state / "data" / "file").exists()


def test_a_running_peer_is_asked_to_leave_first(tmp_path: Path, state: Path) -> None:
    leaves = (
        "import json, os, psutil, signal, sys, pathlib\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "record = {'pid': os.getpid(), 'started_unix_s': psutil.Process().create_time()}\n"
        "def leave(*_):\n"
        "    (folder / 'final_status.json').write_text('goodbye')\n"
        "    (folder / 'process.json').unlink()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "(folder / 'process.json').write_text(json.dumps(record))\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", leaves, str(state)], stdout=subprocess.PIPE, cwd="/")
    assert process.stdout is not None
    process.stdout.readline()
    assert running_peer(state) is not None
    found = find_installed(state, tmp_path / UNIT)
    assert "the running peer leaves first, with a goodbye" in plan_lines(found)
    said = uninstall(found, yes)
    assert said[0] == "the peer has left"
    assert process.wait(10) == 0
    process.stdout.close()
    assert not state.exists()


@pytest.mark.parametrize("fails_at", ["", "disable"])
def test_the_service_is_removed_also_where_systemd_does_not_answer(tmp_path: Path, fails_at: str) -> None:
    unit = tmp_path / "user" / UNIT
    link = unit.parent / "default.target.wants" / UNIT
    link.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    link.symlink_to(unit)
    found = find_installed(tmp_path / "none", unit)
    assert not found.is_empty
    said = uninstall(found, yes, Systemctl(fails_at))
    assert not unit.exists()
    assert os.path.lexists(link) is (not fails_at)  # a systemd that answers removes it itself
    assert ("Failed to connect to bus" in said[0]) is bool(fails_at)


@pytest.mark.parametrize(
    ("prefix", "installer", "is_editable", "expected"),
    [
        ("/home/me/.local/share/uv/tools/potluck-train", "uv", False, "uv tool uninstall potluck-train"),
        ("/home/me/.cache/uv/archive-v0/abc", "uv", False, "uv cache clean potluck-train"),
        ("/home/me/.local/share/pipx/venvs/potluck-train", "pip", False, "pipx uninstall potluck-train"),
        ("/venv", "uv", False, "uv pip uninstall potluck-train"),
        ("/venv", "pip", False, "/venv/bin/python -m pip uninstall potluck-train"),
        ("/venv", "pip", True, "delete the folder of your clone"),
        ("/venv", "", False, "delete the folder of your clone"),
    ],
)
def test_the_way_to_remove_the_program_fits_how_it_was_installed(
    prefix: str, installer: str, is_editable: bool, expected: str
) -> None:
    assert program_removal(prefix, f"{prefix}/bin/python", installer, is_editable) == expected
