from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import pytest

from protocol.ids import CommitId, PeerId
from protocol.rounds.schedule.telling_tree import FAN_OUT, TREE_FROM, told_by

COMMIT = CommitId(b"c" * 32)


def _peers(number: int) -> list[PeerId]:
    return [PeerId(f"12D3KooW{index:040d}") for index in range(number)]


def _spread(
    peers: Sequence[PeerId],
    seen_by: Callable[[PeerId], Collection[PeerId]],
    silent: Collection[PeerId] = (),
    commit: CommitId = COMMIT,
) -> tuple[Counter[PeerId], Counter[PeerId], int]:
    """(how often each peer hears the first one's news, how many each tells, steps until the last one has heard)."""
    heard, told, steps = Counter[PeerId](), Counter[PeerId](), 0
    news: list[tuple[PeerId, PeerId | None]] = [(peers[0], None)]
    while news:
        coming: list[tuple[PeerId, PeerId | None]] = []
        for me, teller in news:
            to = told_by(me, seen_by(me), commit, teller=teller, silent=silent)
            told[me] += len(to)
            coming += [(peer, me) for peer in to if peer in peers and peer not in silent and not heard[peer]]
            heard.update(to)
        news, steps = coming, steps + 1
    return heard, told, steps - 1


@pytest.mark.parametrize("number", [TREE_FROM + 2, 64, 300])
def test_everybody_hears_once_and_nobody_tells_many(number: int) -> None:
    peers = _peers(number)
    heard, told, steps = _spread(peers, lambda _: peers)
    assert heard == Counter(peers[1:])
    digits = next(power for power in range(9) if FAN_OUT**power >= number)
    assert max(told.values()) <= (FAN_OUT - 1) * (digits + 1)
    assert steps <= 2 * digits


def test_up_to_sixteen_others_hear_from_the_first_teller_and_tell_nobody() -> None:
    peers = _peers(TREE_FROM + 1)
    assert told_by(peers[0], peers, COMMIT) == tuple(peers[1:])
    assert told_by(peers[1], peers, COMMIT, teller=peers[0]) == ()


def test_another_commit_has_other_tellers() -> None:
    peers = _peers(300)
    first = told_by(peers[0], peers, COMMIT)
    assert first != told_by(peers[0], peers, CommitId(b"d" * 32))


def test_a_peer_that_only_some_know_is_missed_alone() -> None:
    """The others need not agree on who is here."""
    peers = _peers(200)
    known = {peer: [other for other in peers if other == peer or (hash_of(peer, other) % 50)] for peer in peers}
    heard, _, _ = _spread(peers, lambda peer: known[peer])
    assert len(set(peers[1:]) - set(heard)) < 20
    assert max(heard.values()) == 1


def hash_of(peer: PeerId, other: PeerId) -> int:
    return int(peer[-4:]) * 7919 + int(other[-4:]) * 104729


def test_a_dead_teller_costs_its_own_part_of_the_peers_the_news_and_nobody_else() -> None:
    peers = _peers(300)
    first = told_by(peers[0], peers, COMMIT)[0]
    alive = [peer for peer in peers if peer != first]
    heard, _, _ = _spread(alive, lambda _: peers)
    missed = set(alive[1:]) - set(heard)
    assert len(missed) < 2 * len(peers) / FAN_OUT
    assert set(heard) | missed >= set(alive[1:])


def test_peers_that_tell_nobody_are_told_by_those_that_do() -> None:
    peers = _peers(300)
    silent = set(peers[1::3])
    heard, told, _ = _spread(peers, lambda _: peers, silent)
    assert heard == Counter(peers[1:])
    assert not silent & {peer for peer, number in told.items() if number}
