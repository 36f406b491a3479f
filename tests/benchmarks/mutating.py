"""Damage by chance: one mutation of some bytes, and what became of whoever was given them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from structlog.testing import capture_logs

from protocol.errors import PotluckError

LONGEST_RUN: Final = 64
"""Bytes that are appended or zeroed at a time: a sector of a disk is more, but most of what is stored here is less."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one mutation.

    Attributes:
        kind: what was mutated.
        how: the mutation.
        verdict: "refused"; "replaced" by good bytes from elsewhere; "same": nothing of what counts had changed; "torn tail": a log
            without its last record, as after a power cut; "unchecked": past the place that checks, so that only crashes count; else
            "missed" or "crashed".
        lines: what was said about it, each at most one line; None where there was nothing to say.
    """

    kind: str
    how: str
    verdict: str
    lines: tuple[str, ...] | None

    @property
    def is_caught(self) -> bool:
        """Nothing damaged was used."""
        return self.verdict in ("refused", "replaced", "same", "torn tail")

    @property
    def has_source(self) -> bool:
        """Somebody has the good bytes, and was there to be asked."""
        return self.kind.split(":")[0] in ("chunks", "updates", "generations") and "from liar" not in self.kind

    @property
    def is_named(self) -> bool:
        """It was said, and each time in one line."""
        return bool(self.lines) and all(line and line.isprintable() for line in self.lines or ())


def _flip_bit(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _change_byte(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] = chance.randrange(256)


def _append_bytes(data: bytearray, chance: random.Random) -> None:
    data += chance.randbytes(chance.randint(1, LONGEST_RUN))


def _swap_bytes(data: bytearray, chance: random.Random) -> None:
    first, second = chance.randrange(len(data)), chance.randrange(len(data))
    data[first], data[second] = data[second], data[first]


def _zero_run(data: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(data))
    stop = min(len(data), begin + chance.randint(1, LONGEST_RUN))
    data[begin:stop] = bytes(stop - begin)


_MUTATIONS: Final[dict[str, Callable[[bytearray, random.Random], None]]] = {
    "one bit": _flip_bit,
    "one byte": _change_byte,
    "bytes appended": _append_bytes,
    "two bytes swapped": _swap_bytes,
    "zeros": _zero_run,
}
_CUT: Final = "end cut off"


def mutated(data: bytes, chance: random.Random, longest_cut: int | None = None) -> tuple[bytes, str]:
    """Other bytes than `data`, and how they came to be. At least one byte is left: nothing at all is a loss, and no damage. At most
    `longest_cut` bytes are cut off where that is given.
    """
    while True:
        how = chance.choice((*_MUTATIONS, _CUT))
        changed = bytearray(data)
        if how == _CUT:
            del changed[len(data) - chance.randint(1, max(1, min(longest_cut or len(data), len(data) - 1))) :]
        else:
            _MUTATIONS[how](changed, chance)
        if changed and bytes(changed) != data:
            return bytes(changed), how


@contextmanager
def heard(*events: str) -> Iterator[list[str]]:
    """The reasons that these log events give while the block runs; all other logging is silent there."""
    reasons: list[str] = []
    with capture_logs() as entries:
        try:
            yield reasons
        finally:
            reasons += [str(entry.get("reason", entry)) for entry in entries if entry["event"] in events]


Reported = tuple[str, str, Sequence[str] | None]
"""How something was mutated, the verdict, and what was said."""


async def outcome_of(kind: str, trial: Callable[[], Awaitable[Reported]]) -> Outcome:
    """Run a trial. An error that it lets out is no refusal: a PotluckError that comes where the good bytes should is a miss, anything
    else a crash.
    """
    try:
        how, verdict, lines = await trial()
    except PotluckError as error:
        return Outcome(kind, "?", "missed", (error.one_line(),))
    except Exception as error:  # noqa: BLE001 - what this is here to count
        return Outcome(kind, "?", "crashed", (repr(error),))
    return Outcome(kind, how, verdict, None if lines is None else tuple(lines))
