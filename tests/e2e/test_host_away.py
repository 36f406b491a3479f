"""The host is killed while two peers train: they go on by themselves, one that is killed comes back, and the host catches up when it
is started again, from an old copy of its folder too.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from coordinator.checkpoints.checkpoints import verify_checkpoint
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, Running, running_potluck, wait_until
from tests.e2e.run_file import run_toml, write_texts
from tests.forked import Forked

NUM_PEERS = 2
NUM_ROUNDS_ALONE = 2
CALM = ("--slowdown", "20")
"""Two peers and a host share two cores."""

RUN_TOML = run_toml(
    "host-away",
    1_000_000_000,
    data={"glob": "texts/*.txt"},
    round={"target_tokens": 100_000, "longest_interval_s": 2.0},
    checkpoint={"every_rounds": 1},
)

Status = Mapping[str, object]


def _fetch(url: str) -> Status:
    """A process's own status; empty while no process answers there."""
    with suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=5) as reply:
        return dict(json.loads(reply.read()))
    return {}


def _index(status: Status) -> int:
    return int(str(status.get("index", 0)))


def _peer_url(peer: Running) -> str:
    return peer.wait_for(r"status page: (http://\S+?)/?\s") + "/status.json"


def _host_url(host: Running) -> str:
    return host.wait_for(r"status +(http://\S+?)/?\s") + "/api/status"


def _checkpoint_indices(state: Path) -> Mapping[int, Path]:
    return {int(path.name.partition("-")[0]): path for path in (state / "checkpoints").glob("0*")}


@dataclass
class Scene:
    """A host and two peers, and what was seen of them."""

    folder: Path
    stack: ExitStack
    forked: Forked
    host: Running
    invite: str
    peers: list[Running] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    @property
    def state(self) -> Path:
        """The host's folder."""
        return self.folder / "host"

    @property
    def running(self) -> tuple[Running, ...]:
        """Everybody."""
        return (self.host, *self.peers)

    def join(self, number: int, name: str, *arguments: str) -> None:
        """Start a peer in its folder."""
        command = ("join", *arguments, "--state-dir", str(self.folder / f"peer {number}"), *PEER_FLAGS, *CALM)
        peer = self.stack.enter_context(running_potluck(self.folder, name, *command, forked=self.forked))
        self.peers[number : number + 1] = [peer]
        self.urls[number : number + 1] = [_peer_url(peer)]

    def statuses(self) -> list[Status]:
        """The peers' status."""
        return [_fetch(url) for url in self.urls]

    def start_host_again(self, name: str) -> None:
        """With whatever its folder holds now."""
        hosting = ("host", str(self.folder / "run.toml"), "--state-dir", str(self.state), *LOOPBACK)
        self.host = self.stack.enter_context(running_potluck(self.folder, name, *hosting, forked=self.forked))

    def kill_host(self) -> None:
        self.host.process.kill()
        self.host.process.wait()


@contextmanager
def _scene(folder: Path, forked: Forked) -> Iterator[Scene]:
    run_file, state = folder / "run.toml", folder / "host"
    run_file.write_text(RUN_TOML)
    write_texts(folder)
    with ExitStack() as stack:
        hosting = ("host", str(run_file), "--state-dir", str(state), *LOOPBACK)
        host = stack.enter_context(running_potluck(folder, "host", *hosting, forked=forked))
        scene = Scene(folder, stack, forked, host, host.wait_for(r"(potluck1:\S+)\n"))
        shutil.copytree(state, folder / "copy")
        for number in range(NUM_PEERS):
            scene.join(number, f"peer {number}", scene.invite)
        yield scene
        assert all("Traceback" not in one.said() for one in scene.running)


def test_peers_go_on_and_come_back_without_the_host_and_it_catches_up_from_its_folder_and_from_an_old_copy(
    tmp_path: Path, forked: Forked
) -> None:
    with _scene(tmp_path, forked) as scene:
        wait_until("a first round and its checkpoint", lambda: bool(_checkpoint_indices(scene.state)), *scene.running)
        scene.kill_host()
        before = _the_peers_go_on(scene)
        _a_killed_peer_comes_back(scene)
        alone = min(_index(status) for status in scene.statuses())
        assert max(_checkpoint_indices(scene.state)) <= before

        scene.start_host_again("host again")
        _the_host_catches_up(scene, alone, before)

        scene.kill_host()
        shutil.rmtree(scene.state)
        shutil.copytree(tmp_path / "copy", scene.state)
        scene.start_host_again("host from a copy")
        _the_host_catches_up(scene, min(_index(status) for status in scene.statuses()), before)


def _the_peers_go_on(scene: Scene) -> int:
    """Their rounds are their own, and the same at both. Returns where they stood when the host went."""
    before = max(_index(status) for status in scene.statuses())
    roots: list[dict[str, str]] = [{} for _ in scene.urls]

    def are_on_by(num_rounds: int) -> bool:
        statuses = scene.statuses()
        for seen, status in zip(roots, statuses, strict=True):
            if _index(status) >= before + 1 and status["state_root"]:
                seen[str(status["state_commit"])] = str(status["state_root"])
        return all(_index(status) >= before + num_rounds for status in statuses)

    def is_one_commit_seen_at_both() -> bool:
        are_on_by(0)
        return bool(roots[0].keys() & roots[1].keys())

    wait_until("rounds without a host", lambda: are_on_by(NUM_ROUNDS_ALONE), *scene.peers)
    wait_until("a commit that both peers name", is_one_commit_seen_at_both, *scene.peers)
    common = roots[0].keys() & roots[1].keys()
    assert {c: roots[0][c] for c in common} == {c: roots[1][c] for c in common}
    return before


def _a_killed_peer_comes_back(scene: Scene) -> None:
    """The seed that everybody knows is dead, too: it finds the other by itself, and has the start of the run from it."""
    scene.peers[1].process.kill()
    scene.peers[1].process.wait()
    _forget_the_start(scene.folder / "peer 1")
    scene.join(1, "peer 1 again")
    wait_until(
        "a round that counts the peer that came back",
        lambda: int(str(_fetch(scene.urls[1]).get("rounds_counted", 0))) >= 1,
        *scene.peers,
    )


def _forget_the_start(state_dir: Path) -> None:
    """As if the peer had been admitted and had not heard that the run started."""
    (file,) = state_dir.glob("runs/*/membership.json")
    saved = json.loads(file.read_text())
    assert saved["start_record"]
    file.write_text(json.dumps({**saved, "start_record": ""}))


def _the_host_catches_up(scene: Scene, alone: int, before: int) -> None:
    """It comes to the head of the peers, round `alone`, and keeps a checkpoint of a round later than `before`."""
    url = _host_url(scene.host)
    wait_until("the host at the peers' round", lambda: _index(_fetch(url)) >= alone, *scene.running)
    wait_until(
        "a checkpoint of a round without the host, or later",
        lambda: max(_checkpoint_indices(scene.state), default=0) > before,
        *scene.running,
    )
    _, newest = max(_checkpoint_indices(scene.state).items())
    assert verify_checkpoint(newest).index > before
