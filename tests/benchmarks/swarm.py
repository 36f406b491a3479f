"""A whole swarm for benchmarks: `potluck host` and some `potluck join` as real processes, looked at through their JSON and logs."""

from __future__ import annotations

import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from peer.demo.processes import Running, last_line, wait_for_invite
from peer.demo.summary import HostStatus
from peer.status.status import PeerStatus
from protocol.errors import MachineError
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.run.manifest import RunConfig
from tests.benchmarks.logs import LogFollower
from tests.benchmarks.places import Place, Places
from tests.benchmarks.processes import Children
from tests.ports import free_port

Model = TypeVar("Model", bound=BaseModel)

HOST_START_LIMIT_S: Final = 60.0
PEER_START_LIMIT_S: Final = 240.0
STARTED_AT_ONCE: Final = 8
"""A start takes five seconds of a processor; of 32 at once each would take minutes, and then look like one that hangs."""

MOST_STARTS: Final = 3
"""Of one peer, until it trains."""

HTTP_TIMEOUT_S: Final = 1.0
LOOK_EVERY_S: Final = 0.05
_POTLUCK: Final = (sys.executable, "-m", "potluck")


@dataclass
class BenchPeer:
    """One peer: its corner, its folder, and its running process."""

    number: int
    place: Place
    state_dir: Path
    running: Running
    url: str
    log: LogFollower
    peer_id: str = ""
    is_reachable: bool = True
    """False while it is frozen or cut off: asking it would only cost time."""

    @property
    def short(self) -> str:
        """As logs name it."""
        return peer_name(PeerId(self.peer_id)) if self.peer_id else ""

    @property
    def is_running(self) -> bool:
        """Whether its daemon has not ended."""
        return self.running.exit_code() is None

    def status(self) -> PeerStatus | None:
        """Its own status now."""
        return fetch(self.url, PeerStatus) if self.is_reachable and self.is_running else None


@dataclass
class Swarm:
    """The running host and peers, by number from 1."""

    children: Children
    directory: Path
    places: Places
    peer_environment: Mapping[str, str]
    peer_flags: tuple[str, ...]
    peer_module: str
    host_command: tuple[str, ...]
    host: Running
    host_url: str
    invite: str
    peers: dict[int, BenchPeer] = field(default_factory=dict)

    def start_host(self) -> Running:
        """Start the host again on its folder and ports."""
        self.host = self.children.start("host", self.host_command, {})
        return self.host

    def start_peer(self, number: int) -> BenchPeer:
        """Start a peer on its state folder, or start it again."""
        place, state_dir = self.places.peers[number - 1], self.directory / f"peer-{number}"
        port = free_port()
        command = [
            *place.prefix,
            sys.executable,
            "-m",
            self.peer_module,
            "join",
            self.invite,
            "--state-dir",
            str(state_dir),
        ]
        command += ["--listen-host", place.address, "--http-port", str(port), *self.peer_flags]
        environment = {"POTLUCK_PEER_HTTP_HOST": place.address, "POTLUCK_PEER_SCREEN": "plain"}
        running = self.children.start(f"peer-{number}", command, {**environment, **self.peer_environment})
        url = f"http://{place.address}:{port}/status.json"
        before = self.peers.get(number)
        log = LogFollower(running.log_file) if before is None else before.log
        peer = BenchPeer(number, place, state_dir, running, url, log, before.peer_id if before else "")
        self.peers[number] = peer
        return peer

    def host_status(self) -> HostStatus | None:
        """The host's view of the run."""
        return fetch(self.host_url, HostStatus)

    def close_logs(self) -> None:
        """Read no further."""
        for peer in self.peers.values():
            peer.log.close()

    def by_short(self, short: str) -> BenchPeer | None:
        """The peer that logs call so."""
        return next((peer for peer in self.peers.values() if peer.short == short), None)


def fetch(url: str, model: type[Model]) -> Model | None:
    """The JSON at `url` as a typed value, None when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as response:
            return model.model_validate_json(response.read())
    except (urllib.error.URLError, OSError, http.client.HTTPException, ValidationError):
        return None  # also where it was killed in the middle of its answer


def wait_until(condition: Callable[[], bool], limit_s: float, every_s: float = LOOK_EVERY_S) -> bool:
    """Ask again and again; whether it came true in time."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(every_s)
    return True


def start_swarm(
    children: Children,
    directory: Path,
    places: Places,
    config: RunConfig,
    *,
    peer_environment: Mapping[str, str],
    peer_flags: tuple[str, ...],
    peer_module: str = "potluck",
) -> Swarm:
    """Open the run and start a peer in each place; returns when all of them train. `peer_module` is run with potluck's arguments.

    Raises:
        MachineError: somebody did not start in time.
    """
    run_file = directory / "run.toml"
    run_file.write_text(tomli_w.dumps(config.model_dump(mode="json")), encoding="utf8")
    port = free_port()
    flags = ("--state-dir", str(directory / "host"), "--http-port", str(port), "--listen-host", places.host_address)
    command = (*_POTLUCK, "host", str(run_file), *flags)
    host = children.start("host", command, {})
    invite = wait_for_invite(host, HOST_START_LIMIT_S)
    url = f"http://127.0.0.1:{port}/api/status"
    swarm = Swarm(children, directory, places, peer_environment, peer_flags, peer_module, command, host, url, invite)
    if not wait_until(lambda: swarm.host_status() is not None, HOST_START_LIMIT_S):
        raise MachineError(f"the host answers nobody: {last_line(host)}", "an open run")
    for number in range(1, len(places.peers) + 1):
        swarm.start_peer(number)
        if number % STARTED_AT_ONCE == 0:
            wait_until(lambda: all(_answers(peer) for peer in swarm.peers.values()), PEER_START_LIMIT_S)
    _await_training(swarm)
    return swarm


def _await_training(swarm: Swarm) -> None:
    """Until all peers train: of a run that waits for all of them none does before. One that ended instead is started again, as its
    owner would do: on a busy machine the host may answer late, and somebody else may have taken the port that was free before.
    """
    deadline_s, num_starts = time.monotonic() + PEER_START_LIMIT_S, dict.fromkeys(swarm.peers, 1)
    waited_for = set(swarm.peers)
    while waited_for:
        for number in sorted(waited_for):
            peer = swarm.peers[number]
            if _is_training(peer):
                waited_for.discard(number)
            elif time.monotonic() >= deadline_s or (not peer.is_running and num_starts[number] == MOST_STARTS):
                raise MachineError(f"peer {number} did not start: {last_line(peer.running)}", "a training peer")
            elif not peer.is_running:
                num_starts[number] += 1
                swarm.start_peer(number)
        time.sleep(LOOK_EVERY_S)


def _answers(peer: BenchPeer) -> bool:
    """Whether its start is over, one way or the other."""
    return not peer.is_running or peer.status() is not None


def _is_training(peer: BenchPeer) -> bool:
    status = peer.status()
    if status is None:
        return False
    peer.peer_id = status.peer
    return status.state == "training" and status.tokens_trained > 0
