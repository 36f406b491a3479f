from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError, VersionError
from protocol.ids import PeerId, RunId, UnitName
from protocol.rounds.lineage.lineage import tree_of
from protocol.rounds.lineage.spine import FollowedSpine, choose, heard, only_holders, with_certificates
from tests.protocol.rounds.made_commits import Made, commit_on, lineage_on
from tests.protocol.rounds.round_table import RUN_ID, Table
from tests.simulation.signing import HashVerifier

ONE, TWO, THREE = (PeerId(f"holder{number}") for number in range(3))


def _with(state: FollowedSpine, *lines: Sequence[Made]) -> FollowedSpine:
    """The state with these verified commits."""
    for line in lines:
        certificates = [made.certificate for made in line]
        state, is_known = with_certificates(state, certificates, verifier=HashVerifier(), run_id=RUN_ID)
        assert is_known
    return state


def _at(state: FollowedSpine, **holders: Made) -> FollowedSpine:
    """The state after these holders told where they stand."""
    for peer, made in holders.items():
        state = heard(state, PeerId(peer), made.link.commit)
    return state


@pytest.fixture
def table() -> Table:
    return Table(3)


@pytest.fixture
def start(table: Table) -> FollowedSpine:
    return FollowedSpine(tree_of(table.genesis), table.genesis.commit)


# --- which commit to follow ---------------------------------------------------------------------------------------------------


def test_commits_on_which_no_holder_stands_are_not_followed(table: Table, start: FollowedSpine) -> None:
    made = lineage_on(table.genesis, table.live(), 3)
    known = _with(start, made)
    assert choose(known) == table.genesis.commit
    assert choose(_at(known, one=made[1])) == made[1].link.commit
    assert choose(_at(known, one=made[1], two=made[2])) == made[2].link.commit


def test_a_holder_on_a_commit_that_was_not_verified_here_counts_for_nothing(table: Table, start: FollowedSpine) -> None:
    made = lineage_on(table.genesis, table.live(), 2)
    state = heard(_at(_with(start, made[:1]), one=made[0]), TWO, made[1].link.commit)
    assert choose(state) == made[0].link.commit
    assert choose(_with(state, made[1:])) == made[1].link.commit, "its word counts once the commit is here"


def test_of_two_lineages_the_one_with_more_work_is_followed_however_many_holders_the_other_has(
    table: Table, start: FollowedSpine
) -> None:
    heavy, light = lineage_on(table.genesis, table.live(), 4), lineage_on(table.genesis, table.live(), 1, salt=1)
    state = _at(_with(start, heavy, light), one=heavy[-1], two=light[-1], three=light[-1])
    assert choose(state) == heavy[-1].link.commit


def test_work_of_a_branch_counts_only_up_to_where_a_holder_stands(table: Table, start: FollowedSpine) -> None:
    """Commits further along may be known to us and be with nobody."""
    long, short = lineage_on(table.genesis, table.live(), 16), lineage_on(table.genesis, table.live(), 4, salt=1)
    state = _with(start, long, short)
    assert choose(_at(state, one=long[0], two=short[-1])) == short[-1].link.commit
    assert choose(_at(state, one=long[-1], two=short[-1])) == long[-1].link.commit


def test_a_branch_of_the_tree_without_holders_does_not_weigh_at_a_deeper_fork(
    table: Table, start: FollowedSpine
) -> None:
    base = commit_on(table.genesis, table.live())
    heavy, light = lineage_on(base.link, table.live(), 8), lineage_on(base.link, table.live(), 1, salt=1)
    sibling = lineage_on(table.genesis, table.live(), 4, salt=2)
    state = _with(start, [base], heavy, light, sibling)
    assert choose(_at(state, one=light[0], two=sibling[-1])) == sibling[-1].link.commit


def test_what_we_follow_is_kept_against_a_lighter_lineage_and_left_for_a_heavier_one(
    table: Table, start: FollowedSpine
) -> None:
    ours, light = lineage_on(table.genesis, table.live(), 4), lineage_on(table.genesis, table.live(), 1, salt=1)
    heavy = lineage_on(table.genesis, table.live(), 16, salt=2)
    state = replace(_with(start, ours, light, heavy), head=ours[-1].link.commit)
    assert choose(_at(state, one=light[0], two=ours[-2])) == ours[-1].link.commit
    assert choose(_at(state, one=heavy[-1], two=ours[-2])) == heavy[-1].link.commit


def test_what_we_follow_is_left_where_every_holder_stands_on_another_lineage(
    table: Table, start: FollowedSpine
) -> None:
    ours, light = lineage_on(table.genesis, table.live(), 4), lineage_on(table.genesis, table.live(), 1, salt=1)
    state = replace(_with(start, ours, light), head=ours[-1].link.commit)
    assert choose(_at(state, one=light[0])) == light[0].link.commit
    ahead = commit_on(ours[-1].link, table.live())
    unknown = heard(_at(state, one=light[0]), TWO, ahead.link.commit)
    assert choose(unknown) == ours[-1].link.commit, "it may be ahead of us on our own"


def test_a_holder_that_is_behind_on_our_lineage_does_not_take_us_back(table: Table, start: FollowedSpine) -> None:
    ours, other = lineage_on(table.genesis, table.live(), 3), lineage_on(table.genesis, table.live(), 1, salt=1)
    state = replace(_with(start, ours, other), head=ours[-1].link.commit)
    assert choose(_at(state, one=ours[0])) == ours[-1].link.commit


# --- where holders are --------------------------------------------------------------------------------------------------------


def test_a_holders_newest_word_replaces_the_one_before(table: Table, start: FollowedSpine) -> None:
    heavy, light = lineage_on(table.genesis, table.live(), 4), lineage_on(table.genesis, table.live(), 1, salt=1)
    state = _at(_with(start, heavy, light), one=heavy[-1])
    moved = heard(state, PeerId("one"), light[0].link.commit)
    assert choose(moved) == light[0].link.commit
    assert heard(moved, PeerId("one"), light[0].link.commit) is moved


def test_the_word_of_a_holder_that_is_gone_no_longer_counts(table: Table, start: FollowedSpine) -> None:
    heavy, light = lineage_on(table.genesis, table.live(), 4), lineage_on(table.genesis, table.live(), 1, salt=1)
    state = _at(_with(start, heavy, light), holder0=heavy[-1], holder1=light[0])
    assert choose(only_holders(state, {TWO, THREE})) == light[0].link.commit
    assert choose(only_holders(state, ())) == table.genesis.commit
    assert only_holders(state, {ONE, TWO, THREE}) is state


def test_the_view_for_other_units_ends_at_the_followed_commit(table: Table, start: FollowedSpine) -> None:
    made = lineage_on(table.genesis, table.live(), 2)
    state = replace(_with(start, made), head=made[0].link.commit)
    assert (state.view.link, set(state.view.tree.nodes)) == (made[0].link, set(state.tree.nodes))


# --- certificates -------------------------------------------------------------------------------------------------------------


def test_a_certificate_that_proves_nothing_changes_nothing_and_neither_does_what_came_before_it(
    table: Table, start: FollowedSpine
) -> None:
    first, second = lineage_on(table.genesis, table.live(), 2)
    raw = bytearray(second.certificate.acks[0])
    raw[16] ^= 1  # the version follows the domain tag
    for bad, kind in (
        (replace(second.certificate, acks=second.certificate.acks[:1]), RemoteProtocolError),
        (replace(second.certificate, record=b"no record"), RemoteProtocolError),
        (replace(second.certificate, acks=(bytes(raw),)), VersionError),
    ):
        with pytest.raises(kind):
            with_certificates(start, [first.certificate, bad], verifier=HashVerifier(), run_id=RUN_ID)
    assert set(start.tree.nodes) == {table.genesis.commit}


def test_certificates_of_another_run_or_unit_are_refused(table: Table, start: FollowedSpine) -> None:
    made = commit_on(table.genesis, table.live())
    with pytest.raises(RemoteProtocolError, match="run"):
        with_certificates(start, [made.certificate], verifier=HashVerifier(), run_id=RunId(b"x" * 32))
    other = FollowedSpine(tree_of(replace(table.genesis, unit=UnitName("expert-0"))), start.head)
    with pytest.raises(RemoteProtocolError, match="another base"):
        with_certificates(other, [made.certificate], verifier=HashVerifier(), run_id=RUN_ID)


def test_a_certificate_whose_parent_is_unknown_is_reported_and_those_before_it_are_kept(
    table: Table, start: FollowedSpine
) -> None:
    first, _, third = lineage_on(table.genesis, table.live(), 3)
    certificates = [first.certificate, third.certificate]
    state, is_known = with_certificates(start, certificates, verifier=HashVerifier(), run_id=RUN_ID)
    assert not is_known
    assert set(state.tree.nodes) == {table.genesis.commit, first.link.commit}


def test_commits_alone_move_nothing_and_keep_the_word_of_holders(table: Table, start: FollowedSpine) -> None:
    made = lineage_on(table.genesis, table.live(), 2)
    state = heard(start, ONE, made[1].link.commit)
    known = _with(state, made)
    assert (known.head, known.holders) == (table.genesis.commit, state.holders)
