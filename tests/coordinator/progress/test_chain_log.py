"""Commits as the coordinator follows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.progress import chain_log
from coordinator.progress.chain_log import MAX_ON_BASE, ChainLog, followed
from coordinator.progress.links import known_links
from coordinator.progress.live_lineages import PeerHeads
from protocol.errors import RemoteProtocolError
from protocol.host.calls import NO_COMMIT
from protocol.ids import Root
from protocol.rounds.lineage import lineage
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from tests.coordinator.chain_world import PEERS, RUN_ID, VERIFIER, Chain, rows_of


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


def grown(chain: Chain, rounds: int, tokens: int = 10) -> Chain:
    for _ in range(rounds):
        chain.commit((tokens, tokens, tokens))
    return chain


def converse(log: ChainLog, chain: Chain, want: int) -> list[int]:
    """A peer on `chain` reports, at most 64 commits at a time, until its head is known; returns what it was asked for."""
    asked = [want]
    head, index, _ = chain.head
    while not log.knows(head):
        assert len(asked) < 20, asked
        accepted = log.verify(chain.certificates[max(0, want - 1) :][:64], head, index)
        log.add(accepted.new)
        want = accepted.want_from_index
        asked.append(want)
    return asked


def test_asks_for_what_follows_its_own_head_when_a_peer_is_further_on() -> None:
    chain = grown(Chain(), 40)
    log = new_log(chain)
    assert take(log, chain.certificates[38:]) == 1
    assert take(log, chain.certificates[:5]) == 6
    head, index, _ = chain.head
    assert log.verify([], head, index).want_from_index == 6
    assert log.verify(chain.certificates[38:], head, index).want_from_index == 6


def test_fetches_all_that_was_missed_from_an_old_copy_in_as_few_reports_as_there_are_bytes() -> None:
    chain = grown(Chain(), 200)
    log = new_log(chain)
    log.replay(rows_of(chain.certificates[:5]))
    assert converse(log, chain, want=201) == [201, 6, 70, 134, 198, 201]


def test_a_fork_of_a_lower_index_is_asked_for_too() -> None:
    trunk = grown(Chain(), 5)
    ours, theirs = grown(trunk.clone(), 60), grown(trunk.clone(), 3, tokens=7)
    log = new_log(trunk)
    take(log, ours.certificates)
    assert converse(log, theirs, want=9) == [9, 1, 9]
    assert log.head.commit == ours.head[0]


def test_a_deep_fork_is_found_in_doubling_steps() -> None:
    trunk = grown(Chain(), 10)
    ours, theirs = grown(trunk.clone(), 300), grown(trunk.clone(), 300, tokens=7)
    log = new_log(trunk)
    take(log, ours.certificates)
    asked = converse(log, theirs, want=311)
    assert asked[:5] == [311, 279, 247, 184, 58]
    assert log.knows(theirs.head[0])


def test_a_head_that_somebody_else_proved_is_not_asked_for_again() -> None:
    chain = grown(Chain(), 100)
    log = new_log(chain)
    take(log, chain.certificates)
    head, index, _ = chain.head
    assert log.verify(chain.certificates[:64], head, index).want_from_index == 101


def test_commits_of_another_lineage_in_the_same_report_are_taken_in() -> None:
    trunk = grown(Chain(), 3)
    ours, left = grown(trunk.clone(), 5, tokens=300), grown(trunk.clone(), 2, tokens=7)
    log = new_log(trunk)
    head, index, _ = ours.head
    accepted = log.verify([*ours.certificates, *left.certificates[3:]], head, index)
    log.add(accepted.new)
    assert (accepted.want_from_index, log.head.commit, log.knows(left.head[0])) == (9, head, True)


def test_what_grew_counts_only_once_it_is_taken() -> None:
    chain = grown(Chain(), 2)
    log = new_log(chain)
    growth = log.grown(log.verify(chain.certificates).new)
    assert (growth.head.index, log.head.index) == (2, 0)
    assert log.take(growth)
    assert log.head.index == 2


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
    log.replay(rows_of([*chain.certificates, chain.certificates[0]]))
    assert log.head.commit == chain.head[0]


def test_a_ledger_without_a_commit_stands_before_it_until_it_is_brought() -> None:
    chain = grown(Chain(), 6)
    log = new_log(chain)
    unlinked = log.replay(rows_of([*chain.certificates[:2], *chain.certificates[3:]]))
    assert (log.head.index, unlinked) == (2, [commit for commit, _, _ in chain.commits[3:]])
    assert take(log, chain.certificates[2:]) == 7
    assert log.head.commit == chain.head[0]


def test_replay_of_both_sides_of_a_fork_follows_the_heavier() -> None:
    trunk = grown(Chain(), 2)
    light, heavy = grown(trunk.clone(), 5), grown(trunk.clone(), 2, tokens=300)
    for certificates in ([*light.certificates, *heavy.certificates], [*heavy.certificates, *light.certificates]):
        log = new_log(trunk)
        assert log.replay(rows_of(certificates)) == []
        assert log.head.commit == heavy.head[0]
        assert log.knows(light.head[0])
        light_on = grown(light.clone(), 1)
        assert take(log, light_on.certificates) == 9


def test_a_fork_deeper_than_what_may_be_followed_is_known_and_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lineage, chain_log):
        monkeypatch.setattr(module, "MAX_DEPTH", 8)
    monkeypatch.setattr(lineage, "MANY_AT_ONCE", 8)
    trunk = grown(Chain(), 2)
    ours, theirs = grown(trunk.clone(), 30), grown(trunk.clone(), 1, tokens=300)
    log = new_log(trunk)
    for certificate in ours.certificates:
        take(log, [certificate])
    take(log, theirs.certificates)
    assert log.knows(theirs.head[0])
    assert log.head.commit == ours.head[0]


def test_only_what_a_start_needs_is_decoded_and_the_rest_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_log, "_EAGER", 5)
    decoded: list[bytes] = []

    def counted(record: bytes) -> ChainLink:
        decoded.append(record)
        return link_of(record)

    monkeypatch.setattr(known_links, "link_of", counted)
    chain = grown(Chain(), 30)
    log = new_log(chain)
    log.replay(rows_of(chain.certificates))
    assert (log.head.index, len(decoded)) == (30, 6)
    assert log.knows(chain.commits[3][0])
    link = log.link(chain.commits[3][0])
    assert link is not None
    assert (link.index, len(decoded)) == (4, 7)
    fork = grown(chain.clone(), 0)
    fork.commits, fork.certificates = fork.commits[:10], fork.certificates[:10]
    grown(fork, 3, tokens=300)
    take(log, fork.certificates[10:])
    assert log.head.commit == fork.head[0]  # it branches off far before what was decoded
    again = new_log(chain)
    again.replay(rows_of([*chain.certificates, *fork.certificates[10:]]))
    assert again.head.commit == fork.head[0]


def test_a_row_that_is_not_what_its_id_says_is_found_when_it_is_read() -> None:
    chain = grown(Chain(), 2)
    rows = rows_of(chain.certificates)
    swapped = [rows[0], replace(rows[1], certificate=rows[0].certificate)]
    with pytest.raises(RemoteProtocolError, match="under another id"):
        new_log(chain).replay(swapped)


# --- how much one member may write --------------------------------------------------------------------------------------------


def _alone(trunk: Chain, number: int, *, member: int = 0, lone: bool = True) -> Chain:
    """One more commit on the trunk's head by one member alone."""
    chain = trunk.clone()
    chain.given_start, chain.members = trunk.start_payload, (PEERS[member],)
    chain.commit((number + 1,), voters=1, lone=lone)
    return chain


def test_lone_commits_of_one_member_on_one_base_are_taken_up_to_a_bound_also_after_a_restart() -> None:
    trunk = grown(Chain(), 1)
    log = new_log(trunk)
    take(log, trunk.certificates)
    sides = [_alone(trunk, number) for number in range(MAX_ON_BASE + 2)]
    for side in sides[:MAX_ON_BASE]:
        assert take(log, side.certificates) == 3
    again = new_log(trunk)
    again.replay(rows_of([*trunk.certificates, *(side.certificates[-1] for side in sides[:MAX_ON_BASE])]))
    for full in (log, again):
        accepted = full.verify([side.certificates[-1] for side in sides])
        assert accepted.new == ()
        assert [each.members for each in accepted.refused] == [(PEERS[0].peer_id,)] * 2
        assert f"{MAX_ON_BASE} commits of" in accepted.refused[0].found
        other = full.verify(_alone(trunk, 0, member=1).certificates)
        assert (len(other.new), other.refused) == (1, ()), "another member's"
        assert len(full.verify(_alone(sides[0], 0).certificates).new) == 1, "on another base"


def test_one_report_with_too_many_lone_commits_is_taken_up_to_the_bound() -> None:
    trunk = Chain()
    log = new_log(trunk)
    accepted = log.verify([_alone(trunk, number).certificates[-1] for number in range(40)])
    assert (len(accepted.new), len(accepted.refused)) == (MAX_ON_BASE, 40 - MAX_ON_BASE)


def _lone_chain(trunk: Chain, number: int, member: int = 0) -> Chain:
    """A lineage that one member signs without end."""
    chain = _alone(trunk, 0, member=member)
    for _ in range(number - 1):
        chain.commit((1,), voters=1)
    return chain


def _brought(log: ChainLog, chain: Chain, heads: PeerHeads) -> int:
    """How many commits of a chain the log takes, report by report."""
    before = sum(log.knows(commit) for commit, *_ in chain.commits)
    for first in range(0, len(chain.certificates), 10):
        accepted = log.verify(chain.certificates[first : first + 10], heads=heads)
        assert all(not each.members for each in accepted.refused), "its bearer is not to blame"
        log.take(log.grown(accepted.new, heads))
    return sum(log.knows(commit) for commit, *_ in chain.commits) - before


def test_of_a_lone_lineage_that_is_not_followed_only_so_many_commits_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain_log, "MAX_BESIDE", 20)
    trunk = grown(Chain(), 3)
    log = new_log(trunk)
    take(log, trunk.certificates)
    base = trunk.head[0]
    here = PeerHeads({peer.peer_id: base for peer in PEERS[1:3]})
    assert _brought(log, _lone_chain(trunk, 60), here) <= 20 + 10
    later = grown(trunk.clone(), 5)
    assert _brought(log, later, here) == 5, "a quorum's commits are always taken"
    assert _brought(log, _lone_chain(trunk, 60, member=1), here) <= 1
    again = new_log(trunk)
    again.replay(rows_of([*later.certificates, *_lone_chain(trunk, 25).certificates[3:]]))
    assert _brought(again, _lone_chain(trunk, 60), here) <= 1, "also after a restart"


def test_a_lone_lineage_that_nobody_stands_against_is_recorded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be all that is left of the run."""
    monkeypatch.setattr(chain_log, "MAX_BESIDE", 20)
    trunk = grown(Chain(), 3)
    log = new_log(trunk)
    take(log, trunk.certificates)
    alone = _lone_chain(trunk, 60)
    assert _brought(log, alone, PeerHeads({PEERS[0].peer_id: alone.head[0]})) == 60
    assert log.head.commit == alone.head[0]


@pytest.mark.parametrize(
    ("where", "is_taken"),
    [
        ("nobody is left on ours", True),
        ("one stands on ours", False),
        ("one stands on the fork", False),
        ("one stands before it", True),
        ("unheard", False),
    ],
)
def test_the_only_living_lineage_is_recorded_whole_though_another_has_a_quorum_and_many_are_beside_it(
    where: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All holders of the lineage with a quorum are gone, and one member had filled what may be beside it."""
    monkeypatch.setattr(chain_log, "MAX_BESIDE", 20)
    trunk = grown(Chain(), 3)
    log = new_log(trunk)
    take(log, trunk.certificates)
    fork = trunk.head[0]
    ours, liars = grown(trunk.clone(), 2), _lone_chain(trunk, 40)
    here = PeerHeads({peer.peer_id: fork for peer in PEERS[1:3]})
    assert _brought(log, ours, here) == 2
    assert _brought(log, liars, PeerHeads({PEERS[1].peer_id: ours.head[0]})) <= 20 + 10
    living = _lone_chain(trunk, 40, member=1)
    heads = {
        "nobody is left on ours": PeerHeads({PEERS[1].peer_id: living.head[0]}),
        "one stands on ours": PeerHeads({PEERS[1].peer_id: living.head[0], PEERS[2].peer_id: ours.head[0]}),
        "one stands on the fork": PeerHeads({PEERS[1].peer_id: living.head[0], PEERS[2].peer_id: fork}),
        "one stands before it": PeerHeads({PEERS[1].peer_id: living.head[0], PEERS[2].peer_id: trunk.commits[1][0]}),
        "unheard": PeerHeads({}, are_all_heard=False),
    }[where]
    assert (_brought(log, living, heads) == 40) == is_taken
    if is_taken:
        log.count(frozenset([living.head[0]]), frozenset())
        assert log.head.commit == living.head[0]


def test_who_is_a_quorum_by_itself_after_a_lone_commit_may_fill_no_base_either() -> None:
    trunk = Chain()
    log, alone = new_log(trunk), _alone(trunk, 0)
    take(log, alone.certificates)
    accepted = log.verify([_alone(alone, number, lone=False).certificates[-1] for number in range(40)])
    assert (len(accepted.new), len(accepted.refused)) == (MAX_ON_BASE, 40 - MAX_ON_BASE)
    assert f"{MAX_ON_BASE} commits of a quorum on base" in accepted.refused[0].found


# --- how much of a long run is remembered -------------------------------------------------------------------------------------


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight commits behind the head are remembered, the newest four of them whole."""
    for module in (lineage, chain_log):
        monkeypatch.setattr(module, "MAX_DEPTH", 8)
        monkeypatch.setattr(module, "MANY_AT_ONCE", 2)
    monkeypatch.setattr(lineage, "NUM_WHOLE", 4)


def _long(length: int = 30) -> tuple[Chain, ChainLog]:
    chain = grown(Chain(), length)
    log = new_log(chain)
    for certificate in chain.certificates:
        take(log, [certificate])
    return chain, log


@pytest.mark.usefixtures("shallow")
def test_of_a_long_run_the_newest_commits_are_remembered_and_the_genesis() -> None:
    chain, log = _long()
    known = [index for commit, index, _ in chain.commits if log.knows(commit)]
    assert known == list(range(known[0], 31))
    assert 8 <= 30 - known[0] <= 8 + 2
    assert log.knows(chain.genesis.commit)
    assert [index for _, index in log.behind(log.head.commit)] == known[::-1]
    whole = [index for commit, index, _ in chain.commits[known[0] - 1 :] if not log.link(commit).is_light]  # type: ignore[union-attr]
    assert len(whole) <= 4 + 2
    assert [link.record is not None for link in log.lineage(100)] == [True] * len(known)


@pytest.mark.usefixtures("shallow")
def test_what_was_kept_of_forgotten_rounds_counts_as_followed() -> None:
    chain, log = _long()
    kept = followed(log)
    assert all(kept.has(commit, index) for commit, index, _ in chain.commits)
    assert not kept.has(chain.genesis.commit, 29)
    assert not known_links.NOTHING_FOLLOWED.has(chain.genesis.commit, 0)


@pytest.mark.usefixtures("shallow")
def test_commits_from_before_what_is_remembered_are_neither_taken_nor_asked_for_again_and_again() -> None:
    chain, log = _long()
    other = grown(Chain(), 3, tokens=300)
    head, index, _ = other.head
    accepted = log.verify(other.certificates, head, index)
    assert (accepted.new, accepted.want_from_index) == ((), 31)
    assert log.verify(chain.certificates[:5], NO_COMMIT, 0).new == (), "they are in the ledger"
    deep = chain.clone()
    deep.commits, deep.certificates = deep.commits[:10], deep.certificates[:10]
    grown(deep, 30, tokens=300)
    assert converse_until_stopped(log, deep) == 31
    assert log.head.commit == chain.head[0]


def converse_until_stopped(log: ChainLog, chain: Chain) -> int:
    """As `converse`, until the log asks for what follows its own head once more."""
    head, index, _ = chain.head
    want = log.head.index + 1
    for _ in range(10):
        accepted = log.verify(chain.certificates[max(0, want - 1) :][:64], head, index)
        want = accepted.want_from_index
        if want == log.head.index + 1:
            break
    return want


@pytest.mark.usefixtures("shallow")
def test_a_ledger_that_begins_in_the_middle_gives_the_same_head_and_goes_on() -> None:
    chain, log = _long()
    first = chain.commits[19][0]
    again = new_log(chain)
    assert again.replay(rows_of(chain.certificates[19:]), first) == []
    assert again.head == log.head
    assert [index for _, index in again.behind(again.head.commit)] == list(range(30, 19, -1))
    more = grown(chain.clone(), 3)
    take(again, more.certificates[30:])
    assert again.head.commit == more.head[0]
    assert again.attested_root(first) == log.attested_root(first)
    rows = rows_of(chain.certificates[19:])
    left = grown(replace(chain, commits=chain.commits[:10], certificates=chain.certificates[:10]), 15, tokens=11)
    beside = rows_of(left.certificates[10:])
    assert new_log(chain).replay([*rows, *beside], first) == [], "a fork from before it leaves no gap"
    gap = grown(chain.clone(), 2)
    assert new_log(chain).replay([*rows, *beside, *rows_of(gap.certificates[31:])], first) == [gap.head[0]]
    with pytest.raises(RemoteProtocolError, match="under another id"):
        new_log(chain).replay([replace(rows[0], certificate=rows[1].certificate), *rows[1:]], first)
