"""A peer's ways to a model of its run, as the host's commands use them (averaging/state/run_model.py, `PeerModels`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from averaging.host.progress import shown_progress
from peer.membership.named_run import run_of
from peer.owner.running_peer import running_peer
from peer.settings.config import PeerConfig
from protocol.errors import MachineError

if TYPE_CHECKING:
    from averaging.state.run_model import RunModel


def state_dir() -> Path:
    """The peer's state folder, as configured."""
    return PeerConfig.load({}).state_dir


def run_folder(folder: Path, run: str) -> Path | None:
    """The folder of a run joined from a peer's folder; None if it is nothing of a peer's. Raises as `run_of`."""
    return run_of(folder, run)


def read_model(run_folder: Path) -> RunModel:
    """The newest whole state in a run's folder. Raises as `read_model` of own_model.py."""
    from peer.holdings.own_model import read_model as read  # imports torch

    return read(run_folder)


def fetch_model(invite: str, run: str, state_dir: Path | None) -> tuple[RunModel, Path]:
    """Download the newest verified model, with its progress on standard error. Raises as `fetch_model` of fetch_model.py."""
    config = PeerConfig.load({"state_dir": state_dir})
    if running_peer(config.state_dir) is not None:
        raise MachineError(
            f"a peer runs from {config.state_dir}, and it keeps the run's newest model",
            "one process per identity",
            "write that model with: potluck checkpoint export latest OUT_DIR; a peer with a part of it only: potluck stop, then fetch",
        )
    from peer.session.fetch_model import fetch_model as fetch

    with shown_progress("fetching the model") as show:
        return fetch(config, invite, run, lambda progress: show(progress.bytes_here, progress.bytes_all))


def forget_download(run_folder: Path) -> None:
    """Delete what a download left on disk, once the model is written elsewhere. Blocks."""
    from peer.session.fetch_model import forget_download as forget

    forget(run_folder)
