"""The conditions of taking part, with real processes: a ban beside the running host, and one identity on two machines."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.e2e.live_trace import KINDS, wait_for_whole_trace
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, Running, environment, running_potluck, wait_until
from tests.e2e.run_file import write_texts
from tests.e2e.test_host_away import CALM, RUN_TOML
from tests.forked import Forked


@dataclass
class Swarm:
    """A host and its peers."""

    folder: Path
    stack: ExitStack
    forked: Forked
    invite: str
    peers: dict[str, Running] = field(default_factory=dict)

    @property
    def host_folder(self) -> Path:
        return self.folder / "host"

    def join(self, name: str) -> Running:
        """Start a peer, in the folder of its name."""
        flags = ("--state-dir", str(self.folder / name), *PEER_FLAGS, *CALM)
        arguments = ("join", self.invite, *flags)
        peer = self.stack.enter_context(running_potluck(self.folder, name, *arguments, forked=self.forked))
        self.peers[name] = peer
        return peer

    def potluck(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return self.forked.run(*arguments, cwd=ROOT, environment=environment())

    def status(self, name: str) -> Mapping[str, object]:
        """A peer's own status; empty while it gives none."""
        url = self.peers[name].wait_for(r"status page: (http://\S+?)/?\s") + "/status.json"
        with suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=5) as reply:
            return dict(json.loads(reply.read()))
        return {}

    def index(self, name: str) -> int:
        return int(str(self.status(name).get("index", 0)))

    def wait_until(self, what: str, is_so: Callable[[], bool], *names: str) -> None:
        """Looks again and again; these peers must stay alive meanwhile."""
        wait_until(what, is_so, *(self.peers[name] for name in names))

    def wait_rounds(self, num_rounds: int, *names: str) -> None:
        """Until these peers have so many rounds more."""
        begin = max(self.index(name) for name in names)
        self.wait_until(
            f"{num_rounds} rounds of {names}",
            lambda: all(self.index(name) >= begin + num_rounds for name in names),
            *names,
        )


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[Swarm]:
    """A host and three peers for all tests here; each says whom it takes out."""
    with _swarm(tmp_path_factory.mktemp("membership"), forked, "one", "two", "bad") as swarm:
        yield swarm


@contextmanager
def _swarm(folder: Path, forked: Forked, *names: str) -> Iterator[Swarm]:
    run_file = folder / "run.toml"
    run_file.write_text(RUN_TOML)
    write_texts(folder)
    with ExitStack() as stack:
        hosting = ("host", str(run_file), "--state-dir", str(folder / "host"), *LOOPBACK)
        host = stack.enter_context(running_potluck(folder, "host process", *hosting, forked=forked))
        swarm = Swarm(folder, stack, forked, host.wait_for(r"(potluck1:\S+)\n"))
        for name in names:
            swarm.join(name)
        yield swarm
        assert all("Traceback" not in one.said() for one in (host, *swarm.peers.values()))


def test_the_trace_of_a_live_round_has_all_that_a_round_is_made_of_and_training_goes_on_meanwhile(swarm: Swarm) -> None:
    swarm.wait_rounds(1, "one", "two", "bad")
    seen = wait_for_whole_trace(swarm.peers["one"], swarm.folder / "one", swarm.folder / "trace.json")
    assert {event.unit for event in seen["compute"]} == {"training"}
    assert {event.unit for name in KINDS - {"compute"} for event in seen[name]} == {"fragment-0"}


def test_a_peer_that_is_banned_beside_the_running_host_ends_and_the_others_go_on_without_it(swarm: Swarm) -> None:
    swarm.wait_rounds(1, "one", "two", "bad")
    bad = str(swarm.status("bad")["name"])
    done = swarm.potluck("ban", bad, "--reason", "forged results", "--state-dir", str(swarm.host_folder))
    assert (done.returncode, done.stdout.startswith(f"banned {bad}")) == (0, True), done.stderr
    assert swarm.peers["bad"].exit_code() == 6
    assert "the host banned this peer from the run: forged results" in swarm.peers["bad"].said()
    swarm.wait_until(
        "all heard of it",
        lambda: all("peer_banned" in swarm.peers[name].said() for name in ("one", "two")),
        "one",
        "two",
    )
    swarm.wait_rounds(2, "one", "two")
    again = swarm.join("bad")
    assert again.exit_code() == 6
    assert "forged results" in again.said()


def test_an_identity_that_is_started_on_a_second_machine_goes_on_there_and_ends_here(swarm: Swarm) -> None:
    swarm.wait_rounds(1, "one", "two")
    there = swarm.folder / "there"
    there.mkdir(mode=0o700)
    shutil.copy2(swarm.folder / "two" / "identity", there / "identity")
    swarm.join("there")
    assert swarm.peers["two"].exit_code() == 4
    assert "another process with this identity joined with a newer session" in swarm.peers["two"].said()
    swarm.wait_rounds(2, "one", "there")
    assert swarm.peers["there"].process.poll() is None
