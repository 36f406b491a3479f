from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType

from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.record_rules import weight_cap
from protocol.rounds.lineage.rule_numbers import CAP_FACTOR
from protocol.rounds.messages.bounds import MAX_SLICES
from protocol.rounds.messages.messages import Member, Proposal, ResultHeader, SliceSpec
from protocol.rounds.messages.record import Attestation, Ballot, Contributor, Included, Omission, OmissionCode
from protocol.rounds.schedule.proposal import (
    ReducerOffer,
    Voters,
    consumed_tokens,
    covered_chunks,
    make_record,
    mend_slices,
    plan_slices,
)
from tests.protocol.rounds.round_table import OUTER, UNIT, Table


def _offers(*uploads: int) -> list[ReducerOffer]:
    return [ReducerOffer(PeerId(f"p{i:02}"), upload) for i, upload in enumerate(uploads)]


def test_slices_tile_the_vector_whatever_the_uploads() -> None:
    chooser = random.Random(1)
    for _ in range(500):
        offers = _offers(*(chooser.choice((0, 1, 10, 10**6, 10**9)) for _ in range(chooser.randint(1, 40))))
        num_chunks = chooser.randint(1, 200)
        slices = plan_slices(num_chunks, offers, chooser.randint(len(offers), 64))
        assert slices[0].first_chunk == 0
        assert slices[-1].stop_chunk == num_chunks
        assert all(a.stop_chunk == b.first_chunk for a, b in pairwise(slices))
        assert len({part.reducer for part in slices}) == len(slices) <= 32


def test_no_reducer_gets_more_than_its_cap_when_one_link_is_far_faster() -> None:
    slices = plan_slices(1000, _offers(10**9, 1, 1, 1, 1, 1, 1, 1), 8)
    cap = max(Fraction(2, 8), Fraction(1, 8))
    assert all(Fraction(part.stop_chunk - part.first_chunk, 1000) <= cap + Fraction(1, 1000) for part in slices)


def test_two_reachable_reducers_of_five_members_still_place_the_whole_vector() -> None:
    slices = plan_slices(10, _offers(100, 100), 5)
    assert [(part.first_chunk, part.stop_chunk) for part in slices] == [(0, 5), (5, 10)]


def test_shares_follow_measured_upload_below_the_cap() -> None:
    slices = plan_slices(600, _offers(100, 200, 300), 3)
    assert [part.stop_chunk - part.first_chunk for part in slices] == [100, 200, 300]


def test_uploads_that_differ_by_noise_alone_get_equal_shares() -> None:
    slices = plan_slices(600, _offers(100, 78, 92), 3)
    assert [part.stop_chunk - part.first_chunk for part in slices] == [200, 200, 200]


def test_a_reducer_whose_upload_nobody_has_measured_yet_gets_a_share_like_the_others() -> None:
    slices = plan_slices(100, _offers(5_000_000, 0), 2)
    assert [(part.first_chunk, part.stop_chunk) for part in slices] == [(0, 50), (50, 100)]


def test_the_weight_cap_is_four_times_the_median_and_never_zero() -> None:
    assert weight_cap([10, 20, 1000], 7, CAP_FACTOR) == 80
    assert weight_cap([0], 1, CAP_FACTOR) == 4


def test_a_record_credits_tokens_in_proportion_to_covered_chunks() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(1))
    record = table.live()[0].head.record
    assert record is not None
    assert [c.credited_tokens for c in record.contributors] == [c.tokens for c in record.contributors]
    peer = record.contributors[0].peer
    assert sum(stop - begin for begin, stop in covered_chunks(record, peer)) == record.slices[-1].stop_chunk
    assert covered_chunks(record, PeerId("stranger")) == ()


# --- mending ------------------------------------------------------------------------------------------------------------------


def test_a_mend_moves_the_lost_slices_only_and_still_tiles_the_vector() -> None:
    slices = plan_slices(90, _offers(1, 1, 1), 3)
    lost = slices[1]
    mended = mend_slices(slices, [lost], [ReducerOffer(slices[0].reducer, 1), ReducerOffer(slices[2].reducer, 2)])
    assert mended[0] == slices[0]
    assert mended[-1] == slices[2]
    assert mended[0].first_chunk == 0
    assert all(a.stop_chunk == b.first_chunk for a, b in pairwise(mended))
    assert {part.reducer for part in mended[1:-1]} == {slices[0].reducer, slices[2].reducer}


def test_a_mend_of_many_slices_stays_below_the_largest_number_of_slices() -> None:
    slices = tuple(SliceSpec(i * 10, i * 10 + 10, PeerId(f"p{i:02}")) for i in range(MAX_SLICES))
    for num_lost in (1, 5, MAX_SLICES - 1):
        others = [ReducerOffer(part.reducer, 1) for part in slices[num_lost:]]
        mended = mend_slices(slices, slices[:num_lost], others)
        assert len(mended) <= MAX_SLICES
        assert mended[-1].stop_chunk == slices[-1].stop_chunk
        assert all(a.stop_chunk == b.first_chunk for a, b in pairwise(mended))
        assert not {part.reducer for part in mended} & {part.reducer for part in slices[:num_lost]}


def test_slices_that_are_all_lost_go_to_as_many_others_and_to_none_of_them_alone() -> None:
    slices = tuple(SliceSpec(2 * i, 2 * i + 2, PeerId(f"p{i:02}")) for i in range(MAX_SLICES))
    others = [ReducerOffer(PeerId(f"q{i:02}"), i % 3) for i in range(2 * MAX_SLICES)]
    mended = mend_slices(slices, slices, others)
    assert len({part.reducer for part in mended}) == len(mended) == MAX_SLICES
    mended = mend_slices(slices, slices[5:], others[:9])
    most = max(Counter(part.reducer for part in mended[5:]).values())
    assert most == -(-(MAX_SLICES - 5) // 9)


# --- the record ---------------------------------------------------------------------------------------------------------------

ROOT = Root(b"r" * 32)
MEMBERS = tuple(Member(PeerId(f"p{i:02}"), 10 + i, 1) for i in range(3))
ALL = Voters(frozenset(member.peer for member in MEMBERS), frozenset())


def _included(member: Member, tokens: int, state: bytes = b"s") -> Included:
    return Included(member.peer, member.incarnation, ROOT, tokens, CommitId(b"c" * 32), Root(state * 32))


def _results(table: Table, states: tuple[bytes, bytes, bytes]) -> tuple[Proposal, list[ResultHeader]]:
    """Two slices of 4 and 8 chunks; the last member came too late for the second one."""
    one, two, three = (_included(m, 100 * (i + 1), s) for i, (m, s) in enumerate(zip(MEMBERS, states, strict=True)))
    slices = (SliceSpec(0, 4, one.peer), SliceSpec(4, 12, two.peer))
    ballot = Ballot(0, one.peer)
    proposal = Proposal(UNIT, table.genesis.commit, 1, ballot, MEMBERS, slices, "fp32", 250, 20.0)
    header = ResultHeader(UNIT, table.genesis.commit, ballot, 0, 4, one.peer, (one, two, three), (), 550, ROOT)
    omitted = (Omission(three.peer, "late"),)
    second = replace(
        header, first_chunk=4, stop_chunk=12, reducer=two.peer, included=(one, two), omitted=omitted, weight_sum=300
    )
    return proposal, [header, second]


def test_a_late_member_is_credited_with_its_share_below_the_cap_and_spends_what_is_covered() -> None:
    table = Table(3)
    proposal, results = _results(table, (b"s", b"s", b"s"))
    record = make_record(table.genesis, proposal, proposal.ballot, results, ALL, OUTER, 300)
    assert [(c.tokens, c.credited_tokens) for c in record.contributors] == [
        (100, 100),
        (200, 200),
        (300, 250 * 4 // 12),
    ]
    assert covered_chunks(record, MEMBERS[2].peer) == ((0, 4),)
    assert consumed_tokens(record, MEMBERS[2].peer) == 100
    assert consumed_tokens(record, PeerId("stranger")) == 0
    assert record.total_tokens == 100 + 200 + 83


def test_a_record_says_why_somebody_is_left_out_in_a_number_and_not_in_words() -> None:
    """Free words would let a leader try texts until the commit id suits it."""
    table = Table(3)
    proposal, results = _results(table, (b"s", b"s", b"s"))
    record = make_record(table.genesis, proposal, proposal.ballot, results, ALL, OUTER, 300)
    assert record.slices[1].omitted == (Omission(MEMBERS[2].peer, "", OmissionCode.LATE),)
    assert record.slices[1].omitted[0].words == "late"


# --- the next voters ----------------------------------------------------------------------------------------------------------


def _voters_after(
    parent: ChainLink, contributors: Iterable[PeerId], alive: Iterable[PeerId], *left: PeerId
) -> set[PeerId]:
    entries = [Contributor(peer, 1, ROOT, 1, 1) for peer in contributors]
    return set(Voters(frozenset(alive), frozenset(left)).next_after(parent, entries, is_lone=False))


def test_the_roster_names_the_disk_that_each_voter_votes_with() -> None:
    table = Table(3)
    proposal, results = _results(table, (b"s", b"s", b"s"))
    old = PeerId("p99")
    parent = replace(table.genesis, roster=(MEMBERS[0].peer, old), disks=MappingProxyType({MEMBERS[0].peer: 3, old: 7}))
    record = make_record(parent, proposal, proposal.ballot, results, replace(ALL, alive=ALL.alive | {old}), OUTER, 300)
    assert record.roster == (*(member.peer for member in MEMBERS), old)
    assert record.incarnations == (10, 11, 12, 7), "of contributors as they signed it now, of others as before"


def test_everybody_who_contributed_votes_next_and_dead_ones_are_dropped_a_third_at_a_time() -> None:
    table = Table(9)
    link, peers = table.genesis, list(table.seats)
    assert _voters_after(link, peers[:2], peers) == set(peers)
    assert _voters_after(link, peers[2:], peers[3:]) == set(peers[2:]), "a dead one whose work counts stays"
    few = _voters_after(link, peers[:1], peers[:2])
    assert len(few) == 6
    assert set(peers[:2]) <= few
    assert _voters_after(link, ["stranger"], peers) == {"stranger", *peers}  # type: ignore[list-item]


def test_who_said_goodbye_votes_no_more_also_where_its_work_counts_unless_it_came_back() -> None:
    table = Table(9)
    link, peers = table.genesis, list(table.seats)
    assert _voters_after(link, peers, peers[1:], peers[0]) == set(peers[1:])
    assert _voters_after(link, peers[1:], peers[1:], *peers[:1]) == set(peers[1:])
    assert _voters_after(link, peers, peers, peers[0]) == set(peers)


def test_the_next_voters_of_a_lone_commit_are_those_who_take_part_and_voted_or_contributed() -> None:
    table = Table(5)
    peers = list(table.seats)
    entries = [Contributor(peers[0], 1, ROOT, 1, 1), Contributor(PeerId("new"), 1, ROOT, 1, 1)]
    alive = frozenset({peers[0], peers[1], PeerId("new"), PeerId("idle")})
    voters = Voters(alive, frozenset({peers[2]}))
    assert set(voters.next_after(table.genesis, entries, is_lone=True)) == {peers[0], peers[1], "new"}


def test_the_state_that_most_contributors_computed_is_attested_and_a_tie_goes_to_the_lower_root() -> None:
    table = Table(3)
    for states, winner in (((b"b", b"a", b"b"), b"b"), ((b"c", b"b", b"a"), b"a")):
        proposal, results = _results(table, states)
        record = make_record(table.genesis, proposal, proposal.ballot, results, ALL, OUTER, 300)
        assert record.attested == Attestation(CommitId(b"c" * 32), Root(winner * 32))
