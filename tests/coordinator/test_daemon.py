"""The host as a real process: started, joined over gRPC, killed without warning, started again, asked to leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from coordinator import daemon
from coordinator.policy.config import HostConfig
from coordinator.run.start_command import UNKNOWN
from peer.membership.coordinator_client import Caller, CoordinatorEndpoint, open_coordinator_client
from protocol.host.reports import PeerReport
from protocol.identity.credential import make_request, make_tls_key
from protocol.identity.invite import Invite, decode_invite
from protocol.identity.verifier import Ed25519Verifier
from protocol.run.manifest import open_manifest
from tests.coordinator.chain_world import PEERS
from tests.coordinator.host_world import UNIT
from tests.coordinator.run.test_run_files import write_run_file

_MAIN = """
import sys
from pathlib import Path
from coordinator.commands import host
from protocol.errors import PotluckError
try:
    code = host(Path(sys.argv[1]), {"state_dir": Path(sys.argv[2]), "listen_host": "127.0.0.1"})
except PotluckError as error:
    print(error.one_line())
    code = error.exit_code
sys.exit(code)
"""
START_LIMIT_S = 300.0


class HostProcess:
    """A host in its own session, and what it printed."""

    def __init__(self, run_file: Path, state: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            command = [sys.executable, "-c", _MAIN, str(run_file), str(state)]
            root = Path(__file__).parents[2]
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, cwd=root
            )

    def printed(self, pattern: str) -> str:
        """The first match of `pattern` in the output, waited for."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline_s:
            if match := re.search(pattern, self.log.read_text()):
                return match.group(1)
            if self.process.poll() is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.05)
        raise AssertionError(f"no {pattern} in: {self.log.read_text()}")

    def invite(self) -> Invite:
        return decode_invite(self.printed(r"(potluck1:\S+)\n"))

    def status(self) -> dict[str, object]:
        with urllib.request.urlopen(self.printed(r"status +(\S+)") + "api/status", timeout=START_LIMIT_S) as reply:
            status: dict[str, object] = json.loads(reply.read())
        return status

    def end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(timeout=START_LIMIT_S)


@contextmanager
def host_process(run_file: Path, state: Path, log: Path) -> Iterator[HostProcess]:
    running = HostProcess(run_file, state, log)
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)


async def join_and_report(invite: Invite, number: int, sequence: int, *, secret: bytes) -> str:
    """One peer is admitted and says that it is ready; returns the run's phase."""
    clock = SystemClock()
    peer = PEERS[number]

    async def next_sequence() -> int:
        return sequence

    endpoint = CoordinatorEndpoint(invite.coordinator_addresses, invite.ca_certificate_der, invite.run_id)
    async with (
        open_asyncio_thread() as thread,
        open_coordinator_client(thread, endpoint, Caller(peer, next_sequence, clock)) as client,
    ):
        request = make_request(peer, invite.run_id, make_tls_key(), clock.unix_s())
        reply = await client.admit(secret, request)
        open_manifest(reply.manifest, verifier=Ed25519Verifier(), expected_run_id=invite.run_id)
        assert reply.bootstrap[0].endswith(reply.coordinator_peer_id)
        ready = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)
        return (await client.report(ready)).phase


def test_interrupt_before_signals_are_watched_is_no_group_and_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_arguments: object, **_options: object) -> None:
        raise BaseExceptionGroup("nursery", [ValueError("also"), BaseExceptionGroup("inner", [KeyboardInterrupt()])])

    monkeypatch.setattr(daemon, "serve_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        daemon.run_host(tmp_path / "run.toml", HostConfig(state_dir=tmp_path), UNKNOWN)


async def test_host_survives_a_kill_with_its_run_its_ports_and_its_peers(tmp_path: Path) -> None:
    run_file, state = write_run_file(tmp_path), tmp_path / "state"
    with host_process(run_file, state, tmp_path / "first.log") as host:
        invite = host.invite()
        assert await join_and_report(invite, 0, 1, secret=invite.secret) == "gathering"
        assert await join_and_report(invite, 1, 1, secret=invite.secret) == "training"
        started = host.status()
        with host_process(run_file, state, tmp_path / "second.log") as second:
            assert second.process.wait(timeout=START_LIMIT_S) == 4
            assert "a host runs from" in second.log.read_text()
        host.end(signal.SIGKILL)
    with host_process(run_file, state, tmp_path / "again.log") as host:
        again = host.invite()
        assert (again.run_id, again.coordinator_addresses) == (invite.run_id, invite.coordinator_addresses)
        assert again.bootstrap == invite.bootstrap
        status = host.status()
        assert (status["phase"], status["head"]) == ("training", started["head"])
        # The same identity comes back without a fresh invite.
        assert await join_and_report(invite, 0, 2, secret=b"") == "training"
        assert host.end(signal.SIGINT) == 0
        assert "Traceback" not in host.log.read_text()


def test_nothing_that_imports_torch_stands_between_a_hosts_start_and_its_first_answer() -> None:
    check = "import sys, coordinator.daemon; sys.exit('torch' in sys.modules or 'hivemind' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", check], cwd=Path(__file__).parents[2], timeout=START_LIMIT_S, check=False
        ).returncode
        == 0
    )
