"""Which branch of a tree of commits is followed, and what counts for it.

Rules: R22, R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from protocol.errors import LocalProtocolError
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage import lineage
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import (
    CommitTree,
    SpineView,
    Standing,
    best_head,
    known_commits,
    tree_of,
    work_after,
)
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.record import NO_SPINE
from protocol.rounds.messages.requests import MAX_KNOWN
from protocol.rounds.messages.wire import encode_record
from tests.protocol.rounds.made_commits import made_spine, record_on
from tests.protocol.rounds.round_table import TARGET_TOKENS, Table

FOUR = tuple(PeerId(f"peer{i}") for i in range(4))
UNPROVEN = Certificate(b"", ())
"""The tree takes commits that were verified before; these were not."""


def _child(
    parent: ChainLink,
    salt: int = 0,
    *,
    rounds: int = 1,
    size: int = 4,
    lone: bool = False,
    spine: CommitId = NO_SPINE,
) -> ChainLink:
    """A commit with so many rounds' worth of tokens and so large a roster, which cites this spine commit."""
    record = record_on(parent, FOUR[:size], tokens=rounds * TARGET_TOKENS, lone=lone, salt=salt, spine=spine)
    return link_after(parent, encode_record(record))


def _with_cap(link: ChainLink, cap_tokens: int) -> ChainLink:
    """The commit, as if it had named this weight cap."""
    assert link.record is not None
    return replace(link, content=replace(link.record, weight_cap_tokens=cap_tokens))


def _chain(parent: ChainLink, length: int, salt: int = 0) -> list[ChainLink]:
    links: list[ChainLink] = []
    for _ in range(length):
        links.append(_child(links[-1] if links else parent, salt))
    return links


def _tree(root: ChainLink, *links: ChainLink) -> CommitTree:
    tree = tree_of(root)
    for link in links:
        tree = tree.add(link, UNPROVEN)
    return tree


@pytest.fixture
def fork() -> ChainLink:
    """The first commit, behind all others here: its cap is above all that they count."""
    return _child(Table(1).genesis)


def test_many_commits_at_once_make_the_tree_that_they_make_one_by_one(fork: ChainLink) -> None:
    trunk = _chain(fork, 4)
    branch = _chain(trunk[1], 2, salt=1)
    for links in (trunk, [*trunk, *branch], [*trunk, *trunk], [*branch[:0], *trunk[:2], *branch, *trunk[2:]]):
        at_once = tree_of(fork).add_all((link, UNPROVEN) for link in links)
        one_by_one = _tree(fork, *links)
        assert (at_once.nodes, at_once.tip) == (one_by_one.nodes, one_by_one.tip)
        assert at_once.has_fork == one_by_one.has_fork == any(link in links for link in branch)
    with pytest.raises(LocalProtocolError, match="parent"):
        tree_of(fork).add_all([(trunk[1], UNPROVEN)])


# --- which branch to follow ---------------------------------------------------------------------------------------------------


def test_without_a_fork_the_newest_commit_is_followed(fork: ChainLink) -> None:
    links = _chain(fork, 5)
    assert best_head(_tree(fork)) == fork.commit
    assert best_head(_tree(fork, *links)) == links[-1].commit


def test_of_two_that_a_quorum_acked_the_one_with_twice_the_work_is_followed_whatever_its_roster(
    fork: ChainLink,
) -> None:
    heavy = _child(fork, rounds=4, size=1)
    light = _child(fork, 1, rounds=3, size=4)
    assert best_head(_tree(fork, heavy, light)) == heavy.commit
    assert best_head(_tree(fork, light, heavy)) == heavy.commit


def test_a_commit_of_a_quorum_goes_before_a_lone_one_whatever_work_follows_that(fork: ChainLink) -> None:
    """A peer that commits alone can sign as much work as it likes, and write any roster for what follows, like a quorum."""
    lone = _child(fork, size=1, lone=True)
    follows = [_child(lone, rounds=1000, size=1)]
    for _ in range(5):
        follows.append(_child(follows[-1], rounds=1000, size=1))
    quorum = _child(fork, 1, rounds=0, size=4)
    for tree in (_tree(fork, lone, *follows, quorum), _tree(fork, quorum, lone, *follows)):
        assert best_head(tree) == quorum.commit


def test_of_two_lone_commits_the_one_with_more_of_the_forks_voters_is_followed_whatever_work_the_other_has(
    fork: ChainLink,
) -> None:
    """Strangers in a roster add nothing: only voters of the fork count, else anybody could write itself a larger side."""
    few, many = _child(fork, rounds=1000, size=1, lone=True), _child(fork, 1, rounds=1, size=2, lone=True)
    assert best_head(_tree(fork, few, many)) == many.commit
    crowd = tuple(sorted((FOUR[0], *(PeerId(f"stranger{i}") for i in range(6)))))
    assert few.record is not None
    crowded = replace(few.record, roster=crowd, incarnations=(1,) * len(crowd))
    assert best_head(_tree(fork, link_after(fork, encode_record(crowded)), many)) == many.commit


def test_of_two_lone_commits_with_as_many_of_the_forks_voters_the_one_with_twice_the_work_is_followed(
    fork: ChainLink,
) -> None:
    light, heavy = (_child(fork, rounds, rounds=rounds, size=2, lone=True) for rounds in (1, 4))
    assert best_head(_tree(fork, light, heavy)) == heavy.commit
    assert best_head(_tree(fork, heavy, light)) == heavy.commit


def test_then_the_larger_roster_is_preferred_and_then_the_lower_id(fork: ChainLink) -> None:
    large, small = _child(fork, rounds=4, size=3), _child(fork, 1, rounds=7, size=2)
    assert best_head(_tree(fork, small, large)) == large.commit
    twins = [_child(fork, salt) for salt in range(8)]
    assert best_head(_tree(fork, *twins)) == min(link.commit for link in twins)


def test_a_child_is_judged_by_its_best_descendant_on_any_branch_below_it(fork: ChainLink) -> None:
    first, second = _child(fork, size=4), _child(fork, 1, size=1)
    shorter, longer = _chain(second, 1, salt=7), _chain(second, 7, salt=8)
    tree = _tree(fork, first, second, *shorter, *longer)
    assert best_head(tree) == longer[-1].commit


def test_the_best_that_follows_a_commit_is_found_without_the_other_branches(fork: ChainLink) -> None:
    best, other = _chain(fork, 8), _chain(fork, 2, salt=1)
    left, right = _chain(other[-1], 2, salt=2), _chain(other[-1], 4, salt=3)
    tree = _tree(fork, *best, *other, *left, *right)
    assert best_head(tree) == best[-1].commit
    assert best_head(tree, other[0].commit) == right[-1].commit
    assert best_head(tree, left[-1].commit) == left[-1].commit


def test_the_choice_does_not_depend_on_the_order_in_which_commits_came(fork: ChainLink) -> None:
    chooser = random.Random(3)
    for _ in range(30):
        links = [fork]
        for salt in range(12):
            parent = chooser.choice(links)
            size, is_lone = chooser.randint(1, 4), chooser.random() < 0.3
            links.append(_child(parent, salt, rounds=chooser.randint(0, 3), size=size, lone=is_lone))
        heads = set()
        for _ in range(4):
            waiting, tree = links[1:], tree_of(fork)
            while waiting:
                known = [link for link in waiting if link.parent in tree.nodes]
                chosen = chooser.choice(known)
                waiting.remove(chosen)
                tree = tree.add(chosen, UNPROVEN)
            heads.add(best_head(tree))
        assert len(heads) == 1


def _sides_in_turns(fork: ChainLink, rounds: int) -> list[tuple[int, int, int]]:
    """(side that is followed, work on one side, on the other) while two sides commit in turns."""
    tips = [_child(fork, 0), _child(fork, 1)]
    firsts = [tip.commit for tip in tips]
    tree = _tree(fork, *tips)
    seen = []
    for turn in range(2 * rounds):
        side = turn % 2
        tips[side] = _child(tips[side], side)
        tree = tree.add(tips[side], UNPROVEN)
        head = best_head(tree)
        followed = 0 if tree.path(firsts[0], head) is not None else 1
        seen.append((followed, tips[0].total_tokens, tips[1].total_tokens))
    return seen


def test_two_sides_of_near_equal_work_do_not_send_anybody_back_and_forth(fork: ChainLink) -> None:
    seen = _sides_in_turns(fork, 40)
    sides = [side for side, _, _ in seen]
    switches = sum(1 for before, after in pairwise(sides) if before != after)
    by_tokens = sum(1 for a, b in pairwise(seen) if (a[1] > a[2]) != (b[1] > b[2]))
    assert by_tokens >= 70
    assert switches <= 2 * 6  # both sides cross each of the classes once


def test_what_is_followed_has_never_less_than_half_of_the_others_work_but_for_the_first_round(
    fork: ChainLink,
) -> None:
    for mine in range(20):
        for other in range(20):
            sides = [_child(fork, 0, rounds=mine, size=1), _child(fork, 1, rounds=other, size=4)]
            followed = next(link for link in sides if link.commit == best_head(_tree(fork, *sides)))
            most = max(link.total_tokens for link in sides)
            assert 2 * followed.total_tokens > most or most < 2 * TARGET_TOKENS


def test_one_record_with_any_number_of_tokens_counts_for_the_cap_that_was_agreed_on_before_it() -> None:
    for agreed_at in (Table(1).genesis, _with_cap(_child(Table(1).genesis), TARGET_TOKENS)):
        honest = _chain(agreed_at, 4)
        liar = _child(agreed_at, 1, rounds=10**18 // TARGET_TOKENS, size=1, lone=True)
        assert liar.total_tokens > 10**17
        assert work_after(agreed_at, [liar]) == TARGET_TOKENS
        assert best_head(_tree(agreed_at, *honest, liar)) == honest[-1].commit


def test_the_cap_that_counts_is_that_of_the_commit_behind_both_and_of_no_commit_after_it() -> None:
    agreed_at = _with_cap(_child(Table(1).genesis), TARGET_TOKENS)
    honest, first = (
        _chain(agreed_at, 4),
        _child(agreed_at, 1, size=1, lone=True),
    )  # which names a cap of its own, for what follows
    liar = _child(first, rounds=1000, size=1)
    assert work_after(agreed_at, [first, liar]) == 2 * TARGET_TOKENS
    assert best_head(_tree(agreed_at, *honest, first, liar)) == honest[-1].commit


def test_each_fork_on_the_way_counts_with_its_own_cap() -> None:
    low = _with_cap(_child(Table(1).genesis), TARGET_TOKENS)
    best, other = _chain(low, 4), _child(low, 1)
    left, right = _child(other, 2, rounds=3), _child(other, 3, rounds=8)  # one round each as seen from below
    tree = _tree(low, *best, other, left, right)
    assert best_head(tree) == best[-1].commit
    assert best_head(tree, other.commit) == right.commit


# --- beside the spine ---------------------------------------------------------------------------------------------------------


def test_a_cited_commit_stands_with_the_head_that_it_is_or_lies_behind_or_ahead_of() -> None:
    spine = made_spine()
    ahead = _child(spine.left)
    view = SpineView(spine.left.commit, spine.tree.add(ahead, UNPROVEN))
    for cited in (spine.left, spine.trunk, spine.root, ahead):
        assert view.standing(cited.commit) is Standing.FOLLOWED
    assert view.standing(NO_SPINE) is Standing.FOLLOWED


def test_a_cited_commit_of_another_lineage_stands_elsewhere_at_every_depth_and_an_unknown_one_may() -> None:
    spine = made_spine()
    deeper = _child(spine.right)
    view = SpineView(spine.left.commit, spine.tree.add(deeper, UNPROVEN))
    assert view.standing(spine.right.commit) is Standing.OTHER
    assert view.standing(deeper.commit) is Standing.OTHER
    assert view.standing(CommitId(b"?" * 32)) is Standing.UNKNOWN
    assert SpineView(deeper.commit, view.tree).standing(spine.left.commit) is Standing.OTHER
    assert view.link == spine.left


def test_both_sides_of_a_fork_ahead_of_the_head_stand_with_it() -> None:
    spine = made_spine()
    view = spine.at(spine.trunk)
    assert view.standing(spine.left.commit) is view.standing(spine.right.commit) is Standing.FOLLOWED


def test_a_branch_that_cites_the_followed_spine_beats_a_heavier_one_that_cites_another(fork: ChainLink) -> None:
    spine = made_spine()
    light = _child(fork, rounds=1, size=1, lone=True, spine=spine.left.commit)
    heavy = _child(fork, 1, rounds=40, spine=spine.right.commit)
    for tree in (_tree(fork, light, heavy), _tree(fork, heavy, light)):
        assert best_head(tree, spine=spine.at(spine.left)) == light.commit
        assert best_head(tree, spine=spine.at(spine.right)) == heavy.commit
        assert best_head(tree) == heavy.commit, "without a spine R22 decides alone"


def test_of_two_branches_that_cite_the_followed_spine_the_one_with_more_work_is_kept(fork: ChainLink) -> None:
    spine = made_spine()
    light = _child(fork, rounds=3, spine=spine.left.commit)
    heavy = _child(fork, 1, rounds=8, spine=spine.trunk.commit)
    assert best_head(_tree(fork, heavy, light), spine=spine.at(spine.left)) == heavy.commit


def test_one_commit_made_with_another_spine_spoils_the_line_also_where_later_ones_cite_the_followed_spine(
    fork: ChainLink,
) -> None:
    spine = made_spine()
    good = _child(fork, rounds=1, spine=spine.left.commit)
    first = _child(fork, 1, rounds=10, spine=spine.trunk.commit)
    bad = _child(first, rounds=10, spine=spine.right.commit)
    again = _child(bad, rounds=10, spine=spine.left.commit)
    assert best_head(_tree(fork, good, first, bad, again), spine=spine.at(spine.left)) == good.commit
    assert best_head(_tree(fork, good, first), spine=spine.at(spine.left)) == first.commit, "before the bad one"


def test_where_both_sides_are_spoilt_the_one_with_more_work_is_kept(fork: ChainLink) -> None:
    spine = made_spine()
    light, heavy = (_child(fork, rounds, rounds=rounds, spine=spine.right.commit) for rounds in (1, 8))
    again = _child(light, rounds=2, spine=spine.left.commit)
    assert best_head(_tree(fork, light, heavy, again), spine=spine.at(spine.left)) == heavy.commit


def test_a_branch_that_cites_an_unknown_spine_commit_ranks_with_one_that_cites_another_lineage(
    fork: ChainLink,
) -> None:
    spine = made_spine()
    followed = _child(fork, rounds=1, spine=spine.left.commit)
    unknown = _child(fork, 1, rounds=8, spine=CommitId(b"?" * 32))
    assert best_head(_tree(fork, unknown, followed), spine=spine.at(spine.left)) == followed.commit
    for rounds in (1, 40):
        other = _child(fork, 2, rounds=rounds, spine=spine.right.commit)
        heavier = other if rounds == 40 else unknown
        assert best_head(_tree(fork, other, unknown), spine=spine.at(spine.left)) == heavier.commit


def test_two_who_left_each_a_spine_that_the_other_never_heard_of_prefer_the_same_branch(fork: ChainLink) -> None:
    """Once each preferred the other's, and so they changed places and went on apart."""
    spine = made_spine()
    apart = [_child(spine.trunk, salt) for salt in (7, 8)]
    light, heavy = (_child(fork, salt, rounds=rounds, spine=apart[salt].commit) for salt, rounds in ((0, 2), (1, 9)))
    tree = _tree(fork, light, heavy)
    for left in apart:
        view = SpineView(spine.left.commit, spine.tree.add(left, UNPROVEN))
        assert best_head(tree, spine=view) == heavy.commit


def test_the_work_of_a_branch_is_that_of_its_lines_that_stand_best_with_the_spine(fork: ChainLink) -> None:
    spine = made_spine()
    first = _child(fork, rounds=1, spine=spine.trunk.commit)
    good = _child(first, rounds=1, spine=spine.left.commit)
    spoilt = _child(first, 1, rounds=100, spine=spine.right.commit)
    sibling = _child(fork, 2, rounds=8, spine=spine.left.commit)
    view = spine.at(spine.left)
    assert best_head(_tree(fork, first, good, spoilt, sibling), spine=view) == sibling.commit
    assert best_head(_tree(fork, first, good, spoilt), spine=view) == good.commit


def test_without_a_fork_the_newest_commit_is_followed_whatever_it_cites(fork: ChainLink) -> None:
    spine = made_spine()
    first = _child(fork, spine=spine.right.commit)
    second = _child(first, spine=CommitId(b"?" * 32))
    tree = _tree(fork, first, second)
    assert best_head(tree, spine=spine.at(spine.left)) == second.commit
    third = _child(second, spine=spine.left.commit)
    assert best_head(tree.add(third, UNPROVEN), spine=spine.at(spine.left)) == third.commit


# --- the tree -----------------------------------------------------------------------------------------------------------------


def test_a_commit_is_added_once_and_only_on_a_known_parent(fork: ChainLink) -> None:
    one, two = _chain(fork, 2)
    tree = _tree(fork, one)
    assert tree.add(one, UNPROVEN) is tree
    with pytest.raises(LocalProtocolError, match="parent"):
        _tree(fork).add(two, UNPROVEN)


def test_paths_lead_forwards_only_and_the_fork_of_two_commits_is_the_newest_behind_both(fork: ChainLink) -> None:
    trunk = _chain(fork, 3)
    left, right = _chain(trunk[1], 2, salt=1), _chain(trunk[1], 3, salt=2)
    tree = _tree(fork, *trunk, *left, *right)
    path = tree.path(trunk[0].commit, left[1].commit)
    assert path is not None
    assert [node.link.commit for node in path] == [trunk[1].commit, left[0].commit, left[1].commit]
    assert tree.path(left[0].commit, right[2].commit) is None
    assert tree.path(left[1].commit, trunk[0].commit) is None
    assert tree.path(left[1].commit, left[1].commit) == ()
    assert tree.common(left[1].commit, right[2].commit) == trunk[1].commit
    assert tree.common(trunk[2].commit, right[0].commit) == trunk[1].commit
    assert tree.common(trunk[0].commit, left[1].commit) == trunk[0].commit
    assert tree.common(left[1].commit, CommitId(b"?" * 32)) is None


def test_a_tree_is_pruned_rarely_and_keeps_what_is_not_too_deep(
    fork: ChainLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "MAX_DEPTH", 4)
    monkeypatch.setattr(lineage, "MANY_AT_ONCE", 4)
    trunk = _chain(fork, 9)
    old, young = _chain(trunk[1], 2, salt=1), _chain(trunk[6], 1, salt=2)
    tree = _tree(fork, *trunk, *old, *young)
    assert tree.pruned(trunk[7].commit) is tree
    pruned = tree.pruned(trunk[8].commit)
    assert pruned.root == trunk[5].commit
    assert set(pruned.nodes) == {link.commit for link in (*trunk[5:], *young)}
    assert pruned.has_fork
    assert tree.common(trunk[8].commit, old[0].commit) == trunk[1].commit
    assert pruned.common(trunk[8].commit, old[0].commit) is None


def test_pruning_forgets_no_commit_ahead_of_the_head(fork: ChainLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "MAX_DEPTH", 4)
    monkeypatch.setattr(lineage, "MANY_AT_ONCE", 4)
    trunk = _chain(fork, 12)
    side = _chain(trunk[0], 1, salt=1)
    tree = _tree(fork, *trunk, *side).pruned(trunk[9].commit)
    assert not tree.has_fork
    assert best_head(tree) == trunk[11].commit


def _proven(link: ChainLink) -> tuple[ChainLink, Certificate]:
    assert link.record is not None
    return link, Certificate(encode_record(link.record), ())


def test_old_links_of_a_tree_become_light_many_at_once_and_forks_are_chosen_as_before(
    fork: ChainLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "NUM_WHOLE", 4)
    monkeypatch.setattr(lineage, "MANY_AT_ONCE", 4)
    trunk = _chain(fork, 12)
    tree = tree_of(fork).add_all([_proven(link) for link in (*trunk, *_chain(trunk[2], 3, salt=1))])
    assert tree.pruned(trunk[5].commit) is tree, "too few are old"
    thin = tree.pruned(trunk[11].commit)
    is_light = {node.link.index: node.link.is_light for node in thin.nodes.values() if node.certificate is not None}
    assert is_light == {index: index <= trunk[11].index - 4 for index in range(2, 14)}
    assert thin.nodes == tree.nodes
    assert best_head(thin) == best_head(tree)
    assert thin.pruned(trunk[11].commit) is thin
    late = thin.add_all([_proven(_child(trunk[2], salt=2))])
    assert sum(not node.link.is_light for node in late.nodes.values()) == 6, (
        "the genesis, the newest four, the late one"
    )


@pytest.mark.parametrize("seed", range(20))
def test_of_any_tree_the_same_branch_is_followed_when_all_its_links_are_light(
    fork: ChainLink, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser, links = random.Random(seed), [fork]
    for salt in range(14):
        parent = chooser.choice(links[-6:])
        lone, size = chooser.random() < 0.3, chooser.randint(1, 4)
        links.append(_child(parent, salt, rounds=chooser.randint(1, 9), size=size, lone=lone))
    tree = tree_of(fork).add_all([_proven(link) for link in links[1:]])
    monkeypatch.setattr(lineage, "NUM_WHOLE", -100)
    light = tree.pruned(tree.tip)
    assert all(node.link.is_light for node in light.nodes.values() if node.link != fork)
    assert best_head(light) == best_head(tree)
    assert work_after(fork, (node.link for node in light.nodes.values())) == work_after(
        fork, (node.link for node in tree.nodes.values())
    )


# --- what to name when asking -------------------------------------------------------------------------------------------------


def _distances(tree: CommitTree, head: ChainLink) -> list[int]:
    return [head.index - tree.nodes[commit].link.index for commit in known_commits(tree, head.commit)]


def test_known_commits_run_from_the_head_to_the_root_densely_at_first_and_then_in_doubling_steps(
    fork: ChainLink,
) -> None:
    links = _chain(fork, 150)
    tree = _tree(fork, *links)
    assert _distances(tree, links[149]) == [*range(11), 12, 16, 24, 40, 72, 136, 150]
    assert _distances(tree, links[4]) == [0, 1, 2, 3, 4, 5]
    assert known_commits(tree_of(fork), fork.commit) == (fork.commit,)


def test_the_newest_known_commit_behind_a_fork_is_at_most_about_twice_as_deep(fork: ChainLink) -> None:
    links = _chain(fork, 150)
    distances = _distances(_tree(fork, *links), links[-1])
    for depth in range(150):
        found = min(distance for distance in distances if distance >= depth)
        assert found <= max(depth, 2 * depth - 8)
    assert len(distances) <= MAX_KNOWN


def test_known_commits_are_of_our_own_lineage(fork: ChainLink) -> None:
    ours, theirs = _chain(fork, 3), _chain(fork, 5, salt=1)
    tree = _tree(fork, *ours, *theirs)
    assert set(known_commits(tree, ours[-1].commit)) == {fork.commit, *(link.commit for link in ours)}
