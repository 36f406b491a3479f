"""The curve of a run from a peer's own history: the rounds that it saw, with its own training loss."""

from __future__ import annotations

from pathlib import Path

from averaging.curves.curve import Curve, CurvePoint
from peer.history.round_log import RunHistory, read_histories
from peer.settings.config import PeerConfig
from protocol.errors import ConfigError
from protocol.tables import printable


def read_curve(state_dir: Path | None, run: str = "") -> Curve | None:
    """The curve of that run, by its name or the beginning of its id, or of the one seen last; None if this peer saw no round.

    Raises:
        ConfigError: several runs are called so, or a setting cannot work.
    """
    histories = [each for each in read_histories(PeerConfig.load({"state_dir": state_dir}).state_dir) if each.rounds]
    found = [each for each in histories if not run or is_called(each, run)]
    if run and len(found) > 1:
        ids = ", ".join(each.folder_name for each in found)
        raise ConfigError(f"{len(found)} runs are called {printable(run)[:80]}", f"one run: {ids}", "name it by its id")
    return curve_of(found[-1]) if found else None


def is_called(history: RunHistory, name: str) -> bool:
    """Whether a name, or the beginning of an id, means this run."""
    return history.run == name or (len(name) >= 4 and history.folder_name.startswith(name.lower()))


def curve_of(history: RunHistory) -> Curve:
    """The rounds of one run as a curve."""
    points = [
        CurvePoint(
            seen.index,
            seen.unix_s,
            seen.total_tokens,
            seen.num_members,
            seen.own_tokens,
            train_nats=seen.loss_nats,
        )
        for seen in history.rounds
    ]
    return Curve(history.run or "run", history.folder_name, tuple(points))
