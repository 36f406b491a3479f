"""A small run of stages, with real processes: a lane of two, and a spare, from the start to the end. On two cards one peer
has its stage whole on each, and one has it in rows.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from averaging.data.shards import DatasetManifest
from averaging.models.llama.config import LlamaConfig
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.checkpoints import verify_checkpoint
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, Running, running_potluck
from tests.e2e.run_file import USUAL, run_toml
from tests.forked import Forked

NAMES = ("a", "b", "c")
ON_TWO_CARDS = {"a": ("--gpus", "0,1"), "b": ("--gpus", "0,1", "--split", "shard")}
ROUNDS = 3
MODEL = {**USUAL["model"], "num_layers": 2, "is_tied": False}
RUN_TOML = run_toml(
    "lanes",
    ROUNDS * 512,
    run={"min_members": len(NAMES), "shards": "pipeline", "start_from": "weights"},
    model=MODEL,
    data={"heldout_every": 2},
    inner={"batch_tokens": 256},
    round={"mode": "blocking", "target_tokens": 512},
    checkpoint={"every_rounds": 2},
    pipeline={"stages": 2, "inner_steps": 2},
)


@pytest.mark.timeout(240)
def test_a_run_of_stages_goes_to_its_end_and_leaves_one_root_of_each_stage(tmp_path: Path, forked: Forked) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    begun_with = LlamaConfig.model_validate(MODEL)
    export_checkpoint(checkpoint_of(tmp_path, begun_with), tmp_path / "weights")
    for number in range(4):
        text = (ROOT / "README.md").read_text(encoding="utf8")
        (tmp_path / f"{number}.md").write_text(f"{number} {text[100 * number :]}")
    hosting = ("host", str(tmp_path / "run.toml"), "--state-dir", str(tmp_path / "host"), *LOOPBACK)
    with ExitStack() as stack:
        host = stack.enter_context(running_potluck(tmp_path, "host process", *hosting, forked=forked))
        invite = host.wait_for(r"(potluck1:\S+)\n")
        peers = [stack.enter_context(_joined(tmp_path, name, invite, forked)) for name in NAMES]
        for peer in peers:
            assert peer.exit_code() == 0, peer.said()
        said = "".join(peer.said() for peer in peers)
        host.wait_for(rf"checkpoint_written .*index={ROUNDS} ")
    assert "Traceback" not in said + host.said()
    assert "each holds the stage and a part of every micro-batch" in said
    assert "one replica, parameters over 2" in said
    for index in range(ROUNDS + 1):  # the last parameters, too
        assert f"measured index={index} " in said
    _check_states(tmp_path)
    _check_weights(tmp_path)


def _check_weights(folder: Path) -> None:
    """Each peer has fetched the rows of its stage alone, and the run has gone on from these weights."""
    dataset = DatasetManifest.model_validate_json((folder / "host" / "data" / "dataset.json").read_bytes())
    all_weights = {entry.sha256 for entry in dataset.part("start")}
    fetched = [{path.name for path in (folder / name / "data" / "weights").iterdir()} for name in NAMES]
    assert set[str]().union(*fetched) == all_weights
    assert all(own < all_weights for own in fetched)
    (begun_with,) = folder.glob("*-*/manifest.json")
    last = max((folder / "host" / "checkpoints").glob("0*"))
    was_N, is_N = (load_checkpoint(path)[1].anchor_N for path in (begun_with.parent, last))
    assert 0.0 < float((is_N - was_N).abs().mean()) < 0.5 * float(was_N.abs().mean())


def _joined(folder: Path, name: str, invite: str, forked: Forked) -> AbstractContextManager[Running]:
    arguments = ("join", invite, "--state-dir", str(folder / name), *PEER_FLAGS, *ON_TWO_CARDS.get(name, ()))
    return running_potluck(folder, f"peer {name}", *arguments, forked=forked)


def _check_states(folder: Path) -> None:
    """All replicas of a stage end with the root that it has in the checkpoint, and nobody thinks that it is apart from the run."""
    stored = verify_checkpoint(max((folder / "host" / "checkpoints").glob("0*")))
    assert stored.units is not None
    assert [(unit.unit, unit.index) for unit in stored.units] == [("stage-0", ROUNDS), ("stage-1", ROUNDS)]
    last = [json.loads((folder / name / "final_status.json").read_bytes()) for name in NAMES]
    cards = {name: [card["left_out"] for card in status["cards"]] for name, status in zip(NAMES, last, strict=True)}
    assert cards == {name: ["", ""] if name in ON_TWO_CARDS else [] for name in NAMES}
    assert sorted(status["unit"] for status in last) in (
        ["stage-0", "stage-0", "stage-1"],
        ["stage-0", "stage-1", "stage-1"],
    )
    roots = {unit.unit: unit.state_root for unit in stored.units}
    assert {(status["unit"], status["state_root"]) for status in last} == set(roots.items())
    assert [status["apart"] for status in last] == [""] * len(NAMES)
    # one lane has one peer of each stage in a round; the spare gets each commit
    for unit in roots:
        assert sum(status["rounds_counted"] for status in last if status["unit"] == unit) == ROUNDS
