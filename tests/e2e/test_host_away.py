"""The host is killed while two peers train: they go on by themselves, and the host catches up when it is started again, from an old
copy of its folder too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from coordinator.checkpoints import verify_checkpoint
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, Running, running_potluck

WITHIN_S = 40.0
LOOK_EVERY_S = 0.1
NUM_PEERS = 2
NUM_ROUNDS_ALONE = 2
CALM = ("--slowdown", "20")
"""Two peers and a host share two cores."""

RUN_TOML = """
[run]
name = "host-away"
total_tokens = 1_000_000_000
min_members = 2
[model]
dim = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
ffn_dim = 32
context_tokens = 32
[data]
source = "text"
glob = "texts/*.txt"
shard_bytes = 4096
[inner]
learning_rate = 0.01
batch_tokens = 64
[round]
target_tokens = 100_000
chunk_elements = 256
longest_interval_s = 2.0
[checkpoint]
every_rounds = 1
"""

Status = Mapping[str, object]


def _fetch(url: str) -> Status:
    """What a process says about itself; empty while nobody answers there."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        return dict(json.loads(reply.read()))
    return {}


def _index(status: Status) -> int:
    return int(str(status.get("index", 0)))


def _wait_until(what: str, is_so: Callable[[], bool], *running: Running) -> None:
    """Looks again and again; all of `running` must stay alive meanwhile."""
    deadline_s = time.monotonic() + WITHIN_S
    while not is_so():
        told = "\n".join(f"== {one.out.name}\n{one.said()[-2000:]}" for one in running)
        assert time.monotonic() < deadline_s, f"not within {WITHIN_S:.0f} s: {what}\n{told}"
        assert all(one.process.poll() is None for one in running), f"ended before: {what}\n{told}"
        with suppress(subprocess.TimeoutExpired):
            running[0].process.wait(timeout=LOOK_EVERY_S)


def _peer_url(peer: Running) -> str:
    return peer.wait_for(r"status page: (http://\S+?)/?\s") + "/status.json"


def _host_url(host: Running) -> str:
    return host.wait_for(r"status +(http://\S+?)/?\s") + "/api/status"


def _checkpoint_indices(state: Path) -> Mapping[int, Path]:
    return {int(path.name.partition("-")[0]): path for path in (state / "checkpoints").glob("0*")}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("comes_back_with", ["its folder", "a copy from before the start"])
def test_peers_go_on_without_the_host_and_it_catches_up_when_it_is_back(tmp_path: Path, comes_back_with: str) -> None:
    run_file, state = tmp_path / "run.toml", tmp_path / "host"
    run_file.write_text(RUN_TOML)
    (tmp_path / "texts").mkdir()
    for number in range(4):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text number {number}, " * 100)
    hosting = ("host", str(run_file), "--state-dir", str(state), *LOOPBACK)
    with ExitStack() as stack:
        host = stack.enter_context(running_potluck(tmp_path, "host", *hosting))
        invite = host.wait_for(r"(potluck1:\S+)\n")
        shutil.copytree(state, tmp_path / "copy")
        peers = [
            stack.enter_context(
                running_potluck(tmp_path, name, "join", invite, "--state-dir", str(tmp_path / name), *PEER_FLAGS, *CALM)
            )
            for name in (f"peer {number}" for number in range(NUM_PEERS))
        ]
        urls = [_peer_url(peer) for peer in peers]
        _wait_until("a first round and its checkpoint", lambda: bool(_checkpoint_indices(state)), host, *peers)

        host.process.kill()
        host.process.wait()
        # Read after the host's end: every later round is the peers' own.
        before = max(_index(_fetch(url)) for url in urls)
        roots: list[dict[str, str]] = [{} for _ in urls]

        def peers_are_on_by(num_rounds: int) -> bool:
            statuses = [_fetch(url) for url in urls]
            for seen, status in zip(roots, statuses, strict=True):
                if _index(status) >= before + 1 and status["state_root"]:
                    seen[str(status["state_commit"])] = str(status["state_root"])
            return all(_index(status) >= before + num_rounds for status in statuses)

        def is_one_commit_seen_at_both() -> bool:
            peers_are_on_by(0)
            return bool(roots[0].keys() & roots[1].keys())

        _wait_until("rounds without a host", lambda: peers_are_on_by(NUM_ROUNDS_ALONE), *peers)
        _wait_until("a commit that both peers name", is_one_commit_seen_at_both, *peers)
        common = roots[0].keys() & roots[1].keys()
        assert {c: roots[0][c] for c in common} == {c: roots[1][c] for c in common}

        alone = min(_index(_fetch(url)) for url in urls)
        assert max(_checkpoint_indices(state)) <= before

        if comes_back_with != "its folder":
            shutil.rmtree(state)
            shutil.copytree(tmp_path / "copy", state)
        host = stack.enter_context(running_potluck(tmp_path, "host again", *hosting))
        url = _host_url(host)
        _wait_until("the host at the peers' round", lambda: _index(_fetch(url)) >= alone, host, *peers)
        _wait_until(
            "a checkpoint of a round without the host, or later",
            lambda: max(_checkpoint_indices(state), default=0) > before,
            host,
            *peers,
        )
        _, newest = max(_checkpoint_indices(state).items())
        assert verify_checkpoint(newest).index > before
        assert all("Traceback" not in one.said() for one in (host, *peers))
