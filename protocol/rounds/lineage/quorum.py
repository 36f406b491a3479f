"""Voters, openers and quorums: pure functions of a base commit and its roster (R3 and R6).

Rules: R3, R6 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256

from protocol.ids import PeerId, RunId, UnitName
from protocol.rounds.messages.messages import Leave
from protocol.rounds.messages.record import Ballot


def by_hash(prefix: bytes, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Peers in the order of SHA-256 over `prefix` and the peer: one order for all that know the prefix, which favours nobody."""
    return tuple(sorted(peers, key=lambda peer: (sha256(prefix + peer.encode()).digest(), peer)))


def tie_holder(run_id: bytes, roster: Iterable[PeerId]) -> PeerId:
    """The one peer whose half wins a 2 : 2 split: lowest hash of (run, peer). It depends on the run, not on the unit, so all stages
    of a pipeline that is split in two stop on the same side.
    """
    return by_hash(b"tie" + run_id, roster)[0]


def is_quorum(run_id: bytes, roster: Sequence[PeerId], votes: Collection[PeerId]) -> bool:
    """More than half of the roster by count, or exactly half with the tie-holder (R3).

    Any two such sets meet: two majorities do, a majority and a half do, and two halves share the tie-holder or are the same.
    """
    num_votes = sum([peer in votes for peer in roster])
    if not num_votes:
        return False
    if 2 * num_votes > len(roster):
        return True
    return 2 * num_votes == len(roster) and tie_holder(run_id, roster) in votes


def electorate(roster: Sequence[PeerId], ballot: Ballot, leaves: Mapping[PeerId, Leave]) -> tuple[PeerId, ...]:
    """The roster without peers that left (R3). A goodbye counts for `ballot` only if the leaver had promised nothing higher: it may
    have been in the quorum of promises that closed lower ballots.
    """
    if not leaves:
        return tuple(roster)

    def has_left(peer: PeerId) -> bool:
        leave = leaves.get(peer)
        return leave is not None and (leave.promised is None or leave.promised <= ballot)

    return tuple(peer for peer in roster if not has_left(peer))


def opener_order(
    run_id: RunId, unit: UnitName, index: int, attempt: int, peers: Iterable[PeerId]
) -> tuple[PeerId, ...]:
    """Peers in the order in which they may open the round after commit `index`, so that no peer is always first. The hash is of run,
    unit, index, attempt and peer: no leader can choose the next one by what it writes into its record.
    """
    prefix = b"opener" + run_id + unit.encode() + index.to_bytes(8, "big") + attempt.to_bytes(8, "big")
    return by_hash(prefix, peers)


@functools.lru_cache(maxsize=1024)
def first_opener(run_id: RunId, unit: UnitName, index: int, roster: tuple[PeerId, ...]) -> PeerId:
    """The owner of attempt 0 on a base with this index and roster, on which all holders of the base agree: only so may attempt 0
    skip the promises. Any other leader starts at attempt 1 and collects them.
    """
    return opener_order(run_id, unit, index, 0, roster)[0]
