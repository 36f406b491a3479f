"""One small run from its first peer to its end, with real processes: chats of a parquet file, whose answers count and which do not see
each other, as tokens of a vocabulary made from them.
A newcomer to a full run is told to come again, and one after its end that the run has ended.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from coordinator.checkpoints.checkpoints import verify_checkpoint
from peer.status.status import last_status
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, Running, environment, running_potluck
from tests.e2e.run_file import run_toml
from tests.forked import Forked

RUN_TOML = run_toml(
    "whole",
    2_000,
    run={"min_members": 1, "max_members": 1},
    model={"vocab_size": 300},
    data={
        "source": "parquet",
        "glob": "*.parquet",
        "format": "chat",
        "chat_template": "chat.jinja",
        "isolate": True,
        "tokenizer": "bpe",
        "heldout_every": 4,
    },
    round={"target_tokens": 500, "longest_interval_s": 2.0},
)

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}Q: {{ m.content }} {% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Scene:
    """The host, the invite, and the one peer that there is room for; its owner has paused it before it began."""

    folder: Path
    forked: Forked
    host: Running
    invite: str
    peer: Running

    @property
    def peer_folder(self) -> str:
        return str(self.folder / "peer")

    def join(self, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Somebody else, who is sent away."""
        return self.potluck("join", self.invite, "--state-dir", str(self.folder / name), *PEER_FLAGS, *flags)

    def potluck(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return self.forked.run(*arguments, cwd=ROOT, environment=environment())


@pytest.fixture
def scene(tmp_path: Path, forked: Forked) -> Iterator[Scene]:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    rows = [row for row in (ROOT / "README.md").read_text(encoding="utf8").split("\n\n") if len(row) > 80]
    chats = [[{"role": "user", "content": row[:40]}, {"role": "assistant", "content": row[40:200]}] for row in rows]
    parquet.write_table(pa.table({"messages": chats}), tmp_path / "rows.parquet")
    (tmp_path / "peer").mkdir(mode=0o700)
    (tmp_path / "peer" / "pause.json").write_text('{"until_unix_s":null}\n')
    hosting = ("host", str(tmp_path / "run.toml"), "--state-dir", str(tmp_path / "host"), *LOOPBACK)
    with running_potluck(tmp_path, "host process", *hosting, forked=forked) as host:
        invite = host.wait_for(r"(potluck1:\S+)\n")
        joining = ("join", invite, "--state-dir", str(tmp_path / "peer"), *PEER_FLAGS)
        with running_potluck(tmp_path, "peer process", *joining, forked=forked) as peer:
            yield Scene(tmp_path, forked, host, invite, peer)


def _one_line(done: subprocess.CompletedProcess[str], exit_code: int) -> str:
    assert done.returncode == exit_code, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("potluck: ")
    return line


def test_a_run_of_its_own_vocabulary_goes_to_its_end_and_late_comers_are_told_what_to_do(scene: Scene) -> None:
    scene.peer.wait_for(": paused")
    assert "the run is full, with 1 peer; expected fewer than 1; try again later" in _one_line(scene.join("second"), 75)
    resumed = scene.potluck("resume", "--state-dir", scene.peer_folder)
    assert (resumed.returncode, resumed.stdout) == (0, "the pause is over\n")
    assert scene.peer.exit_code() == 0, scene.peer.said()
    status = last_status(Path(scene.peer_folder))
    assert status is not None
    assert "direct" in {count.way for count in status.bulk}, status.bulk
    assert "the run has ended; expected a run in progress" in _one_line(scene.join("third"), 8)
    fine = scene.join("fourth", "--over-is-fine")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "the run has ended" in fine.stdout
    (checkpoint,) = (scene.folder / "host" / "checkpoints").glob("0*")
    assert verify_checkpoint(checkpoint).total_tokens >= 2_000
    said = scene.potluck("generate", str(checkpoint), "--prompt", "Potluck trains", "--tokens", "5")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("Potluck trains")
    _the_volunteer_has_the_model(scene, checkpoint)
    assert "Traceback" not in scene.host.said() + scene.peer.said()


def _the_volunteer_has_the_model(scene: Scene, checkpoint: Path) -> None:
    """After the end of the run: from its own folder, and byte for byte the host's last checkpoint where it is fetched."""
    own = scene.potluck("checkpoint", "verify", scene.peer_folder)
    assert own.returncode == 0, own.stderr
    fetched = scene.potluck("checkpoint", "fetch", "--state-dir", scene.peer_folder)
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    assert "as the host's last checkpoint names it" in fetched.stdout
    ((theirs),) = Path(scene.peer_folder).glob(f"runs/*/checkpoints/{checkpoint.name}")
    assert verify_checkpoint(theirs).state_root == verify_checkpoint(checkpoint).state_root
    for name in ("tokenizer.json", "chat.json"):
        assert (theirs / name).read_bytes() == (checkpoint / name).read_bytes()
    exported = scene.potluck(
        "checkpoint", "export", "latest", str(scene.folder / "out"), "--state-dir", scene.peer_folder
    )
    assert exported.returncode == 0, exported.stderr
    assert (scene.folder / "out" / "config.json").exists()
    assert (scene.folder / "out" / "chat_template.jinja").read_text() == TEMPLATE
    asked = ("--chat", "--prompt", "Potluck trains", "--tokens", "3", "--json")
    said = scene.potluck("generate", "latest", *asked, "--state-dir", scene.peer_folder)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["prompt"] == "Potluck trains"
