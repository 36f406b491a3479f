"""Finds what a command means by a checkpoint: a folder, a name as `checkpoint list` shows it, "latest", or a peer's own state.

A peer's state is written as a checkpoint beside it for as long as the command runs. So every command reads one format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time
from typing import TYPE_CHECKING, Final

from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from coordinator.run.hosted_folder import host_folder
from protocol.errors import ConfigError, PotluckError, StorageError

if TYPE_CHECKING:
    from averaging.state.run_model import PeerModels, RunModel
    from coordinator.checkpoints.checkpoints import CheckpointContent

LATEST: Final = "latest"
FOLDER: Final = "checkpoints"
"""In a host's folder and in a peer's folder of a run: the checkpoints."""

_MANIFEST: Final = "manifest.json"
_OWN_STATE: Final = ".own-state-"


@contextmanager
def opened_checkpoint(name: str, models: PeerModels, state_dir: Path | None = None) -> Iterator[Path]:
    """The folder of the checkpoint that is meant, for the block's time.

    Args:
        name: a checkpoint's folder, a host's folder, a peer's folder, "latest", or a round or a name in the list of `state_dir`.
        state_dir: where "latest" and names are looked for; the host's folder, and then the peer's, if not given.

    Raises:
        ConfigError: there is none.
        StorageError: a peer's state is damaged, or cannot be written as a checkpoint.
    """
    path = Path(name)
    if (path / _MANIFEST).exists():
        yield path
        return
    is_latest = name == LATEST
    places = [path] if not is_latest else [state_dir] if state_dir else [host_folder(None), models.state_dir()]
    for place in places:
        newest = newest_of(place)
        run_folder = None if (place / LEDGER_FILE).exists() else models.run_folder(place, "")
        if newest is None and run_folder is not None:
            with _own_or_fetched(run_folder, models) as found:
                yield found
            return
        if newest is not None:
            yield newest
            return
    if not is_latest:
        if (path / "config.json").exists():
            raise ConfigError(
                f"{path} is an export, for Hugging Face transformers",
                "a checkpoint of potluck",
                'give "latest" or one of: potluck checkpoint list',
            )
        yield _listed(name, models, state_dir) or path  # the command says what is wrong with it
        return
    if hosts := [place for place in places if (place / LEDGER_FILE).exists()]:
        raise ConfigError(
            f"the host of {hosts[0]} has written no checkpoint yet",
            "a checkpoint",
            "wait for one, which comes after each checkpoint.every_rounds of run.toml",
        )
    raise ConfigError(
        f"no checkpoint and no state of a run in {' or '.join(map(str, places))}",
        "a host's or a peer's folder",
        "name one with --state-dir, or get one with: potluck checkpoint fetch",
    )


def _listed(name: str, models: PeerModels, state_dir: Path | None) -> Path | None:
    """The checkpoint with this name or round in the list of a host or a peer; None if there is none."""
    folders = [state_dir] if state_dir else [host_folder(None), models.state_dir()]
    for folder in folders:
        run_folder = None if (folder / LEDGER_FILE).exists() else models.run_folder(folder, "")
        below = (run_folder or folder) / FOLDER
        if (below / name / _MANIFEST).exists():
            return below / name
        of_round = [path for path in below.glob(f"*/{_MANIFEST}") if _round_of(path.parent.name) == name.lstrip("0")]
        if name.isdecimal() and of_round:
            return max(of_round, key=lambda path: path.stat().st_mtime).parent
    return None


def _round_of(name: str) -> str:
    return name.partition("-")[0].lstrip("0")


def newest_of(folder: Path) -> Path | None:
    """The newest checkpoint of a host's folder, by its ledger; None if it has none, or is no host's."""
    if not (folder / LEDGER_FILE).exists():
        return None
    with open_ledger(folder / LEDGER_FILE) as ledger:
        rows = [row for row in ledger.checkpoints() if (folder / FOLDER / row.path / _MANIFEST).exists()]
    newest = max(rows, key=lambda row: (row.index, row.written_unix_s), default=None)
    return folder / FOLDER / newest.path if newest is not None else None


def fetched_checkpoints(run_folder: Path) -> Sequence[Path]:
    """The checkpoints that were fetched into a peer's folder of a run, oldest first: their names begin with the round."""
    return sorted(path.parent for path in (run_folder / FOLDER).glob(f"[0-9]*/{_MANIFEST}"))


@contextmanager
def _own_or_fetched(run_folder: Path, models: PeerModels) -> Iterator[Path]:
    """The newer one of the peer's own state and its newest fetched checkpoint."""
    fetched = next(reversed(fetched_checkpoints(run_folder)), None)
    try:
        model = models.read_model(run_folder)
    except (ConfigError, StorageError):
        if fetched is None:
            raise
        yield fetched
        return
    if fetched is not None and int(fetched.name.partition("-")[0]) >= model.units[0].state.index:
        yield fetched
        return
    with _written(model, run_folder) as path:
        yield path


@contextmanager
def _written(model: RunModel, run_folder: Path) -> Iterator[Path]:
    try:
        folder = TemporaryDirectory(prefix=_OWN_STATE, dir=run_folder)
    except OSError as error:
        raise StorageError(f"{run_folder} cannot be written ({error.strerror})", "a writable folder") from error
    with folder as name:
        yield write_model(model, Path(name))


def write_model(model: RunModel, folder: Path) -> Path:
    """Write a peer's model as a checkpoint below `folder`. Returns its folder. Blocks.

    Raises:
        StorageError: the disk refuses, or a unit has another root than expected.
    """
    from coordinator.checkpoints.checkpoints import write_checkpoint

    return folder / write_checkpoint(folder, content_of(model), now_unix_s=int(time())).path


def content_of(model: RunModel) -> CheckpointContent:
    """The content of the checkpoint of a peer's model."""
    from coordinator.checkpoints.checkpoints import CheckpointContent, UnitContent
    from coordinator.run.run_files import RunTokenizer

    manifest, spine = model.manifest, model.units[0]
    tokenizer = model.tokenizer
    content = CheckpointContent(
        run_name=manifest.config.run.name,
        run_id_hex=manifest.run_id.hex(),
        schema=spine.schema,
        grid=spine.grid,
        model=manifest.config.model.model_dump(),
        state=spine.state,
        root=spine.root,
        tokenizer=None if tokenizer is None else RunTokenizer(tokenizer.data, tokenizer.end),
        adapter=model.adapter,
        template=model.template,
    )
    if len(model.units) == 1:
        return content
    units = tuple(UnitContent(unit.schema, unit.grid, unit.state, unit.root) for unit in model.units)
    return replace(content, schema=manifest.model_schema, units=units, mixture=manifest.config.mixture)


def fetch_checkpoint(
    models: PeerModels, invite: str, run: str, state_dir: Path | None, out: Path | None
) -> tuple[RunModel, Path]:
    """Fetch the run's newest model and write it as a checkpoint: below `out`, or in the peer's folder of the run. Returns the model
    and the checkpoint's folder. Blocks.

    Raises:
        PotluckError: as `PeerModels.fetch_model` and `write_model`.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is no folder", "a folder", "choose another with --out")
    model, run_folder = models.fetch_model(invite, run, state_dir)
    path = write_model(model, out if out is not None else run_folder / FOLDER)
    models.forget_download(run_folder)
    return model, path


def list_fetched(run_folder: Path) -> list[dict[str, object]]:
    """The fetched checkpoints of a peer's folder of a run, oldest first, with the fields of the host's list."""
    from coordinator.checkpoints.checkpoints import read_manifest

    rows = list[dict[str, object]]()
    for path in fetched_checkpoints(run_folder):
        try:
            manifest = read_manifest(path)
        except PotluckError:
            continue  # a damaged one is told of when it is used
        rows.append(
            {
                "index": manifest.index,
                "commit": manifest.commit,
                "root": manifest.state_root,
                "total_tokens": manifest.total_tokens,
                "name": path.name,
                "path": str(path.absolute()),
                "unix_s": manifest.written_unix_s,
            }
        )
    return rows
