"""An optimizer's moments on disk, so that a training process that starts again does not warm up anew.

A file holds them in bfloat16, 4 bytes a value for AdamW and 2 for Muon. Eight bits would be too few for the second moment: the
smallest values would become zero, and their next step would be huge. Only the file is narrow; the optimizer's own stay as they are.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from peer.training.optimizers.optimizer import Optimizer
from protocol.errors import LocalProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.tensor_schema import TensorSchema

FORMAT: Final = "1"
MOMENTS_NAME: Final = "moments.safetensors"
"""In a run's state folder."""

COMMITS_A_SAVE: Final = 10
MOST_COMMITS_OLD: Final = 20
"""Moments of AdamW (beta2 0.95) and Muon forget within tens of steps. After many commits, they would belong to other parameters."""

WRITE_WITHIN_S: Final = 600.0
_FILE_MODE: Final = 0o600
_SCALARS: Final = 1
"""Moments of so few values count steps. They are kept exactly."""


SameOnAll = Callable[[int], bool]
"""Whether all processes that share a replica can take up moments of the same time; with others they would move copies of one parameter
apart. It is told when this one's were saved, in the run's tokens, -1 if they are of no use.
"""


@dataclass(frozen=True, slots=True)
class MomentsKey:
    """The model, the optimizer and the time that a file of moments belongs to.

    Attributes:
        layout: of the parameters and the optimizer; moments of another do not fit.
        schedule_tokens: the run's committed tokens when they were saved.
    """

    layout: str
    schedule_tokens: int


def moments_layout(schema: TensorSchema, inner: InnerSection, part: str = "") -> str:
    """A hash of the parameters' names and shapes, in order, of the optimizer that keeps the moments, and the part of them that a
    process of several holds, empty for one alone.
    """
    words = [f"{spec.name} {spec.shape}" for spec in schema.tensors]
    words += [part] if part else []
    return sha256("\n".join([inner.optimizer, *words]).encode()).hexdigest()


def copied(optimizer: Optimizer) -> list[torch.Tensor]:
    """The moments in the machine's memory, as a file holds them; empty if there are none or if one is not finite."""
    narrow = [
        moment.detach().to("cpu", torch.float32 if moment.numel() <= _SCALARS else torch.bfloat16, copy=True)
        for moment in optimizer.moments()
    ]
    return narrow if all(bool(torch.isfinite(moment).all()) for moment in narrow) else []


def write_moments(path: Path, moments: Sequence[torch.Tensor], key: MomentsKey) -> None:
    """Replace the file at once by the moments that `copied` gave.

    Raises:
        OSError: the disk is full or cannot be written. The file before is still there.
    """
    temporary = path.with_name(f"{path.name}.new")
    metadata = {
        "format": FORMAT,
        "layout": key.layout,
        "schedule_tokens": str(key.schedule_tokens),
        "checksum": _checksum(moments),
    }
    try:
        save_file({f"{number:06}": moment for number, moment in enumerate(moments)}, temporary, metadata)
        temporary.chmod(_FILE_MODE)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except SafetensorError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(str(error)) from error
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def take_up(
    path: Path,
    optimizer: Optimizer,
    key: MomentsKey,
    within_tokens: int,
    is_same_on_all: SameOnAll = lambda _saved_tokens: True,
) -> str:
    """Continue from the moments in a file. Returns why not, empty if they were taken up.

    Args:
        key: of now.
        within_tokens: so many of the run's tokens since they were saved are too old.
        is_same_on_all: asked once.
    """
    why, saved_tokens, moments = "", -1, list[torch.Tensor]()
    try:
        saved_tokens, moments = _read(path, key, within_tokens)
    except FileNotFoundError:
        why = "no moments were kept"
    except _OfNoUse as error:
        why = error.found
    except (OSError, ValueError, SafetensorError) as error:
        why = f"the moments kept cannot be read ({error})"
    if not is_same_on_all(saved_tokens) or why:
        return why or "another card of this replica has no moments of the same time"
    try:
        optimizer.load_moments([moment.float() for moment in moments])
    except LocalProtocolError as error:
        return f"the moments kept cannot be read ({error})"
    return ""


class _OfNoUse(LocalProtocolError):
    """A file of moments that can be read, and must not be taken up."""


def _read(path: Path, key: MomentsKey, within_tokens: int) -> tuple[int, list[torch.Tensor]]:
    """When the moments were saved, and what they are. Raises what reading raises."""
    with safe_open(path, framework="pt") as file:
        found = file.metadata() or {}
        if (found.get("format"), found.get("layout")) != (FORMAT, key.layout):
            raise _OfNoUse("the moments kept are of another model or optimizer")
        saved_tokens = int(found.get("schedule_tokens", ""))
        age_tokens = key.schedule_tokens - saved_tokens
        if not 0 <= age_tokens <= within_tokens:
            raise _OfNoUse(f"the moments kept are {age_tokens} of the run's tokens old")
        moments = [file.get_tensor(name) for name in sorted(file.keys())]
    if _checksum(moments) != found.get("checksum"):
        raise _OfNoUse("the moments kept are damaged")
    return saved_tokens, moments


def _checksum(moments: Sequence[torch.Tensor]) -> str:
    """Damage on disk would otherwise be trained with: a negative second moment makes every parameter not finite."""
    found = 0
    for moment in moments:
        found = zlib.crc32(moment.contiguous().view(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


class KeptMoments:
    """Saves the moments of one optimizer beside training, and takes them up at a start.

    Args:
        path: None to keep nothing.
        within_tokens: moments from more of the run's tokens ago are not taken up.
    """

    def __init__(self, path: Path | None, optimizer: Optimizer, layout: str, within_tokens: int) -> None:
        self._path, self._optimizer, self._layout, self._within_tokens = path, optimizer, layout, within_tokens
        self._commits = 0
        self._writer: threading.Thread | None = None
        self.note = ""
        """Why moments were not taken up or not saved, the last time."""

    def take_up(self, schedule_tokens: int, is_same_on_all: SameOnAll = lambda _saved_tokens: True) -> None:
        """Continue from the file, if it is there and of this model and time. `is_same_on_all` is as of the function `take_up`."""
        if self._path is not None:
            key = MomentsKey(self._layout, schedule_tokens)
            self.note = take_up(self._path, self._optimizer, key, self._within_tokens, is_same_on_all)

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
        moments = copied(self._optimizer) if self._path is not None else []
        if self._path is not None and moments:
            key = MomentsKey(self._layout, schedule_tokens)
            self._writer = threading.Thread(target=self._write, args=(self._path, moments, key), daemon=True)
            self._writer.start()

    def _write(self, path: Path, moments: Sequence[torch.Tensor], key: MomentsKey) -> None:
        try:
            write_moments(path, moments, key)
        except OSError as error:
            self.note = f"the moments were not saved ({error.strerror or error}); a restart warms up anew"

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join(WRITE_WITHIN_S)
