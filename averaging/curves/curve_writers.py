"""Write a curve for other tools. TensorBoard and Weights & Biases are extras that need not be installed."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

from averaging.curves.curve import COLUMNS, Curve, CurvePoint
from averaging.system.output_file import is_printed, write_output
from protocol.errors import MachineError, StorageError

_NOT_CURVES: Final = ("round", "unix_s")
"""Columns that are the axes."""


def write_csv(curve: Curve, file: Path) -> None:
    """One line a round below a line of names; unknown values are empty. The file "-" is standard output. Blocks.

    Raises:
        StorageError: the file cannot be written; an old one is unchanged.
    """
    made = io.StringIO()
    writer = csv.DictWriter(made, COLUMNS, lineterminator="\n" if is_printed(file) else "\r\n")
    writer.writeheader()
    writer.writerows(point.values() for point in curve.points)
    write_output(file, made.getvalue(), "choose another with --csv")


def write_tensorboard(curve: Curve, folder: Path) -> None:
    """An event file for `tensorboard --logdir FOLDER`, below the folder by the run's name. Blocks.

    Raises:
        MachineError: tensorboard is not installed.
        StorageError: the folder cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _lacking("tensorboard", error) from error
    target = folder / _safe(curve)
    try:
        writer = SummaryWriter(str(target))
        for point in curve.points:
            for name, value in _curves(point).items():
                writer.add_scalar(name, value, point.index, point.unix_s)
        writer.close()
    except OSError as error:
        raise StorageError(f"{target} cannot be written ({error.strerror})", "a writable folder") from error


def write_wandb(curve: Curve, project: str) -> str:
    """Send the curve to Weights & Biases as one run, which a later call brings up to date. Returns the folder of its files.

    The account and the mode are wandb's own settings: WANDB_MODE=offline needs no network and no account.

    Raises:
        MachineError: wandb is not installed, or it refuses.
    """
    try:
        import wandb
    except ImportError as error:
        raise _lacking("wandb", error) from error
    try:
        run = wandb.init(project=project, name=curve.run, id=_safe(curve), resume="allow")
        for point in curve.points:
            run.log({**_curves(point), "unix_s": point.unix_s}, step=point.index)
        folder = str(run.dir)
        run.finish()
    except (wandb.Error, OSError) as error:
        raise MachineError(
            f"Weights & Biases refuses: {error}", "an account, by `wandb login`", "or none, by WANDB_MODE=offline"
        ) from error
    return folder


def _curves(point: CurvePoint) -> dict[str, float | int]:
    return {name: value for name, value in point.values().items() if value is not None and name not in _NOT_CURVES}


def _safe(curve: Curve) -> str:
    """A name for a folder or a run's id: letters of the run's name and the beginning of its id."""
    letters = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in curve.run)
    return "-".join(filter(None, (letters[:64], curve.run_id[:8]))) or "run"


def _lacking(package: str, error: ImportError) -> MachineError:
    return MachineError(
        f"{package} cannot be imported ({error})",
        f"the extra {package}",
        f"install it: pip install 'potluck-train[{package}]', or pip install {package}; --csv needs neither",
    )
