"""A file of an optimizer's moments: each with its parameter, and the part of that parameter that a process held.

A process whose part is another one, as with another number of cards, puts its moments together from the files of all that shared the
model. It reads no more than its own part of them at a time.

Moments are in bfloat16, 4 bytes a value for AdamW and 2 for Muon. Eight bits would be too few for the second moment: the smallest
values would become zero, and their next step would be huge.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from peer.training.plan.boxes import Box
from protocol.errors import LocalProtocolError

FORMAT: Final = "2"
_FILE_MODE: Final = 0o600
_NAME: Final = re.compile(r"(?P<base>.+?)(?:-(?P<rank>[0-9]{1,4})-of-(?P<size>[0-9]{1,4}))?\.safetensors")
_MOST_DIMENSIONS: Final = 4


class OfNoUse(LocalProtocolError):
    """Files of moments that can be read, and must not be taken up."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The moments that a process holds.

    Attributes:
        layout: tells models and optimizers apart.
        boxes: its part of each parameter, in the schema's order.
        owners: for each moment in the optimizer's order, the number of its parameter.
    """

    layout: str
    boxes: tuple[Box, ...]
    owners: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """Names of the moments in a file: by the parameter, and by their order among its moments."""
        seen = Counter[int]()
        found = []
        for owner in self.owners:
            found.append(f"{owner:05}.{seen[owner]}")
            seen[owner] += 1
        return found


@dataclass(frozen=True, slots=True)
class SavedPart:
    """The head of one file.

    Attributes:
        schedule_tokens: the run's committed tokens when it was saved.
        boxes: as of `Holding`.
    """

    path: Path
    layout: str
    schedule_tokens: int
    boxes: tuple[Box, ...]
    checksum: str


def write_moments(path: Path, moments: Sequence[torch.Tensor], holding: Holding, schedule_tokens: int) -> None:
    """Replace the file at once by these moments, in the optimizer's order.

    Raises:
        OSError: the disk is full or cannot be written. The file before is still there.
    """
    temporary = path.with_name(f"{path.name}.new")
    named = dict(zip(holding.names, moments, strict=True))
    metadata = {
        "format": FORMAT,
        "layout": holding.layout,
        "schedule_tokens": str(schedule_tokens),
        "boxes": json.dumps([[box.begins, box.shape] for box in holding.boxes]),
        "checksum": _checksum(named[name] for name in sorted(named)),
    }
    try:
        save_file(named, temporary, metadata)
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


def read_moments(path: Path, holding: Holding, usable: range) -> tuple[int, list[torch.Tensor]]:
    """The newest moments beside `path`, cut to what this process holds, and the run's tokens when they were saved.

    Args:
        path: this process's own file. Those of other processes and of other numbers of cards lie beside it.
        usable: the run's tokens at which they may have been saved.

    Raises:
        FileNotFoundError: there are none.
        OfNoUse: they are of another model, too old or damaged.
        OSError, ValueError, SafetensorError: they cannot be read.
    """
    problems: list[Exception] = []
    sets: list[list[SavedPart]] = []
    for paths in _sets_beside(path):
        try:
            sets.append(_opened(paths, holding.layout, usable))
        except (OSError, ValueError, SafetensorError, OfNoUse) as error:
            problems.append(error)
    for parts in sorted(sets, key=lambda parts: -parts[0].schedule_tokens):  # of equal ones the own first
        try:
            return parts[0].schedule_tokens, _put_together(parts, holding)
        except (OSError, ValueError, SafetensorError, OfNoUse) as error:
            problems.insert(0, error)
    raise problems[0] if problems else FileNotFoundError(path)


def _sets_beside(path: Path) -> list[list[Path]]:
    """The files of each replica and number of cards that are all there; this process's own first, then its replica's."""
    own = _NAME.fullmatch(path.name)
    found: dict[tuple[str, int], dict[int, Path]] = {}
    for name in sorted(os.listdir(path.parent)):
        match = _NAME.fullmatch(name)
        if match is not None:
            key = (match["base"], int(match["size"] or 1))
            found.setdefault(key, {})[int(match["rank"] or 0)] = path.with_name(name)
    own_key = ("", 0) if own is None else (own["base"], int(own["size"] or 1))
    whole = {key: parts for key, parts in found.items() if sorted(parts) == list(range(key[1]))}
    order = sorted(whole, key=lambda key: (key != own_key, key[0] != own_key[0], key))
    return [[whole[key][rank] for rank in range(key[1])] for key in order]


def _opened(paths: Sequence[Path], layout: str, usable: range) -> list[SavedPart]:
    """The heads of files that belong together. Raises as `read_moments`."""
    parts = [_head(path) for path in paths]
    if any(part.layout != layout for part in parts):
        raise OfNoUse("the moments kept are of another model or optimizer")
    times = {part.schedule_tokens for part in parts}
    if len(times) > 1:
        raise OfNoUse("the moments kept are of different times")
    saved_tokens = times.pop()
    if saved_tokens not in usable:
        raise OfNoUse(f"the moments kept are {usable.stop - 1 - saved_tokens} of the run's tokens old")
    return parts


def _head(path: Path) -> SavedPart:
    with safe_open(path, framework="pt") as file:
        found = file.metadata() or {}
    if found.get("format") != FORMAT:
        raise OfNoUse("the moments kept are of another model or optimizer")
    boxes = tuple(_box(row) for row in json.loads(found.get("boxes", "[]")))
    tokens = int(found.get("schedule_tokens", ""))
    return SavedPart(path, found.get("layout", ""), tokens, boxes, found.get("checksum", ""))


def _box(row: Sequence[Sequence[int]]) -> Box:
    begins, shape = (tuple(int(each) for each in part) for part in row)
    if len(begins) != len(shape) or len(shape) > _MOST_DIMENSIONS or min((*begins, *shape), default=0) < 0:
        raise ValueError(f"a part of a parameter {row}")
    return Box(begins, shape)


def _put_together(parts: Sequence[SavedPart], holding: Holding) -> list[torch.Tensor]:
    """The moments of a process, in the optimizer's order, from files that hold all of the model between them."""
    if any(len(part.boxes) != len(holding.boxes) for part in parts):
        raise OfNoUse("the moments kept are of another model or optimizer")
    with ExitStack() as opened:
        files = [cast(_File, opened.enter_context(safe_open(part.path, framework="pt"))) for part in parts]
        for part, file in zip(parts, files, strict=True):
            if _checksum(file.get_tensor(name) for name in sorted(file.keys())) != part.checksum:
                raise OfNoUse("the moments kept are damaged")
        sources = [(part.boxes, file) for part, file in zip(parts, files, strict=True)]
        return [
            _moment(name, holding.boxes[owner], [(boxes[owner], file) for boxes, file in sources])
            for name, owner in zip(holding.names, holding.owners, strict=True)
        ]


class _Slices(Protocol):
    def get_shape(self) -> list[int]: ...
    def __getitem__(self, place: tuple[slice, ...]) -> torch.Tensor: ...


class _File(Protocol):
    def keys(self) -> list[str]: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...
    def get_slice(self, name: str) -> _Slices: ...


def _moment(name: str, box: Box, sources: Sequence[tuple[Box, _File]]) -> torch.Tensor:
    """One moment: a scalar that all files have, or the values of a box from those that have some of them."""
    first = sources[0][1].get_slice(name)
    if not first.get_shape():
        return sources[0][1].get_tensor(name)
    found, seen = torch.zeros(box.shape, dtype=torch.bfloat16), set[Box]()
    for held, file in sources:
        shared = box.overlap(held)
        if shared is None or shared in seen:  # ranks that split layers hold the same norms
            continue
        seen.add(shared)
        found[shared.within(box)] = file.get_slice(name)[shared.within(held)]
    if sum(shared.num_elements for shared in seen) != box.num_elements:
        raise OfNoUse("the moments kept are damaged")
    return found


def _checksum(moments: Iterable[torch.Tensor]) -> str:
    """Damage on disk would otherwise be trained with: a negative second moment makes every parameter not finite."""
    found = 0
    for moment in moments:
        found = zlib.crc32(moment.contiguous().view(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"
