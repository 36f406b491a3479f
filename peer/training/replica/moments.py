"""An optimizer's moments on disk, so that a training process that starts again does not warm up anew.

Only the file is narrow (moments_file.py); the optimizer's own moments stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError

from peer.training.replica.moments_file import Holding, OfNoUse, read_moments, write_moments
from peer.training.replica.replica import Replica
from protocol.errors import LocalProtocolError
from protocol.run.training_sections import InnerSection

MOMENTS_NAME: Final = "moments.safetensors"
"""In a run's state folder."""

COMMITS_A_SAVE: Final = 10
MOST_COMMITS_OLD: Final = 20
"""Moments of AdamW (beta2 0.95) and Muon forget within tens of steps. After many commits, they would belong to other parameters."""

WRITE_WITHIN_S: Final = 600.0

SameOnAll = Callable[[int], bool]
"""Whether all processes that share a replica can take up moments of the same time; with others they would move copies of one parameter
apart. It is told when this one's were saved, in the run's tokens, -1 if they are of no use.
"""


def holding_of(replica: Replica, inner: InnerSection) -> Holding:
    """The moments that a process holds. Those of other parameters or of another optimizer do not fit."""
    words = [inner.optimizer, *(f"{spec.name} {spec.shape}" for spec in replica.schema.tensors)]
    numbers = {parameter: number for number, parameter in enumerate(replica.parameters)}
    return Holding(
        layout=sha256("\n".join(words).encode()).hexdigest(),
        boxes=tuple(replica.boxes),
        owners=tuple(numbers[owner] for owner in replica.optimizer.owners()),
    )


def copied(replica: Replica) -> list[torch.Tensor]:
    """The moments in the machine's memory, as a file holds them; empty if there are none or if one is not finite."""
    narrow = [
        moment.detach().to("cpu", torch.bfloat16 if moment.dim() else torch.float32, copy=True)
        for moment in replica.optimizer.moments()
    ]
    return narrow if all(bool(torch.isfinite(moment).all()) for moment in narrow) else []


def take_up(
    path: Path,
    replica: Replica,
    holding: Holding,
    usable: range,
    is_same_on_all: SameOnAll = lambda _saved_tokens: True,
) -> str:
    """Continue from the moments on disk. Returns why not, empty if they were taken up.

    Args:
        path, usable: as of `read_moments`.
        is_same_on_all: asked once.
    """
    why, saved_tokens, moments = "", -1, list[torch.Tensor]()
    try:
        saved_tokens, moments = read_moments(path, holding, usable)
    except FileNotFoundError:
        why = "no moments were kept"
    except OfNoUse as error:
        why = error.found
    except (OSError, ValueError, SafetensorError) as error:
        why = f"the moments kept cannot be read ({error})"
    if not is_same_on_all(saved_tokens) or why:
        return why or "another card of this replica has no moments of the same time"
    try:
        replica.optimizer.load_moments([moment.float() for moment in moments])
    except LocalProtocolError as error:
        return f"the moments kept cannot be read ({error})"
    return ""


class KeptMoments:
    """Saves the moments of one replica beside training, and takes them up at a start.

    Args:
        path: of this process's file; None to keep nothing.
        within_tokens: moments from more of the run's tokens ago are not taken up.
    """

    def __init__(self, path: Path | None, replica: Replica, inner: InnerSection, within_tokens: int) -> None:
        self._path, self._replica, self._within_tokens = path, replica, within_tokens
        self._holding = holding_of(replica, inner)
        self._commits = 0
        self._writer: threading.Thread | None = None
        self.note = ""
        """Why moments were not taken up or not saved, the last time."""

    def take_up(self, schedule_tokens: int, is_same_on_all: SameOnAll = lambda _saved_tokens: True) -> None:
        """Continue from what is on disk, if it is of this model and time; also if another number of cards kept it.
        `is_same_on_all` is as of the function `take_up`.
        """
        if self._path is not None:
            usable = range(max(0, schedule_tokens - self._within_tokens), schedule_tokens + 1)
            self.note = take_up(self._path, self._replica, self._holding, usable, is_same_on_all)

    def note_commit(self, schedule_tokens: int) -> None:
        """Save at each `COMMITS_A_SAVE`-th commit. The moments are copied now, and written while training goes on."""
        self._commits += 1
        if self._commits % COMMITS_A_SAVE == 0 and (self._writer is None or not self._writer.is_alive()):
            self._save(schedule_tokens)

    def finish(self, schedule_tokens: int) -> None:
        """Save now, at the end of the process, and wait until it is written."""
        self._wait()
        self._save(schedule_tokens)
        self._wait()

    def _save(self, schedule_tokens: int) -> None:
        moments = copied(self._replica) if self._path is not None else []
        if self._path is not None and moments:
            arguments = (self._path, moments, schedule_tokens)
            self._writer = threading.Thread(target=self._write, args=arguments, daemon=True)
            self._writer.start()

    def _write(self, path: Path, moments: Sequence[torch.Tensor], schedule_tokens: int) -> None:
        try:
            write_moments(path, moments, self._holding, schedule_tokens)
        except OSError as error:
            self.note = f"the moments were not saved ({error.strerror or error}); a restart warms up anew"

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join(WRITE_WITHIN_S)
