from __future__ import annotations

from pathlib import Path

import pytest

from peer.demo.plot import plot_losses
from protocol.errors import StorageError
from tests.peer.demo_world import observation, round_row

SEEN = observation((round_row(1), round_row(2)), heldout=(5.6, 2.4, 2.0))


def test_plot_writes_a_png(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    plot_losses(SEEN, path, title="curve")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_of_a_run_without_any_point_is_still_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "empty.png"
    plot_losses(type(SEEN)(None, {}, {}, {}), path, title="nothing yet")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_into_a_missing_folder_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="--plot"):
        plot_losses(SEEN, tmp_path / "missing" / "curve.png", title="curve")
