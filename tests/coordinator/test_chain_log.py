"""Commits as the coordinator follows them."""

from __future__ import annotations

import pytest

from coordinator.chain_log import ChainLog, round_row
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, Root
from tests.coordinator.chain_world import PEERS, RUN_ID, VERIFIER, Chain


def new_log(chain: Chain) -> ChainLog:
    return ChainLog(chain.genesis, RUN_ID, VERIFIER)


def take(log: ChainLog, certificates: list[bytes]) -> int:
    accepted = log.verify(certificates)
    log.add(accepted.new)
    return accepted.want_from_index


def test_follows_certificates_in_order_and_asks_for_the_next() -> None:
    chain = Chain()
    log = new_log(chain)
    assert take(log, []) == 1
    first = chain.commit()
    second = chain.commit(attested=(first, Root(b"x" * 32)))
    assert take(log, chain.certificates) == 3
    assert (log.head.commit, log.head.index, log.head.total_tokens) == (second, 2, 1200)
    assert log.attested_root(first) == b"x" * 32
    assert [link.index for link in log.lineage(10)] == [1, 2]


def test_known_certificates_are_not_verified_or_added_again() -> None:
    chain = Chain()
    chain.commit()
    log = new_log(chain)
    take(log, chain.certificates)
    accepted = log.verify(chain.certificates)
    assert (accepted.new, accepted.want_from_index) == ((), 2)


def test_goes_back_when_a_peer_starts_behind_an_unknown_parent() -> None:
    chain = Chain()
    for _ in range(40):
        chain.commit()
    log = new_log(chain)
    assert take(log, chain.certificates[38:]) == 7
    assert take(log, chain.certificates[2:4]) == 1
    assert take(log, chain.certificates) == 41


def test_fork_with_more_tokens_wins_whatever_came_first() -> None:
    trunk = Chain()
    trunk.commit()
    small, big = trunk.clone(), trunk.clone()
    small.commit((10, 10, 10))
    best = big.commit((200, 200, 200))
    for order in ((small, big), (big, small)):
        log = new_log(trunk)
        for chain in order:
            take(log, chain.certificates)
        assert log.head.commit == best
        assert log.knows(small.head[0])


def test_certificate_without_a_quorum_is_refused_and_nothing_is_added() -> None:
    chain = Chain()
    chain.commit(voters=1)
    log = new_log(chain)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        log.verify(chain.certificates)
    assert log.head.index == 0


def test_replay_of_the_ledger_gives_the_same_head() -> None:
    chain = Chain()
    for _ in range(3):
        chain.commit()
    log = new_log(chain)
    log.replay([*chain.certificates, chain.certificates[0]])
    assert log.head.commit == chain.head[0]
    with pytest.raises(RemoteProtocolError, match="without its parent"):
        new_log(chain).replay(chain.certificates[1:])


def test_round_row_says_shares_coverage_and_omissions() -> None:
    chain = Chain()
    late = PeerId("late")
    chain.commit((100, 200, 350), omitted=((late, "too late"),))
    log = new_log(chain)
    take(log, chain.certificates)
    row = round_row(log.head)
    assert row.members == tuple(p.peer_id for p in PEERS)
    assert row.shares == pytest.approx((100 / 600, 200 / 600, 300 / 600))
    assert row.coverage == pytest.approx((3 * 3 + 1 * 4) / (4 * 4))
    assert row.omitted == ((late, "too late"),)
    with pytest.raises(RemoteProtocolError):
        round_row(chain.genesis)
