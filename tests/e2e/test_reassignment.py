"""Documents are sent to experts anew while two peers train, with real processes: the run begins with a router that mixes two kinds of
text; host and peers come to read what was packed since. Then the only holder of an expert is killed: the trunk and the other expert go
on, the page says that this one is frozen, and a newcomer takes it, with the new text and from the newest round that the host keeps.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from averaging.data.packing.document_router import DocumentRouter, fit_router, refit_router
from averaging.data.shards import DatasetManifest, parse_dataset
from coordinator.run.hosted_runs import MANIFEST_FILE
from peer.holdings.training_text import FILE_NAME
from protocol.host.reassignment import Reassignment, open_reassignment
from protocol.identity.identity import Ed25519Verifier
from protocol.identity.revocation import split_entries
from protocol.run.manifest import RunManifest, open_manifest
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, Running, environment, running_potluck
from tests.forked import Forked

WITHIN_S = 90.0
LOOK_EVERY_S = 0.1
CALM = ("--slowdown", "4")
LESS_PATIENCE = """
import coordinator.progress.run_view, coordinator.progress.unit_holders
coordinator.progress.run_view.LIVE_S, coordinator.progress.unit_holders.FROZEN_AFTER_S = 8.0, 5.0
"""
"""Of the host with a silent peer, and with an expert that nobody holds: a test need not wait for 40 s."""

RUN_TOML = """
[run]
name = "reassigned"
total_tokens = 1_000_000_000
min_members = 2
shards = "expert"
[model]
dim = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
ffn_dim = 32
context_tokens = 32
[data]
source = "text"
glob = "*.md"
heldout_every = 2
shard_bytes = 65536
[inner]
learning_rate = 0.01
batch_tokens = 64
[round]
target_tokens = 100_000_000
chunk_elements = 256
longest_interval_s = 1.0
[checkpoint]
every_rounds = 1000
[experts]
num_experts = 2
ffn_dim = 24
min_documents = 4
router = "router"
reassign_every_rounds = 2
"""


def _mixing_router(folder: Path) -> DocumentRouter:
    """It knows no difference between the two kinds of text: each expert is to have half of each."""
    documents = [path.read_bytes() for path in sorted(folder.glob("*.md"), key=lambda path: int(path.stem))]
    return refit_router(fit_router(documents, 2), documents, [number // 2 % 2 for number in range(len(documents))])


def _wait_until(what: str, is_so: Callable[[], bool], *running: Running) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not is_so():
        told = "\n".join(f"== {one.out.name}\n{one.said()[-1000:]}" for one in running)
        assert time.monotonic() < deadline_s, f"not within {WITHIN_S:.0f} s: {what}\n{told}"
        assert all(one.process.poll() is None for one in running), f"ended before: {what}\n{told}"
        with suppress(subprocess.TimeoutExpired):
            running[0].process.wait(timeout=LOOK_EVERY_S)


def _events(state_dir: Path, event: str) -> list[dict[str, object]]:
    """What a process wrote to its log."""
    lines = [line for path in (state_dir / "logs").glob("*") for line in path.read_text().splitlines()]
    return [each for line in lines if f'"{event}"' in line and (each := json.loads(line)).get("event") == event]


def _status(host: Running) -> dict[str, Any]:
    """What the host's page reads."""
    url = host.wait_for(r"status +(http://\S+?)/?\s") + "/api/status"
    with urllib.request.urlopen(url, timeout=5) as reply:
        status: dict[str, Any] = json.load(reply)
    return status


def _frozen_unit(host: Running) -> dict[str, Any] | None:
    """The one that the page shows as frozen, None while none is."""
    return next((unit for unit in _status(host)["units"] if unit["frozen"]), None)


def _status_text(folder: Path, forked: Forked) -> str:
    """What the host's `potluck status` shows."""
    return forked.run("status", "--state-dir", str(folder / "host"), cwd=ROOT, environment=environment()).stdout


def _manifest(folder: Path) -> RunManifest:
    return open_manifest((folder / "host" / MANIFEST_FILE).read_bytes(), verifier=Ed25519Verifier())


def _entry(folder: Path, name: str) -> Reassignment:
    """The newest one that the peer keeps."""
    manifest, path = _manifest(folder), next((folder / name).rglob(FILE_NAME))
    sealed, host_key = split_entries(path.read_bytes())[-1], bytes.fromhex(manifest.host_public_key)
    return open_reassignment(sealed, verifier=Ed25519Verifier(), run_id=manifest.run_id, host_public_key=host_key)


def _dataset(folder: Path, name: str, entry: Reassignment) -> DatasetManifest:
    return parse_dataset((folder / name / "data" / entry.manifest_sha256).read_bytes(), entry.dataset_id)


def _held(folder: Path, name: str) -> list[int]:
    (path,) = (folder / name).rglob("experts")
    held: list[int] = json.loads(path.read_bytes())
    return held


@pytest.mark.timeout(240)
def test_documents_go_to_other_experts_while_peers_train_and_a_newcomer_takes_up_the_frozen_one(
    tmp_path: Path, forked: Forked
) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    for number in range(24):
        text = (ROOT / ("README.md", "potluck.py")[number % 2]).read_text(encoding="utf8")
        (tmp_path / f"{number}.md").write_text(f"{number} {text[100 * number :]}")
    (tmp_path / "router").write_bytes(_mixing_router(tmp_path).to_bytes())
    with ExitStack() as stack:
        hosting = ("host", str(tmp_path / "run.toml"), "--state-dir", str(tmp_path / "host"), *LOOPBACK)
        opened = running_potluck(tmp_path, "host process", *hosting, forked=forked, before=LESS_PATIENCE)
        host = stack.enter_context(opened)
        invite = host.wait_for(r"(potluck1:\S+)\n")

        def join(name: str) -> Running:
            command = ("join", invite, "--state-dir", str(tmp_path / name), *PEER_FLAGS, *CALM)
            return stack.enter_context(running_potluck(tmp_path, f"peer {name}", *command, forked=forked))

        peers = {name: join(name) for name in ("a", "b")}

        def read(name: str) -> bool:
            return bool(_events(tmp_path / name, "reassigned_text_read"))

        _wait_until("both read what was packed anew", lambda: all(map(read, peers)), host, *peers.values())
        for name in peers:
            _check_text(tmp_path, name)

        (killed,) = [name for name in peers if _held(tmp_path, name) == [1]]
        peers.pop(killed).process.kill()
        (other,) = peers.values()
        frozen = partial(_frozen_unit, host)
        _wait_until("the page says that the expert is frozen", lambda: frozen() is not None, host, other)
        unit, index = frozen() or {}, _status(host)["index"]
        assert (unit["unit"], unit["holders"]) == ("expert-1", [])
        assert str(unit["why"]).startswith("nobody who is there holds it: it waits for a holder")
        assert f"expert-1: round {unit['index']}, frozen: nobody who is there" in _status_text(tmp_path, forked)
        _wait_until("the others go on", lambda: int(_status(host)["index"]) >= int(index) + 2, host, other)
        assert frozen() == unit, "it stands where it stood"
        newcomer = join("c")
        _wait_until(
            "the newcomer trains",
            lambda: bool(_events(tmp_path / "c", "contributed") or _events(tmp_path / "c", "round_came")),
            host,
            newcomer,
            other,
        )
        assert _held(tmp_path, "c") == [1], "the expert that nobody holds"
        (gone,) = _events(tmp_path / "c", "listed_and_not_there")
        assert len(list(gone["peers"])) == 1, "the one who was killed"
        (taken,) = _events(tmp_path / "c", "taken_from_host")
        assert 0 < unit["kept_index"] == taken["index"] <= unit["index"], (
            "it goes on where the host's newest state stands"
        )
        _wait_until("the page says that it goes on", lambda: frozen() is None, host, newcomer, other)
        assert _events(tmp_path / "c", "reassigned_text_here")
        first = DatasetManifest.model_validate_json((tmp_path / "host" / "data" / "dataset.json").read_bytes())
        fetched = {path.name for path in (tmp_path / "c" / "data").iterdir()}
        assert not fetched & {entry.sha256 for entry in first.part("train", 0)}
        assert all("Traceback" not in one.said() for one in (host, newcomer, other))


def _check_text(folder: Path, name: str) -> None:
    """What the peer reads is what the host signed, and it has the text of its own expert alone."""
    entry = _entry(folder, name)
    dataset, held = _dataset(folder, name, entry), _held(folder, name)
    assert dataset.router is not None
    assert dataset.router.root == entry.router_root.hex()
    fetched = {path.name for path in (folder / name / "data").iterdir()}
    assert fetched >= {file.sha256 for file in dataset.files_of(held)}
    (other,) = {0, 1} - set(held)
    own = {part.sha256 for part in dataset.part("train", held[0])}
    assert not fetched & ({part.sha256 for part in dataset.part("train", other)} - own)
    assert not _events(folder / name, "reassignment_refused")
