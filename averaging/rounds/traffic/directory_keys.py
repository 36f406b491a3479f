"""The keys of the directory under which the peers of a run announce themselves, and those that a peer looks at. Pure.

One key holds about 4,000 records: the answer to a look-up with more of them is longer than a message may be. So the peers of a large
run are spread over keys by unit and group. A peer's unit is the part of the model that it holds. A hash draws its group within that
unit. It announces itself under that key, and looks at it each time. The other keys have their turns.

A key of its own, the lobby, holds some peers of every group, so that a newcomer finds a way in with one look. A peer announces itself
there, too, while its hash is among the lowest LOBBY_PEERS of all that it sees. The hashes change every hour, so the duty goes round.

A run of at most GROUP_PEERS peers has one key for all. Releases without groups know that key alone, and take part in no larger run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.ids import PeerId, RunId, UnitName
from protocol.run.manifest import RunManifest

WHOLE: Final = UnitName("whole")
"""Stands for the spine where the units of a run are not given."""

GROUP_PEERS: Final = 64
"""Peers of a group that is as large as the average, in a full run."""

FULL_KEY_PEERS: Final = 2048
"""A unit has groups enough that none is larger than this on average, also where all peers of a full run hold that unit."""

LOBBY_PEERS: Final = 64
LOBBY_EVERY_S: Final = 3600.0
"""How long a peer's hash for the lobby lasts, in seconds."""

KEYS_A_LOOK: Final = 8
"""Most keys of one look: our own, the lobby, and others in turn."""


def _drawn(*parts: bytes) -> int:
    """A number of 64 bits that follows from these bytes."""
    return int.from_bytes(sha256(b"potluck directory|" + b"|".join(parts)).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class DirectoryKeys:
    """The keys of one run.

    Attributes:
        run_id: the run.
        most_peers: most peers that the run takes at a time, 1 to 100,000.
        spine: the unit of peers that hold no part (yet).
        parts: the units that only some peers hold, by their numbers.
    """

    run_id: RunId
    most_peers: int = 1
    spine: UnitName = WHOLE
    parts: tuple[UnitName, ...] = ()

    @property
    def has_groups(self) -> bool:
        """Whether the peers are spread over several keys."""
        return self.most_peers > GROUP_PEERS

    @property
    def num_groups(self) -> int:
        """Groups of each unit."""
        if not self.has_groups:
            return 1
        even = -(-self.most_peers // (GROUP_PEERS * max(1, len(self.parts))))
        return max(even, -(-self.most_peers // FULL_KEY_PEERS))

    @property
    def lobby(self) -> str:
        """The key of the lobby; the one key of a run without groups."""
        return f"potluck/{self.run_id.hex()}/{'lobby' if self.has_groups else 'peers'}"

    def group(self, peer: PeerId) -> int:
        """The group of a peer within its unit, from 0 on."""
        return _drawn(b"group", self.run_id, peer.encode()) % self.num_groups

    def home(self, peer: PeerId, held: Sequence[int]) -> str:
        """The key under which a peer that holds these parts announces itself: that of the first one."""
        if not self.has_groups:
            return self.lobby
        return self._key(self.parts[held[0]] if held and held[0] < len(self.parts) else self.spine, self.group(peer))

    def looked_at(self, peer: PeerId, held: Sequence[int], turn: int) -> tuple[str, ...]:
        """The keys of a peer's look number `turn`: its own, the lobby, and others in turn, half of them of its unit. All keys where
        they are few.
        """
        if not self.has_groups:
            return (self.lobby,)
        own = self.home(peer, held)
        unit = own.split("/")[2]
        near = self._turned(own, [unit])
        far = self._turned(own, [name for name in self._units() if name != unit])
        room = KEYS_A_LOOK - 2
        num_near = min(len(near), max(room // 2, room - len(far)))
        return (own, self.lobby, *_in_turn(near, num_near, turn), *_in_turn(far, room - num_near, turn))

    def _units(self) -> tuple[UnitName, ...]:
        return tuple(dict.fromkeys((self.spine, *self.parts)))

    def _key(self, unit: str, group: int) -> str:
        return f"potluck/{self.run_id.hex()}/{unit}/{group}"

    def _turned(self, own: str, units: Sequence[str]) -> list[str]:
        """The keys of these units without `own`, from the group after ours on, so that peers begin at different ones."""
        first, count = int(own.rpartition("/")[2]) + 1, self.num_groups
        keys = (self._key(unit, (first + step) % count) for step in range(count) for unit in units)
        return [key for key in keys if key != own]

    def is_in_lobby(self, peer: PeerId, seen: Iterable[PeerId], now_unix_s: float) -> bool:
        """Whether a peer that sees these peers announces itself in the lobby, too; `now_unix_s` in s since 1970."""
        if not self.has_groups:
            return False
        hour = str(int(now_unix_s // LOBBY_EVERY_S)).encode()
        own = _drawn(b"lobby", hour, peer.encode())
        lower = (other for other in seen if other != peer and _drawn(b"lobby", hour, other.encode()) < own)
        return sum(1 for _ in zip(lower, range(LOBBY_PEERS), strict=False)) < LOBBY_PEERS


def _in_turn(keys: Sequence[str], count: int, turn: int) -> tuple[str, ...]:
    """`count` of these keys, others at the next turn; all where they are no more than that."""
    if count >= len(keys):
        return tuple(keys)
    return tuple(keys[(turn * count + place) % len(keys)] for place in range(count))


def keys_of(manifest: RunManifest) -> DirectoryKeys:
    """The keys of the run that this manifest describes."""
    spine = next(iter(manifest.unit_schemas()))
    return DirectoryKeys(manifest.run_id, manifest.config.run.most_peers, spine, manifest.parts)
