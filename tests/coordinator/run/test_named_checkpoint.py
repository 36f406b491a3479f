"""A checkpoint as a command names it: a folder, a name, "latest", or a peer's own state, on a host's and a peer's machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from averaging.state.run_model import ModelTokenizer, ModelUnit, RunModel
from averaging.state.state import state_root
from coordinator.checkpoints.checkpoints import write_checkpoint
from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from coordinator.run.named_checkpoint import FOLDER, fetch_checkpoint, newest_of, opened_checkpoint
from protocol.errors import ConfigError, StorageError
from protocol.tensors.tensor_schema import ChunkGrid
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import content
from tests.peer.holdings.test_own_model import state_at, tiny_run


def model_at(index: int, tokenizer: ModelTokenizer | None = None) -> RunModel:
    manifest = tiny_run()
    (schema,) = manifest.unit_schemas().values()
    grid = ChunkGrid(schema.num_elements, manifest.config.chunk_elements)
    state = state_at(schema, index)
    return RunModel(manifest, (ModelUnit(schema, grid, state, state_root(state, grid)),), tokenizer, "proof")


@dataclass
class Models:
    """A peer's machine: one run, with this state of its own."""

    folder: Path
    own: RunModel | None = None
    fetched: RunModel | None = None
    forgotten: list[Path] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "ab"

    def state_dir(self) -> Path:
        return self.folder

    def run_folder(self, folder: Path, _run: str, /) -> Path | None:
        return self.run if folder in (self.folder, self.run) and self.run.is_dir() else None

    def read_model(self, _run_folder: Path, /) -> RunModel:
        if self.own is None:
            raise StorageError("no state of the run", "one", "fetch it")
        return self.own

    def fetch_model(self, _invite: str, _run: str, _state_dir: Path | None, /) -> tuple[RunModel, Path]:
        assert self.fetched is not None
        return self.fetched, self.run

    def forget_download(self, run_folder: Path, /) -> None:
        self.forgotten.append(run_folder)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Models:
    monkeypatch.setenv("POTLUCK_HOST_STATE_DIR", str(tmp_path / "nothing hosted"))
    found = Models(tmp_path / "peer")
    found.run.mkdir(parents=True)
    return found


def host_with(folder: Path, *indexes: int) -> list[Path]:
    """A host's folder with checkpoints of these rounds."""
    folder.mkdir()
    paths = []
    with open_ledger(folder / LEDGER_FILE) as ledger:
        for index in indexes:
            row = write_checkpoint(folder / FOLDER, content(index), now_unix_s=index)
            ledger.add_checkpoint(row)
            paths.append(folder / FOLDER / row.path)
    return paths


def test_the_latest_checkpoint_of_a_host_is_found_by_its_folder_and_by_name(tmp_path: Path, models: Models) -> None:
    older, newest = host_with(tmp_path / "host", 3, 9)
    cases = [
        ("latest", tmp_path / "host"),
        (str(tmp_path / "host"), None),
        (newest.name, tmp_path / "host"),
        ("9", tmp_path / "host"),
        ("00000009", tmp_path / "host"),
        (str(newest), None),
    ]
    for name, state_dir in cases:
        with opened_checkpoint(name, models, state_dir) as path:
            assert path == newest
    with opened_checkpoint(older.name, models, tmp_path / "host") as path:
        assert path == older


def test_a_checkpoint_whose_folder_is_gone_is_not_the_latest(tmp_path: Path) -> None:
    older, newest = host_with(tmp_path / "host", 3, 9)
    (newest / "manifest.json").unlink()
    assert newest_of(tmp_path / "host") == older
    assert newest_of(tmp_path) is None


def test_a_peers_own_state_is_a_checkpoint_for_as_long_as_it_is_used(models: Models) -> None:
    models.own = replace(model_at(5, ModelTokenizer(b"{}", 3)), template=b"{}")
    for name, state_dir in (
        ("latest", models.folder),
        ("latest", None),
        (str(models.folder), None),
        (str(models.run), None),
    ):
        with opened_checkpoint(name, _usual(models), state_dir) as path:
            manifest, state = load_checkpoint(path)
            assert (manifest.index, manifest.run_name) == (5, "tiny")
            assert manifest.tokenizer is not None
            assert manifest.template is not None
            assert torch.equal(state.anchor_N, models.own.units[0].state.anchor_N)
        assert list(models.run.iterdir()) == []


def _usual(models: Models) -> Models:
    return models


def test_of_a_peers_state_and_a_fetched_checkpoint_the_newer_one_is_the_latest(models: Models) -> None:
    models.own, models.fetched = model_at(5), model_at(7)
    fetch_checkpoint(models, "", "", None, None)
    assert models.forgotten == [models.run]
    for own, expected in ((5, 7), (9, 9), (None, 7)):
        models.own = None if own is None else model_at(own)
        with opened_checkpoint("latest", models, models.folder) as path:
            assert load_checkpoint(path)[0].index == expected


def test_where_there_is_no_model_the_way_to_one_is_said(tmp_path: Path, models: Models) -> None:
    with pytest.raises(StorageError, match="fetch it"), opened_checkpoint("latest", models, models.folder):
        pass
    with (
        pytest.raises(ConfigError, match="potluck checkpoint fetch"),
        opened_checkpoint("latest", models, tmp_path / "x"),
    ):
        pass
    with opened_checkpoint(str(tmp_path / "nowhere"), models) as path:
        assert path == tmp_path / "nowhere"  # its reader says that there is no checkpoint


def test_a_fetched_model_is_written_where_the_user_wants_it(tmp_path: Path, models: Models) -> None:
    models.fetched = model_at(7)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="is no folder"):
        fetch_checkpoint(models, "", "", None, tmp_path / "file")
    model, path = fetch_checkpoint(models, "", "", None, tmp_path / "models")
    assert path.parent == tmp_path / "models"
    assert load_checkpoint(path)[0].state_root == model.units[0].root.hex()


def test_host_that_has_written_no_checkpoint_yet_is_told_when_one_comes(tmp_path: Path) -> None:
    with open_ledger(tmp_path / LEDGER_FILE):
        pass
    wrong = pytest.raises(ConfigError, match=r"has written no checkpoint yet; .*every_rounds")
    with wrong, opened_checkpoint("latest", Models(tmp_path / "peer"), tmp_path):
        pass
