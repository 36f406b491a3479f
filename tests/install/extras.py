"""`python -m tests.install.extras FOLDER [EXTRA ...]`: extras do their work once with the package itself; tests have a stand-in.

`s3` needs `pip install 'moto[server]'` beside the extra, and `gs` needs `pip install gcp-storage-emulator`. `peft` is no extra: it
reads what `potluck checkpoint export --adapter` writes, and is installed together with the extra `test`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from averaging.curves.curve import Curve, CurvePoint
from averaging.curves.curve_writers import write_tensorboard, write_wandb

CURVE = Curve("extras", "0123456789abcdef", (CurvePoint(1, 1000.0, 500, 2, 200, None, 3.0),))


def main(folder: Path, extras: Sequence[str]) -> int:
    """Try the extras that are named, all of them if none is. Returns 0; an extra that does not work raises."""
    for name in extras or tuple(TRIALS):
        TRIALS[name](folder)
    return 0


def _tensorboard(folder: Path) -> None:
    write_tensorboard(CURVE, folder)
    if not list(folder.rglob("events.out.tfevents.*")):
        raise SystemExit("tensorboard wrote no events")


def _wandb(folder: Path) -> None:
    # before wandb is imported: offline it needs neither an account nor a network
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    write_wandb(CURVE, "potluck")
    if not list(folder.rglob("*.wandb")):
        raise SystemExit("wandb wrote no run")


def _small(_folder: Path) -> None:
    import torch

    from peer.training.optimizers.adamw import ParameterGroup
    from peer.training.optimizers.adamw_int8 import AdamWInt8

    parameter = torch.nn.Parameter(torch.ones(64, 128))
    optimizer = AdamWInt8([ParameterGroup([parameter], 0.1)], beta1=0.9, beta2=0.95)
    parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step(0.01)
    again = AdamWInt8([ParameterGroup([parameter], 0.1)], beta1=0.9, beta2=0.95)
    again.load_moments(optimizer.moments())
    again.step(0.01)
    if not again.has_moments or bool((parameter >= 1.0).any()):
        raise SystemExit("torchao made no step")


def _s3(folder: Path) -> None:
    from tests.install.s3_trial import try_s3

    try_s3(folder / "s3")


def _gs(folder: Path) -> None:
    from tests.install.gs_trial import try_gs

    try_gs(folder / "gs")


def _peft(folder: Path) -> None:
    from tests.install.peft_trial import try_peft

    try_peft(folder / "peft")


TRIALS: Final = {"tensorboard": _tensorboard, "wandb": _wandb, "small": _small, "s3": _s3, "gs": _gs, "peft": _peft}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
