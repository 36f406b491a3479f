from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.ids import PeerId
from protocol.kinds.robust_table import ROBUST_RULES
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.disagreement_rules import (
    all_disagreeing,
    disagreement_problem,
    disagreements,
    guard_problem,
)
from protocol.rounds.lineage.record_rules import SignatureCheck, record_problem, result_problem
from protocol.rounds.messages.messages import ResultHeader
from protocol.rounds.messages.record import CommitRecord, Disagreement
from protocol.rounds.schedule.proposal import Voters, consumed_tokens, make_record
from tests.protocol.rounds.made_commits import proposal_on, resealed, results_of, with_sum
from tests.protocol.rounds.round_table import NUM_CHUNKS, OUTER, RUN_ID, TARGET_TOKENS, Table
from tests.simulation.signing import HashVerifier

CHECK = SignatureCheck(HashVerifier(), RUN_ID)
PEERS = tuple(PeerId(name) for name in ("alice", "bob", "carol", "dave"))
A, B, C, _ = PEERS


@pytest.mark.parametrize(
    ("disagreeing", "counted", "words"),
    [
        ((), PEERS, ""),
        ((Disagreement(A, 8, -100),), PEERS, ""),
        ((Disagreement(A, 8, 0), Disagreement(B, 8, 69)), PEERS, ""),
        ((Disagreement(A, 6, 0), Disagreement(B, 5, 0), Disagreement(C, 5, 0)), PEERS, ""),
        ((Disagreement(A, 6, 0), Disagreement(B, 6, 0), Disagreement(C, 5, 0)), PEERS, "leaves out 17 of their chunks"),
        ((Disagreement(A, 9, 0),), PEERS, "leaves out 9 chunks of alice; expected at most 8"),
        ((Disagreement(B, 1, 0), Disagreement(A, 1, 0)), PEERS, "in another order"),
        ((Disagreement(A, 1, 0), Disagreement(A, 1, 0)), PEERS, "twice"),
        ((Disagreement(PeerId("eve"), 1, 0),), PEERS, "of eve out, which it does not count"),
        (
            (Disagreement(A, 1, 0),),
            PEERS[:3],
            "a sum of 3 members that leaves out 1 of their chunks; expected at most 0",
        ),
    ],
)
def test_no_reducer_leaves_out_more_than_an_honest_one_could(
    disagreeing: tuple[Disagreement, ...], counted: tuple[PeerId, ...], words: str
) -> None:
    problem = disagreement_problem(disagreeing, dict.fromkeys(counted, False), 8)
    assert words in problem
    assert bool(problem) == bool(words)


def test_chunks_are_left_out_by_the_rule_that_does_so_only() -> None:
    one = (Disagreement(A, 1, 0),)
    assert {name for name, rule in ROBUST_RULES.items() if not guard_problem(one, rule)} == {"clip-agree"}
    assert not any(guard_problem((), rule) for rule in ROBUST_RULES.values())


def _record(num_left_out: int) -> tuple[Table, CommitRecord]:
    """Of four members, the first of whom disagrees in so many chunks of the first slice."""
    table = Table(4)
    members = sorted(table.live(), key=lambda seat: seat.peer)
    proposal = proposal_on(table.genesis, members)
    first, *others = results_of(proposal, members)
    part = replace(first.included[0], num_left_out=num_left_out, agreement_percent=-50)
    changed = replace(first, included=(part, *first.included[1:]))
    reducer = next(seat for seat in members if seat.peer == first.reducer)
    results = [with_sum(changed, proposal, reducer), *others]
    voters = Voters(frozenset(table.seats), frozenset())
    return table, make_record(table.genesis, proposal, proposal.ballot, results, voters, OUTER, TARGET_TOKENS)


def _problem(parent: ChainLink, record: CommitRecord) -> str:
    return record_problem(parent, record, CHECK, ())


def test_a_chunk_that_disagrees_counts_as_sent_and_is_not_credited() -> None:
    table, record = _record(2)
    assert _problem(table.genesis, record) == ""
    entry, *others = record.contributors
    assert entry.credited_tokens == entry.tokens * (NUM_CHUNKS - 2) // NUM_CHUNKS
    assert all(other.credited_tokens == other.tokens for other in others)
    assert consumed_tokens(record, entry.peer) == entry.tokens
    assert all_disagreeing(record.slices) == (Disagreement(entry.peer, 2, -50),)


def _disagreeing(record: CommitRecord, *disagreeing: Disagreement) -> CommitRecord:
    return replace(record, slices=(replace(record.slices[0], disagreeing=disagreeing), *record.slices[1:]))


FALSE: dict[str, tuple[Callable[[CommitRecord], CommitRecord], str]] = {
    "nobody left out": (_disagreeing, "did not sign the result of slice [0, "),
    "another number": (
        lambda record: _disagreeing(record, Disagreement(record.contributors[0].peer, 1, -50)),
        "did not sign the result of slice [0, ",
    ),
    "another agreement": (
        lambda record: _disagreeing(record, Disagreement(record.contributors[0].peer, 2, -51)),
        "did not sign the result of slice [0, ",
    ),
    "another member": (
        lambda record: _disagreeing(record, Disagreement(record.contributors[1].peer, 2, -50)),
        "did not sign the result of slice [0, ",
    ),
}


@pytest.mark.parametrize("what", FALSE)
def test_a_record_says_what_the_reducer_signed_of_chunks_left_out(what: str) -> None:
    change, words = FALSE[what]
    table, record = _record(2)
    assert words in _problem(table.genesis, change(record))


def test_a_record_that_leaves_out_too_much_or_credits_it_all_the_same_is_refused_though_it_is_signed() -> None:
    table, record = _record(2)
    most = record.slices[0].stop_chunk
    greedy = tuple(Disagreement(entry.peer, most, 0) for entry in record.contributors[:3])
    assert "leaves out" in _problem(table.genesis, resealed(_disagreeing(record, *greedy), table.seats))
    whole = replace(record.contributors[0], credited_tokens=record.contributors[0].tokens)
    paid = replace(record, contributors=(whole, *record.contributors[1:]))
    assert "is credited with" in _problem(table.genesis, resealed(paid, table.seats))


def test_a_result_that_leaves_out_too_much_is_no_result() -> None:
    table = Table(4)
    members = sorted(table.live(), key=lambda seat: seat.peer)
    proposal = proposal_on(table.genesis, members)
    (header, *_) = results_of(proposal, members)
    size = header.stop_chunk - header.first_chunk

    def leaving_out(num: int) -> ResultHeader:
        parts = [replace(entry, num_left_out=size if i < num else 0) for i, entry in enumerate(header.included)]
        return with_sum(replace(header, included=tuple(parts)), proposal, members[0])

    assert result_problem(leaving_out(2), proposal, CHECK) == ""
    assert len(disagreements(leaving_out(2))) == 2
    assert "leaves out" in result_problem(leaving_out(3), proposal, CHECK)
