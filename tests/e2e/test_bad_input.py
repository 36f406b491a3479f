"""Errors on a volunteer's or a host's machine, with real processes around one host: each gives one line on standard error
with its own exit code, and hurts nobody else.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coordinator.checkpoints.checkpoints import verify_checkpoint
from coordinator.commands import make_invite
from protocol.identity.credential import make_ca
from protocol.identity.invite import Invite, decode_invite
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, Running, environment, running_potluck
from tests.e2e.run_file import run_toml, write_texts
from tests.forked import Forked

CALM = ("--slowdown", "50")
"""The machine's cores are for the others."""

UNWRITABLE = "checkpoint_failed.*could not be written"
RUN_TOML = run_toml(
    "tiny",
    1_000_000_000,
    run={"min_members": 1},
    data={"glob": "texts/*.txt"},
    round={"target_tokens": 100_000, "longest_interval_s": 2.0},
    checkpoint={"every_rounds": 1},
)
CLOCK = "from averaging.network.seams import clocks; clocks.SystemClock.unix_s = lambda self: clocks.time.time() + ({})"
REPLACED = """
import sys
def replaced(name, value):
    for module in list(sys.modules.values()):
        if name in vars(module) and module.__name__.split('.')[0] in ('protocol', 'averaging', 'peer', 'coordinator'):
            setattr(module, name, value)
"""
VERSION = f"{REPLACED}\nreplaced('PROTOCOL_VERSION', 3)"
SCHEMA = f"""{REPLACED}
import protocol.tensors.model_config as models, protocol.tensors.tensor_schema as tensors
ours = models.model_schema
def other(config, unit=models.WHOLE_MODEL):
    return tensors.TensorSchema(unit, ours(config, unit).tensors[1:])
replaced('model_schema', other)
"""


@dataclass(frozen=True)
class Run:
    """The one host, its one peer, and a copy of the first checkpoint."""

    folder: Path
    run_file: Path
    state: Path
    host: Running
    invite: Invite
    peer: Running
    used_invite: str
    checkpoint: Path
    forked: Forked

    def potluck(self, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        """A process of its own, whose imports were done before."""
        return self.forked.run(*arguments, cwd=ROOT, environment=environment(), before=before)

    @property
    def grpc_port(self) -> str:
        return self.invite.coordinator_addresses[0].rpartition(":")[2]

    @property
    def http_port(self) -> str:
        return self.host.wait_for(r"status +http://127\.0\.0\.1:(\d+)/")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    run_file, state = folder / "run.toml", folder / "host"
    run_file.write_text(RUN_TOML)
    write_texts(folder)
    with ExitStack() as stack:
        arguments = ("host", str(run_file), "--state-dir", str(state), *LOOPBACK)
        host = stack.enter_context(running_potluck(folder, "host", *arguments, forked=forked))
        invite = decode_invite(host.wait_for(r"(potluck1:\S+)\n"))
        line = make_invite(state, uses=1, hours=1.0)
        # As a terminal or a mail program may have broken it.
        pasted = (f"{line[:70]}\n  {line[70:200]}", line[200:])
        arguments = ("join", *pasted, "--state-dir", str(folder / "peer"), *PEER_FLAGS, *CALM)
        peer = stack.enter_context(running_potluck(folder, "peer", *arguments, forked=forked))
        # Asked first: where it cannot join, its own words say why.
        peer.wait_for(": training")
        host.wait_for("checkpoint_written")
        oldest = min((state / "checkpoints").glob("0*"))
        checkpoint = Path(shutil.copytree(oldest, folder / "checkpoint"))
        yield Run(folder, run_file, state, host, invite, peer, line, checkpoint, forked)


def _joining(run: Run, name: str, line: str, *flags: str, before: str = "") -> subprocess.CompletedProcess[str]:
    state = run.folder / f"peer {name}"
    return run.potluck("join", line, "--state-dir", str(state), *PEER_FLAGS, *flags, before=before)


def _hosting(run: Run, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    state = run.folder / f"host {name}"
    return run.potluck("host", str(run.run_file), "--state-dir", str(state), *LOOPBACK, *flags)


def _hosting_text(run: Run, name: str, old: str, new: str) -> subprocess.CompletedProcess[str]:
    run_file = run.folder / f"{name}.toml"
    run_file.write_text(RUN_TOML.replace(old, new))
    return run.potluck("host", str(run_file), "--state-dir", str(run.folder / f"host {name}"), *LOOPBACK)


def _expired(run: Run) -> subprocess.CompletedProcess[str]:
    return _joining(run, "expired", make_invite(run.state, uses=1, hours=1e-9))


def _wrong_authority(run: Run) -> subprocess.CompletedProcess[str]:
    other = make_ca(b"o" * 32, now_unix_s=time.time()).certificate_der
    return _joining(run, "authority", replace(run.invite, ca_certificate_der=other).encode())


def _verifying(run: Run, name: str, damage: Callable[[Path], None]) -> subprocess.CompletedProcess[str]:
    copy = Path(shutil.copytree(run.checkpoint, run.folder / f"checkpoint {name}"))
    damage(copy)
    return run.potluck("checkpoint", "verify", str(copy))


def _flip_a_bit(folder: Path) -> None:
    (path,) = (p for p in folder.glob("*.safetensors") if "momentum" not in p.name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _lose_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@dataclass(frozen=True)
class Mishap:
    """The user's act, the exit code, and parts of the one line: a pattern of what was found, and words of what to do."""

    do: Callable[[Run], subprocess.CompletedProcess[str]]
    exit_code: int
    found: str
    remedy: str


MISHAPS: Mapping[str, Mishap] = {
    "expired invite": Mishap(_expired, 6, "the invite expired", "ask the host for a new invite"),
    "used invite": Mishap(
        lambda run: _joining(run, "used", run.used_invite), 6, "used 1 of 1 times", "ask the host for a new one"
    ),
    "wrong authority": Mishap(_wrong_authority, 6, "not the host that made the invite", "check the address"),
    "other protocol version": Mishap(
        lambda run: _joining(run, "version", run.invite.encode(), before=VERSION), 7, "protocol version 2", "install"
    ),
    "other schema": Mishap(
        lambda run: _joining(run, "schema", run.invite.encode(), before=SCHEMA), 7, "other tensors", "same release"
    ),
    # Compared to within half the length of a call, which a busy machine makes long.
    "clock ahead": Mishap(
        lambda run: _joining(run, "ahead", run.invite.encode(), before=CLOCK.format(600)),
        6,
        "(59[5-9]|60[0-5]) s ahead of the host's",
        "set the clock",
    ),
    "clock behind": Mishap(
        lambda run: _joining(run, "behind", run.invite.encode(), before=CLOCK.format(-300)),
        6,
        "(29[5-9]|30[0-5]) s behind the host's",
        "set the clock",
    ),
    "identity in use": Mishap(
        lambda run: run.potluck("join", run.invite.encode(), "--state-dir", str(run.folder / "peer"), *PEER_FLAGS),
        4,
        "a peer runs from .* already",
        "potluck stop --state-dir",
    ),
    "peer port in use": Mishap(
        lambda run: _joining(run, "port", run.invite.encode(), "--listen-port", run.grpc_port),
        4,
        "Address already in use",
        "--listen-port",
    ),
    "grpc port in use": Mishap(
        lambda run: _hosting(run, "grpc", "--grpc-port", run.grpc_port), 4, "Address already in use", "--grpc-port"
    ),
    # Its page and its metrics share one port.
    "status port in use": Mishap(
        lambda run: _hosting(run, "http", "--http-port", run.http_port), 4, "Address already in use", "--http-port"
    ),
    "no text": Mishap(
        lambda run: _hosting_text(run, "text", "texts/*.txt", "none/*.txt"), 3, "matches nothing", "check the pattern"
    ),
    "checkpoint with a flipped bit": Mishap(lambda run: _verifying(run, "flip", _flip_a_bit), 4, "SHA-256", "older"),
    "checkpoint without manifest": Mishap(
        lambda run: _verifying(run, "bare", _lose_the_manifest), 3, "no checkpoint at", "potluck checkpoint list"
    ),
}


@pytest.mark.parametrize("name", MISHAPS)
def test_mishap_is_one_line_with_its_exit_code(run: Run, name: str) -> None:
    mishap = MISHAPS[name]
    done = mishap.do(run)
    assert done.returncode == mishap.exit_code, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("potluck: ")
    assert re.search(mishap.found, line), line
    assert mishap.remedy in line
    assert "Traceback" not in done.stdout


def test_checkpoint_that_cannot_be_written_is_said_and_the_next_one_works(run: Run) -> None:
    folder, aside = run.state / "checkpoints", run.state / "checkpoints.aside"
    folder.rename(aside)
    folder.write_bytes(b"no folder")
    run.host.wait_for(UNWRITABLE)
    written = run.host.count("checkpoint_written")
    folder.unlink()
    aside.rename(folder)
    run.host.wait_for("checkpoint_written", written + 1)
    # The run's first one is kept for ever, in the end without its momentum.
    kept, first = verify_checkpoint(min(folder.glob("0*"))), verify_checkpoint(run.checkpoint)
    assert (kept.commit, kept.state_root, kept.parameters) == (first.commit, first.state_root, first.parameters)


def test_status_peers_and_rounds_show_what_runs_from_a_folder(run: Run) -> None:
    hosted = run.potluck("status", "--state-dir", str(run.state))
    assert hosted.returncode == 0, hosted.stderr
    assert hosted.stdout.startswith(f"host, running, in {run.state}\ntiny: training")
    joined = json.loads(run.potluck("status", "--state-dir", str(run.folder / "peer"), "--json").stdout)
    assert joined["host"] is None
    assert (joined["peer"]["is_running"], joined["peer"]["status"]["run"]) == (True, "tiny")
    rows = json.loads(run.potluck("peers", "--state-dir", str(run.state), "--json").stdout)["host"]
    assert joined["peer"]["status"]["peer"] in [row["peer"] for row in rows]
    rounds = run.potluck("rounds", "--state-dir", str(run.folder / "peer"), "--last", "2").stdout.splitlines()
    assert rounds[0].split()[0] == "ROUND"
    assert "1: " in rounds[1]
    assert max(map(len, rounds)) <= 80


def test_trace_of_a_running_peer_is_written_and_one_of_a_folder_without_a_peer_is_refused(run: Run) -> None:
    target = run.folder / "round.json"
    traced = run.potluck("status", "--state-dir", str(run.folder / "peer"), "--trace", str(target))
    assert traced.returncode == 0, traced.stderr
    assert "of the newest round" in traced.stdout
    assert {"snapshot", "encode", "adopt"} <= {event["name"] for event in json.loads(target.read_text())["traceEvents"]}
    refused = run.potluck("status", "--state-dir", str(run.folder / "nobody"), "--trace", str(target))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (5, 1), refused.stderr


def test_host_and_peer_go_on_after_all_that(run: Run) -> None:
    assert run.host.process.poll() is None
    assert run.peer.process.poll() is None
    assert "Traceback" not in run.host.said() + run.peer.said()


def test_first_interrupt_of_a_peer_leaves_cleanly_and_the_second_at_once(run: Run) -> None:
    run.peer.interrupt()
    assert run.peer.exit_code() == 0
    assert "Traceback" not in run.peer.said()
    # The same command goes on without an invite.
    arguments = ("join", "--state-dir", str(run.folder / "peer"), *PEER_FLAGS, *CALM)
    with running_potluck(run.folder, "peer again", *arguments, forked=run.forked) as again:
        again.wait_for(": training")
        p2pd = again.freeze_p2pd()
        again.interrupt()
        again.wait_for(": leaving")
        again.interrupt()
        assert again.exit_code() == 130
        assert again.err.read_text().splitlines()[-1] == "potluck: interrupted again; leaving at once"
        assert "Traceback" not in again.said()
        p2pd.wait(timeout=100)


def test_second_interrupt_of_a_host_leaves_at_once(run: Run) -> None:
    p2pd = run.host.freeze_p2pd()
    run.host.interrupt()
    run.host.wait_for("host_leaving")
    run.host.interrupt()
    assert run.host.exit_code() == 130
    # the second line where all was closed already and only Python was left to end
    left = ("potluck: interrupted again; leaving at once", "potluck: interrupted; left at once")
    assert run.host.err.read_text().splitlines()[-1] in left
    assert "Traceback" not in run.host.said()
    p2pd.wait(timeout=100)
