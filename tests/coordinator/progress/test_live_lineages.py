from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from coordinator.progress.chain_log import ChainLog
from coordinator.progress.live_lineages import (
    PATIENCE_S,
    STILL_S,
    UNPROVEN_S,
    LiveLineages,
    PeerHeads,
    Seen,
    lone_refused,
    looked_at,
    of_bytes,
    restored,
    to_bytes,
    without,
)
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.lineage import CommitTree
from tests.coordinator.chain_world import PEERS, RUN_ID, VERIFIER, Chain, rows_of

UNSEEN = Seen({}, 0.0)


@dataclass
class Sides:
    """A preferred lineage and another, both known."""

    log: ChainLog
    preferred: Chain
    other: Chain

    def looked(self, before: LiveLineages, *heads: CommitId, after_s: float) -> LiveLineages:
        return looked_at(before, self.log.tree, frozenset(heads), after_s)


def _sides() -> Sides:
    trunk = Chain()
    trunk.commit()
    preferred, other = trunk.clone(), trunk.clone()
    for _ in range(4):
        preferred.commit((200, 200, 200))
    for _ in range(3):
        other.commit((10, 10, 10))
    log = ChainLog(trunk.genesis, RUN_ID, VERIFIER)
    for chain in (preferred, other):
        log.add(log.verify(chain.certificates).new)
    assert log.head.commit == preferred.head[0]
    return Sides(log, preferred, other)


def test_where_nobody_stands_on_the_preferred_lineage_the_other_one_counts_after_a_patience() -> None:
    sides = _sides()
    other = sides.other.head[0]
    looked = sides.looked(LiveLineages(), other, after_s=5.0)
    assert looked.counted == frozenset()
    looked = sides.looked(looked, other, after_s=5.0 + PATIENCE_S - 1.0)
    assert looked.counted == frozenset()
    looked = sides.looked(looked, other, sides.other.commits[2][0], after_s=5.0 + PATIENCE_S)
    assert sides.log.count(looked.counted)
    assert sides.log.head.commit == other
    kept = sides.looked(looked, after_s=1000.0)
    assert kept.counted == looked.counted, "that nobody is there any more says nothing"
    kept = sides.looked(looked, other, CommitId(b"?" * 32), after_s=1000.0)
    assert kept.counted == {other}, "one that is not proven yet says nothing either"
    back = sides.looked(kept, other, sides.preferred.commits[2][0], after_s=1001.0)
    assert back.counted == frozenset()
    assert sides.log.count(back.counted)
    assert sides.log.head.commit == sides.preferred.head[0]


def test_who_stands_on_the_preferred_lineage_behind_its_head_or_before_the_fork_or_nowhere_known_loses_nothing() -> (
    None
):
    sides = _sides()
    other, preferred = sides.other.head[0], sides.preferred.commits
    for heads in ((other, preferred[1][0]), (preferred[0][0],), (other, CommitId(b"?" * 32))):
        looked = sides.looked(LiveLineages(), *heads, after_s=0.0)
        assert sides.looked(looked, *heads, after_s=2 * PATIENCE_S).counted == frozenset()


def test_what_comes_after_the_lineage_that_counts_is_followed_and_what_comes_beside_is_not() -> None:
    sides = _sides()
    sides.log.count(frozenset({sides.other.head[0]}))
    sides.preferred.commit((200, 200, 200))
    assert not sides.log.add(sides.log.verify(sides.preferred.certificates).new)
    sides.other.commit((10, 10, 10))
    assert sides.log.add(sides.log.verify(sides.other.certificates).new)
    assert sides.log.head.commit == sides.other.head[0]


def test_a_head_that_nobody_ever_shows_holds_the_host_up_for_minutes_and_not_for_ever() -> None:
    sides = _sides()
    other, looked = sides.other.head[0], LiveLineages()
    for second in range(int(UNPROVEN_S + PATIENCE_S) + 2):
        assert looked.counted == frozenset() or second > UNPROVEN_S + PATIENCE_S
        made_up = CommitId(second.to_bytes(32, "big"))  # another one with each report
        looked = sides.looked(looked, other, made_up, after_s=float(second))
    assert looked.counted == {other}
    back = sides.looked(looked, other, sides.preferred.head[0], after_s=1001.0)
    assert back.counted == frozenset()


def test_who_is_known_again_on_the_preferred_lineage_ends_the_wait_for_what_nobody_shows() -> None:
    sides = _sides()
    other, unknown = sides.other.head[0], CommitId(b"?" * 32)
    looked = sides.looked(LiveLineages(), other, unknown, after_s=0.0)
    looked = sides.looked(looked, other, sides.preferred.head[0], after_s=UNPROVEN_S - 1.0)
    for second in (UNPROVEN_S, UNPROVEN_S + PATIENCE_S + 1.0):
        looked = sides.looked(looked, other, unknown, after_s=second)
        assert looked.counted == frozenset()


def test_who_says_that_it_stands_on_a_lineage_that_does_not_grow_holds_the_host_up_for_minutes_while_others_go_on() -> (
    None
):
    sides = _sides()
    liar, looked = sides.preferred.commits[2][0], LiveLineages()
    looked = sides.looked(looked, sides.other.head[0], liar, after_s=0.0)
    for second in range(1, int(STILL_S + PATIENCE_S) + 2):
        if second == 30:
            sides.other.commit((10, 10, 10))
            sides.log.add(sides.log.verify(sides.other.certificates).new)
        liar = sides.preferred.commits[1 + second % 3][0]  # another one of those that are known with each report
        assert looked.counted == frozenset() or second > STILL_S + PATIENCE_S
        looked = sides.looked(looked, sides.other.head[0], liar, after_s=float(second))
    assert looked.counted == {sides.other.head[0]}
    assert sides.log.count(looked.counted)
    assert sides.log.head.commit == sides.other.head[0]
    sides.preferred.commit((200, 200, 200))
    sides.log.add(sides.log.verify(sides.preferred.certificates).new)
    back = sides.looked(looked, sides.other.head[0], sides.preferred.head[0], after_s=1000.0)
    assert back.counted == frozenset(), "who goes on there was no liar"
    alone = sides.looked(looked, sides.preferred.commits[2][0], after_s=1000.0)
    assert alone.counted == frozenset(), "those who stood elsewhere came over"


def test_where_nobody_goes_on_anywhere_who_stands_on_the_preferred_lineage_is_believed() -> None:
    sides = _sides()
    looked = LiveLineages()
    for second in range(0, int(3 * STILL_S), 5):
        liar = sides.other.commits[min(3, 1 + second // 60)][0]  # goes over what is known there, and shows nothing new
        looked = sides.looked(looked, liar, sides.preferred.head[0], after_s=float(second))
        assert looked.counted == frozenset()


def test_what_counted_before_a_restart_counts_with_what_came_after_it_until_somebody_stands_elsewhere() -> None:
    sides = _sides()
    older, other, preferred = sides.other.commits[1][0], sides.other.head[0], sides.preferred.head[0]
    counted = sides.log.with_later(of_bytes(to_bytes(frozenset({older, CommitId(b"?" * 32)}))))
    assert counted == {older, *(commit for commit, _, _ in sides.other.commits[2:])}
    looked = restored(sides.log.tree, counted, 1.0, UNSEEN)
    assert sides.log.count(looked.counted)
    assert sides.log.head.commit == other
    assert sides.looked(looked, after_s=2.0).counted == counted, "that nobody is there yet says nothing"
    assert sides.looked(looked, other, after_s=2.0).counted == {other}
    assert sides.looked(looked, other, preferred, after_s=2.0).counted == frozenset()
    assert restored(sides.log.tree, frozenset(), 1.0, UNSEEN) == LiveLineages()


def _seen_at(preferred_s: int, other_s: list[int], now_s: float, sides: Sides) -> Seen:
    came = {commit: preferred_s for commit, _, _ in sides.preferred.commits}
    came |= dict(zip((commit for commit, _, _ in sides.other.commits[1:]), other_s, strict=False))
    return Seen(came, now_s)


def test_a_host_that_restarts_every_three_minutes_does_not_believe_for_ever_who_says_that_it_stands_where_nothing_grows() -> (
    None
):
    sides = _sides()
    liar = frozenset({sides.preferred.head[0]})
    came = [100, 100, 100]
    counted, begun_s = frozenset[CommitId](), 100
    for _ in range(3):
        begun_s += 180
        looked = restored(sides.log.tree, counted, 5.0, _seen_at(100, came, float(begun_s), sides))
        looked = looked_at(looked, sides.log.tree, liar, 6.0)  # its report comes first
        for second in range(7, 180):
            if second == 30:
                sides.other.commit((10, 10, 10))
                sides.log.add(sides.log.verify(sides.other.certificates).new)
                came.append(begun_s + 30)
            looked = looked_at(looked, sides.log.tree, liar | {sides.other.head[0]}, float(second))
            assert not looked.counted or second > 2 * PATIENCE_S, "whoever goes on there has time to show it"
        counted = looked.counted
        if counted:
            break
    assert counted == {sides.other.head[0]}


def test_after_a_restart_what_was_beside_the_preferred_lineage_before_it_stood_still_is_no_growth() -> None:
    sides = _sides()
    both = frozenset({sides.preferred.head[0], sides.other.head[0]})
    looked = restored(sides.log.tree, frozenset(), 5.0, _seen_at(200, [100, 150, 200], 9000.0, sides))
    for second in range(6, int(3 * STILL_S)):
        looked = looked_at(looked, sides.log.tree, both, float(second))
        assert looked.counted == frozenset()
    come_over = looked_at(looked, sides.log.tree, frozenset({sides.preferred.head[0]}), 3 * STILL_S)
    assert come_over.still is None


def test_a_clock_that_was_set_back_makes_the_host_wait_no_less() -> None:
    sides = _sides()
    looked = restored(sides.log.tree, frozenset(), 5.0, _seen_at(200, [100, 150, 200], 10.0, sides))
    assert looked.still is not None
    assert looked.still.since_s == 5.0


# --- lone commits ---------------------------------------------------------------------------------------------------------------

A, B, C = (peer.peer_id for peer in PEERS)
UNKNOWN = CommitId(b"u" * 32)


def _alone(trunk: Chain, number: int = 0, tokens: int = 5) -> Chain:
    """A lone commit of one member on the trunk's head, and another on top of it."""
    chain = replace(trunk.clone(), members=PEERS[number : number + 1])
    chain.commit((tokens,), voters=1, lone=True)
    chain.commit((tokens,), voters=1)
    return chain


def _trunk() -> Chain:
    chain = Chain()
    chain.commit((10, 10, 10))
    return chain


def _log(*chains: Chain) -> ChainLog:
    log = ChainLog(chains[0].genesis, RUN_ID, VERIFIER)
    for chain in chains:
        log.add(log.verify(chain.certificates).new)
    return log


def _refused(tree: CommitTree, head: CommitId, heads: dict[PeerId, CommitId], *, are_all_heard: bool = True) -> bool:
    return bool(lone_refused(tree, head, PeerHeads(heads, are_all_heard)))


def test_a_lone_commit_is_refused_while_more_than_half_of_its_bases_voters_stand_elsewhere() -> None:
    trunk = _trunk()
    alone = _alone(trunk)
    tree, base, tip = _log(trunk, alone).tree, trunk.head[0], alone.head[0]
    assert lone_refused(tree, base, PeerHeads({A: tip, B: base, C: base})) == {alone.commits[1][0]}
    assert _refused(tree, base, {B: base, C: UNKNOWN}), "a head that is not proven says nothing for it"
    assert not _refused(tree, base, {A: tip, B: base}), "one of three is half at most"
    assert not _refused(tree, base, {A: tip, B: alone.commits[1][0], C: base}), "another came over"
    assert not _refused(tree, base, {PeerId("x"): base, PeerId("y"): base, PeerId("z"): base}), "no voters"


def test_a_voter_that_signed_a_lone_commit_stands_on_it_also_while_its_head_is_not_known_here() -> None:
    """A lone lineage that is longer than what the host keeps could never be followed otherwise."""
    trunk = _trunk()
    alone = _alone(trunk)
    tree, base = _log(trunk, alone).tree, trunk.head[0]
    assert not _refused(tree, base, {A: UNKNOWN, B: base})
    assert _refused(tree, base, {A: UNKNOWN, B: base, C: base})
    assert _refused(tree, base, {B: UNKNOWN, C: base}), "B signed nothing"
    assert _refused(tree, base, {A: base, B: base}), "it went back"


def test_a_lone_commit_that_is_followed_is_not_judged_again() -> None:
    trunk = _trunk()
    alone = _alone(trunk)
    tree, base = _log(trunk, alone).tree, trunk.head[0]
    for head in (alone.commits[1][0], alone.head[0]):
        assert not _refused(tree, head, {A: base, B: base, C: base})


def test_voters_who_committed_alone_as_well_do_not_stand_against_another_who_did() -> None:
    trunk = _trunk()
    ours, theirs = _alone(trunk), _alone(trunk, 1)
    tree, base = _log(trunk, ours, theirs).tree, trunk.head[0]
    assert not _refused(tree, base, {A: ours.head[0], B: theirs.head[0], C: base})
    assert _refused(tree, base, {A: ours.head[0], B: base, C: base})


def test_before_all_peers_had_time_to_report_every_new_lone_commit_waits() -> None:
    trunk = _trunk()
    alone = _alone(trunk)
    tree, base = _log(trunk, alone).tree, trunk.head[0]
    assert _refused(tree, base, {A: alone.head[0]}, are_all_heard=False)
    assert not _refused(tree, alone.head[0], {A: alone.head[0]}, are_all_heard=False)


def test_a_tree_without_a_commit_is_without_all_that_follow_and_keeps_the_rest() -> None:
    trunk = _trunk()
    alone = _alone(trunk)
    log = _log(trunk, alone)
    rest = without(log.tree, frozenset({alone.commits[1][0]}))
    assert set(rest.nodes) == {trunk.genesis.commit, trunk.head[0]}
    assert (rest.tip, rest.has_fork, rest.has_lone) == (trunk.head[0], False, False)
    assert without(log.tree, frozenset({UNKNOWN})) is log.tree


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_log_follows_no_refused_commit_until_it_is_refused_no_more(*, is_restarted: bool) -> None:
    trunk = _trunk()
    alone, here = _alone(trunk), PeerHeads({B: trunk.head[0], C: trunk.head[0]})
    log = _log(trunk)
    if is_restarted:
        log.replay(rows_of(alone.certificates))
        log.count(frozenset(), frozenset({alone.commits[1][0]}))
    else:
        log.take(log.grown(log.verify(alone.certificates).new, here))
    assert log.head.commit == trunk.head[0]
    assert log.refused == log.grown((), here).refused == {alone.commits[1][0]}
    assert alone.head[0] not in log.tree.nodes
    assert log.count(frozenset(), log.grown((), PeerHeads({A: alone.head[0]})).refused)
    assert log.head.commit == alone.head[0]
    assert log.grown((), here).refused == frozenset()


def test_a_root_that_a_commit_beside_the_followed_lineage_attests_is_not_believed() -> None:
    trunk = _trunk()
    first, wrong, right = trunk.head[0], Root(b"w" * 32), Root(b"r" * 32)
    alone = replace(trunk.clone(), members=PEERS[:1])
    alone.commit((5,), voters=1, lone=True, attested=(first, wrong))
    log = _log(trunk)
    log.take(log.grown(log.verify(alone.certificates).new, PeerHeads({B: first, C: first})))
    assert log.attested_root(first) is None
    trunk.commit((10, 10, 10), attested=(first, right))
    log.add(log.verify(trunk.certificates).new)
    assert log.attested_root(first) == right
