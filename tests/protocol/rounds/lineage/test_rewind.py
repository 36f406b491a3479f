"""Rewinds of the host: what they prove, who is counted after them, and how a table of peers goes back.

Rules: R22, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, RunId
from protocol.rounds.events import CommitsFetched
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, light_link_of
from protocol.rounds.lineage.lineage import best_head, tree_of
from protocol.rounds.lineage.record_rules import SignatureCheck, record_problem
from protocol.rounds.lineage.rewind import (
    REWIND_DOMAIN,
    ROUNDS_SET_BACK,
    Rewind,
    counted_only,
    opened_rewind,
    seal_rewind,
    set_back_problem,
)
from protocol.rounds.lineage.round_row import round_row
from protocol.rounds.messages.messages import Certificate, Committed, DoubleVote, PreVoteRequest, Proposal, Settle
from protocol.rounds.messages.record import MAX_REWINDS
from protocol.rounds.messages.wire import decode_certificate, decode_record, encode_certificate, encode_record
from protocol.rounds.orders import ReportDoubleVote
from tests.protocol.rounds.made_commits import lineage_on, signed_record
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Seat, Table, acquaint
from tests.simulation.signing import AUTHORITY, HashVerifier

NOWHERE = CommitId(bytes(32))


def _rewind(good: ChainLink, number: int = 1, left: CommitId = NOWHERE) -> Certificate:
    return seal_rewind(AUTHORITY, RUN_ID, good, Rewind(number, left, 1_700_000_000))


def _verified(certificate: Certificate, parent: ChainLink) -> ChainLink:
    return verify_certificate(certificate, parent, verifier=HashVerifier(), run_id=RUN_ID)


def _links(length: int = 4) -> tuple[Table, list[ChainLink]]:
    table = Table(3)
    return table, [made.link for made in lineage_on(table.genesis, table.live(), length)]


# --- one rewind ---------------------------------------------------------------------------------------------------------------


def test_a_rewind_is_a_commit_on_the_good_one_with_its_voters_tokens_and_target_and_counts_nobody() -> None:
    _, links = _links()
    good, head = links[1], links[-1]
    certificate = decode_certificate(encode_certificate(_rewind(good, 3, head.commit)))
    link = _verified(certificate, good)
    assert (link.parent, link.index, link.rewind) == (good.commit, good.index + 1, 3)
    assert (link.roster, link.total_tokens, link.target_tokens) == (good.roster, good.total_tokens, good.target_tokens)
    assert (link.disks, link.rules, link.is_lone, list(link.credited)) == (good.disks, good.rules, False, [])
    assert light_link_of(certificate.record).rewind == 3
    said = opened_rewind(certificate, verifier=HashVerifier(), run_id=RUN_ID)
    assert said == Rewind(3, head.commit, 1_700_000_000)
    row = round_row(link)
    assert (row.is_rewind, row.members, row.coverage, row.lost) == (True, (), 1.0, 0.0)


def test_a_rewind_that_the_authority_did_not_sign_or_that_changes_anything_else_proves_nothing() -> None:
    table, links = _links()
    good = links[1]
    right, record = _rewind(good), decode_record(_rewind(good).record)
    payload = seal_rewind(AUTHORITY, RUN_ID, links[0], Rewind(1, NOWHERE, 1)).acks[0]
    member, other_run = table.live()[0].signer, RunId(bytes(32))
    bigger = encode_record(replace(record, next_target_tokens=record.next_target_tokens + 1))
    fewer = encode_record(replace(record, roster=record.roster[:1], incarnations=record.incarnations[:1]))
    wrong = {
        "authority signed": seal_rewind(member, RUN_ID, good, Rewind(1, NOWHERE, 1)),
        "of run": seal_rewind(AUTHORITY, other_run, good, Rewind(1, NOWHERE, 1)),
        "the signature of another rewind": replace(right, acks=(payload,)),
        "with 0 signatures": replace(right, acks=()),
        "with 2 signatures": replace(right, acks=right.acks * 2),
        "of 3 bytes": replace(right, acks=(seal(AUTHORITY, REWIND_DOMAIN, RUN_ID, 1, NEVER_MS, b"abc"),)),
        "another rewind": replace(right, record=bigger),
        "of another rewind": replace(right, record=fewer),
    }
    for found, certificate in wrong.items():
        with pytest.raises(RemoteProtocolError, match=found):
            _verified(certificate, good)
    with pytest.raises(RemoteProtocolError, match="another base"):
        _verified(right, links[0])


def test_a_rewind_whose_voters_are_others_is_refused_although_the_authority_signed_it() -> None:
    """The host chooses the commit that the run goes back to, and not its voters."""
    _, links = _links()
    good = links[1]
    assert good.record is not None
    few = replace(good, content=replace(good.record, roster=good.roster[:1], incarnations=(1,)))
    with pytest.raises(RemoteProtocolError, match="changes more"):
        _verified(_rewind(few), good)


@pytest.mark.parametrize("number", [0, MAX_REWINDS + 1])
def test_a_run_has_a_bounded_number_of_rewinds_and_none_goes_to_its_start(number: int) -> None:
    table, links = _links()
    with pytest.raises(LocalProtocolError, match="rewind"):
        _rewind(links[1], number)
    with pytest.raises(LocalProtocolError, match="start of the run"):
        _rewind(table.genesis)


def test_nobody_votes_on_a_rewind() -> None:
    _, links = _links()
    record = decode_record(_rewind(links[1]).record)
    assert "nobody votes" in record_problem(links[1], record, SignatureCheck(HashVerifier(), RUN_ID), ())


# --- which lineage is followed ------------------------------------------------------------------------------------------------


def test_the_lineage_of_the_newest_rewind_is_followed_whatever_the_others_have_done() -> None:
    table, links = _links(6)
    tree = tree_of(table.genesis)
    for made in lineage_on(table.genesis, table.live(), 6):
        tree = tree.add(made.link, made.certificate)
    assert best_head(tree) == links[-1].commit
    first = _verified(_rewind(links[3], 1), links[3])
    tree = tree.add(first, _rewind(links[3], 1))
    assert best_head(tree) == first.commit
    after = lineage_on(first, table.live(), 2)
    for made in after:
        tree = tree.add(made.link, made.certificate)
    second = _verified(_rewind(links[1], 2), links[1])
    tree = tree.add(second, _rewind(links[1], 2))
    assert best_head(tree) == second.commit
    for made in lineage_on(after[-1].link, table.live(), 5, tokens=9_000):
        tree = tree.add(made.link, made.certificate)
    assert best_head(tree) == second.commit


# --- who is counted -----------------------------------------------------------------------------------------------------------


def test_only_voters_of_the_good_commit_are_counted_for_some_rounds_after_a_rewind() -> None:
    table = Table(4, num_founders=3)
    members, newcomer = table.live(), next(seat for seat in table.live() if seat.peer not in table.genesis.roster)
    good = lineage_on(table.genesis, table.others(newcomer), 1)[0].link
    rewind = _verified(_rewind(good), good)
    behind = [rewind, good, table.genesis]
    assert counted_only([good, table.genesis]) is None
    assert counted_only(behind) == frozenset(good.roster)
    found = set_back_problem(behind, signed_record(rewind, members))
    assert "did not vote on the commit that the host went back to" in found
    assert set_back_problem(behind, signed_record(rewind, table.others(newcomer))) == ""
    later = [made.link for made in lineage_on(rewind, table.others(newcomer), ROUNDS_SET_BACK)]
    assert counted_only([*later[-2::-1], *behind]) == frozenset(good.roster)
    assert counted_only([*later[::-1], *behind]) is None


# --- at the table -------------------------------------------------------------------------------------------------------------


def _given(seat: Seat, certificate: Certificate) -> None:
    """The host's answer to a report brings the rewind."""
    seat.feed(CommitsFetched(seat.peer, (certificate,)))


def _chain(seat: Seat) -> list[ChainLink]:
    return [link for link, _ in seat.disk.chain]


def _all_gone_back(table: Table, good: ChainLink) -> ChainLink:
    """The rewind to this commit, after all that live have taken it."""
    certificate = _rewind(good)
    for seat in table.live():
        _given(seat, certificate)
    rewind = _verified(certificate, good)
    table.run_until(lambda: all(rewind in _chain(seat) for seat in table.live()))
    return rewind


def _waits(seat: Seat) -> list[str]:
    """The sentences in which it told why it waits."""
    return [step.waiting for _, step in seat.steps if step.waiting]


def _rewound_table(num_peers: int = 4) -> tuple[Table, ChainLink, Certificate]:
    table = Table(num_peers, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(5), 200.0)
    good = _chain(table.live()[0])[1]
    return table, good, _rewind(good)


def test_everybody_goes_back_once_one_peer_has_heard_and_nobody_is_convicted_of_a_second_vote() -> None:
    table, good, certificate = _rewound_table()
    _given(table.live()[0], certificate)
    rewind = _verified(certificate, good)
    table.run_until(lambda: all(rewind in _chain(seat) and seat.head.index > rewind.index + 2 for seat in table.live()))
    for seat in table.live():
        assert _chain(seat)[1:3] == [good, rewind]
        assert seat.sent(DoubleVote) == []
        assert seat.ordered(ReportDoubleVote) == []
        assert seat.state.barred.expelled == frozenset()
    heads = {seat.head.commit for seat in table.live() if seat.head.index == table.live()[0].head.index}
    assert len(heads) == 1


def test_a_peer_that_was_away_goes_back_when_it_hears_the_others_again() -> None:
    table, good, certificate = _rewound_table()
    away, *others = table.live()
    table.freeze(away)
    for seat in others:
        _given(seat, certificate)
    rewind = _verified(certificate, good)
    table.run_until(lambda: all(seat.head.index > rewind.index + 2 for seat in others))
    table.thaw(away)
    table.run_until(lambda: rewind in _chain(away) and away.head.index >= others[0].head.index - 1)
    assert not any(seat.state.barred.expelled for seat in table.live())


def test_a_peer_that_restarts_after_a_rewind_stands_on_it_and_votes_there() -> None:
    table, good, certificate = _rewound_table(3)
    for seat in table.live():
        _given(seat, certificate)
    rewind = _verified(certificate, good)
    table.run_until(lambda: all(rewind in _chain(seat) for seat in table.live()))
    seat = table.live()[0]
    table.kill(seat)
    table.restart(seat)
    assert rewind in _chain(seat)
    index = seat.head.index
    table.run_until(lambda: table.all_at(index + 3))


def test_a_rewind_that_comes_while_the_next_round_is_decided_is_followed_after_it() -> None:
    table = Table(3, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(3), 200.0)
    good = _chain(table.live()[0])[1]
    certificate = _rewind(good)
    table.gathers = False
    table.run_until(lambda: any(seat.state.open.proposal is not None for seat in table.live()))
    _given(table.live()[0], certificate)
    table.gathers = True
    rewind = _verified(certificate, good)
    table.run_until(lambda: all(rewind in _chain(seat) for seat in table.live()))
    assert not any(seat.state.barred.expelled for seat in table.live())


def test_a_newcomer_is_counted_again_some_rounds_after_the_rewind_and_not_before() -> None:
    table = Table(4, num_founders=3, longest_interval_s=5.0)
    (newcomer,) = [seat for seat in table.live() if seat.peer not in table.genesis.roster]
    table.kill(newcomer)
    table.run_until(lambda: table.all_at(2), 200.0)
    good = table.live()[0].head
    table.restart(newcomer)
    table.run_until(lambda: any(newcomer.peer in link.roster for link in _chain(table.live()[0])), 200.0)
    rewind = _all_gone_back(table, good)
    table.run_until(lambda: table.all_at(rewind.index + ROUNDS_SET_BACK + 3), 600.0)
    counted = {
        link.index - rewind.index
        for link in _chain(table.live()[0])
        if link.index > rewind.index and link.record is not None and link.record.contributor(newcomer.peer) is not None
    }
    assert min(counted) == ROUNDS_SET_BACK + 1


@pytest.mark.parametrize("good_index", [2, 3, 4, 5])
def test_a_peer_that_is_set_back_leads_no_round_that_would_count_it_and_leaves_take_overs_to_others(
    good_index: int,
) -> None:
    """The rank for a take-over is drawn anew on each base."""
    table = Table(5, num_founders=3, longest_interval_s=5.0)
    newcomers = [seat for seat in table.live() if seat.peer not in table.genesis.roster]
    for seat in newcomers:
        table.kill(seat)
    table.run_until(lambda: table.all_at(good_index), 200.0)
    good = table.live()[0].head
    for seat in newcomers:
        table.restart(seat)
    table.run_until(lambda: table.all_at(good.index + 2), 200.0)
    rewind = _all_gone_back(table, good)
    before = [len(seat.sent(PreVoteRequest)) for seat in newcomers]
    table.kill(table.opener())
    table.run_until(lambda: all(seat.head.index >= rewind.index + 3 for seat in table.live()), 100.0)
    assert [len(seat.sent(PreVoteRequest)) for seat in newcomers] == before
    assert any("do not count us" in reason for seat in newcomers for reason in _waits(seat))


def test_nobody_leads_on_the_base_that_a_rewind_takes_back_while_the_runs_own_rounds_are_fetched() -> None:
    table, _, certificate = _rewound_table()
    table.prepares = False
    for seat in table.live():
        _given(seat, certificate)
    table.run_for(3.0)
    begun = {seat.peer: len(seat.sent(Proposal)) for seat in table.live()}
    table.run_for(60.0)
    assert {seat.peer: len(seat.sent(Proposal)) for seat in table.live()} == begun
    assert all("took our rounds back" in _waits(seat)[-1] for seat in table.live())


def test_a_forged_rewind_moves_nobody_and_is_named() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(3), 200.0)
    liar, victim = table.live()[:2]
    good = _chain(victim)[1]
    forged = seal_rewind(liar.signer, RUN_ID, good, Rewind(1, NOWHERE, 1))
    head = victim.head
    victim.hear(liar, Committed(UNIT, forged))
    assert victim.head == head
    assert any("one that the run's authority signed" in reason or "authority" in reason for reason in victim.reasons)


def test_a_leader_that_settles_a_rewind_gets_no_ack() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(2), 200.0)
    acquaint(table)
    leader = table.opener()
    voter = table.others(leader)[0]
    record = seal_rewind(leader.signer, RUN_ID, voter.head, Rewind(1, NOWHERE, 1)).record
    ballot = replace(decode_record(record).ballot, attempt=0, peer=leader.peer)
    voter.hear(leader, Settle(UNIT, voter.head.commit, ballot, record, (leader.peer,)))
    assert any("without content" in reason for reason in voter.reasons)


def test_peers_that_are_set_back_go_on_together_once_the_voters_of_the_rewind_are_gone() -> None:
    table = Table(4, num_founders=2, longest_interval_s=5.0)
    newcomers = [seat for seat in table.live() if seat.peer not in table.genesis.roster]
    for seat in newcomers:
        table.kill(seat)
    table.run_until(lambda: table.all_at(2), 200.0)
    good = table.live()[0].head
    for seat in newcomers:
        table.restart(seat)
    peers = {seat.peer for seat in newcomers}
    table.run_until(lambda: peers.issubset(_chain(table.live()[0])[-1].roster), 200.0)
    index = table.live()[0].head.index
    table.run_until(lambda: table.all_at(index), 100.0)
    for seat in table.others(*newcomers):
        table.kill(seat)
    for seat in newcomers:
        _given(seat, _rewind(good))
    rewind = _verified(_rewind(good), good)
    table.run_until(lambda: all(rewind in _chain(seat) for seat in newcomers), 100.0)
    table.run_until(lambda: all(seat.head.index > rewind.index + 2 for seat in newcomers), 2000.0)
    assert len({_chain(seat)[rewind.index + 1].commit for seat in newcomers}) == 1
