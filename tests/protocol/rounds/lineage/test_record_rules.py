"""The rules of a record: each one with an honest record of which one thing is changed.

Rules: R2, R3, R10, R20, R21 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.record_rules import (
    CREDIT_FACTOR,
    LATE_FACTOR,
    SignatureCheck,
    attestation_of,
    fewest_voters,
    low_cap_problem,
    most_credited,
    next_roster,
    record_problem,
    result_problem,
    weight_cap,
)
from protocol.rounds.lineage.rule_numbers import CAP_FACTOR, NEW_RUNS, NO_CAP, SIGNED, TURNS, rules_with
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.messages import SliceSpec
from protocol.rounds.messages.record import Attestation, Ballot, CommitRecord, Omission, OmissionCode
from protocol.rounds.messages.wire import encode_record
from protocol.rounds.schedule.proposal import Voters, make_record
from tests.protocol.rounds.made_commits import proposal_on, record_on, resealed, results_of, signed_record
from tests.protocol.rounds.round_table import NUM_CHUNKS, OUTER, RUN_ID, TARGET_TOKENS, Table, with_sum
from tests.simulation.signing import HashVerifier, admission_of

CHECK = SignatureCheck(HashVerifier(), RUN_ID)
OTHER_ROOT = Root(b"o" * 32)
Change = Callable[[CommitRecord], CommitRecord]


def _problem(parent: ChainLink, record: CommitRecord, left: Collection[PeerId] = ()) -> str:
    return record_problem(parent, record, CHECK, left)


def _after(table: Table, record: CommitRecord) -> ChainLink:
    return link_after(table.genesis, encode_record(record))


def _first(**changes: object) -> Change:
    """The first contributor is entered otherwise."""
    return lambda record: replace(
        record,
        contributors=(replace(record.contributors[0], **changes), *record.contributors[1:]),  # type: ignore[arg-type]
    )


def _slice(**changes: object) -> Change:
    """The first slice is entered otherwise."""
    return lambda record: replace(record, slices=(replace(record.slices[0], **changes), *record.slices[1:]))  # type: ignore[arg-type]


def _reduced_by_another(record: CommitRecord) -> CommitRecord:
    return _slice(reducer=record.slices[1].reducer)(record)


def _without_a_voter(place: int) -> Change:
    return lambda record: replace(
        record,
        roster=(*record.roster[:place], *record.roster[place + 1 :]),
        incarnations=(*record.incarnations[:place], *record.incarnations[place + 1 :]),
    )


def _omitted(record: CommitRecord, *peers: PeerId) -> tuple[Omission, ...]:
    return tuple(Omission(peer, "", OmissionCode.LATE) for peer in peers)


def _counting_nobody(record: CommitRecord) -> CommitRecord:
    return _slice(omitted=_omitted(record, *(entry.peer for entry in record.contributors)))(record)


# --- honest records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_peers", [1, 2, 3, 8])
def test_the_record_of_an_honest_leader_breaks_no_rule(num_peers: int) -> None:
    table = Table(num_peers)
    seats = table.live()
    for number, seat in enumerate(seats):
        seat.tokens = 100 + number
    record = signed_record(table.genesis, seats, late=seats[1:2])
    assert _problem(table.genesis, record) == ""
    assert _problem(link_after(table.genesis, encode_record(record)), signed_record(_after(table, record), seats)) == ""


def _after(table: Table, record: CommitRecord) -> ChainLink:
    return link_after(table.genesis, encode_record(record))


@pytest.mark.parametrize("num_peers", [1, 2, 3, 8])
def test_every_record_that_a_table_of_honest_peers_commits_breaks_no_rule(num_peers: int) -> None:
    table = Table(num_peers)
    for seat in table.live():
        seat.tokens = TARGET_TOKENS
    table.run_until(lambda: table.all_at(3))
    (seat, *_) = table.live()
    parent = table.genesis
    for link, _ in seat.disk.chain:
        assert link.record is not None
        assert link.record.rules == NEW_RUNS
        assert _problem(parent, link.record) == ""
        parent = link


# --- what was signed ----------------------------------------------------------------------------------------------------------

UNSIGNED: dict[str, tuple[Change, str]] = {
    "more tokens": (_first(tokens=101), "did not sign the contribution of 101 tokens that the record counts"),
    "another root": (_first(root=OTHER_ROOT), "did not sign the contribution"),
    "another disk": (_first(incarnation=2), "did not sign the contribution"),
    "another process": (_first(session=2), "did not sign the contribution"),
    "parts of lanes": (_first(lanes=(LanePart(0, 1, 100),)), "did not sign the contribution"),
    "parts of lanes that do not add up": (_first(lanes=(LanePart(0, 1, 7),)), "a claim of"),
    "no seal": (_first(seal=b""), "did not sign the contribution"),
    "another codec": (lambda record: replace(record, codec="int8"), "did not sign the contribution"),
    "another attested state": (
        lambda record: replace(record, attestations=(Attestation(record.parent, OTHER_ROOT),)),
        "did not sign the contribution",
    ),
    "nothing attested": (_first(attests=0), "attests nothing in the record"),
    "an attested state that is not there": (_first(attests=2), "attests nothing in the record"),
    "another result": (_slice(result_hash=OTHER_ROOT), "did not sign the result of slice [0, 4)"),
    "another loss": (_slice(lost_ppm=7), "did not sign the result of slice [0, 4)"),
    "another reducer": (_reduced_by_another, "did not sign the result of slice [0, 4)"),
    "no seal of a sum": (_slice(seal=b""), "did not sign the result of slice [0, 4)"),
    "a cap that changes weights": (
        lambda record: replace(record, weight_cap_tokens=50),
        "did not sign the result of slice [0, 4)",
    ),
    "a member left out of a sum": (
        lambda record: _slice(omitted=_omitted(record, record.roster[0]))(record),
        "did not sign the result of slice [0, 4)",
    ),
    "a newer release": (lambda record: replace(record, rules=5), "; expected 1 to 4: install the newest release"),
}


@pytest.mark.parametrize("what", UNSIGNED)
def test_what_a_contributor_or_a_reducer_did_not_sign_is_refused(what: str) -> None:
    change, words = UNSIGNED[what]
    table = Table(3)
    assert words in _problem(table.genesis, change(signed_record(table.genesis, table.live())))


def test_a_seal_of_another_member_or_for_another_round_proves_nothing() -> None:
    table = Table(3)
    record = signed_record(table.genesis, table.live())
    swapped = _first(seal=record.contributors[1].seal)(record)
    assert "did not sign the contribution" in _problem(table.genesis, swapped)
    later = signed_record(_after(table, record), table.live())
    replayed = _first(seal=record.contributors[0].seal)(later)
    assert "did not sign the contribution" in _problem(_after(table, record), replayed)
    assert "did not sign" in record_problem(table.genesis, record, replace(CHECK, run_id=b"x" * 32), ())


def test_a_result_that_counts_what_nobody_signed_or_that_its_reducer_did_not_sign_is_no_result() -> None:
    table = Table(3)
    proposal = proposal_on(table.genesis, table.live())
    (header, *_) = results_of(proposal, table.live())
    assert result_problem(header, proposal, CHECK) == ""
    more = (replace(header.included[0], tokens=10**6), *header.included[1:])
    assert "did not sign" in result_problem(replace(header, included=more), proposal, CHECK)
    assert "did not sign" in result_problem(replace(header, result_hash=OTHER_ROOT), proposal, CHECK)
    assert "did not sign" in result_problem(replace(header, included=header.included[1:]), proposal, CHECK)
    assert "did not sign" in result_problem(header, replace(proposal, weight_cap_tokens=50), CHECK)


def test_one_sum_serves_all_attempts_with_the_same_contributions() -> None:
    table = Table(3)
    proposal = proposal_on(table.genesis, table.live())
    (header, *_) = results_of(proposal, table.live())
    later = Ballot(7, table.live()[0].peer)
    assert result_problem(replace(header, ballot=later), replace(proposal, ballot=later), CHECK) == ""


# --- who was admitted ---------------------------------------------------------------------------------------------------------


def _with_newcomer() -> tuple[Table, CommitRecord, int]:
    """Three founders and a fourth who contributes for the first time, and its place among the contributors."""
    table = Table(4, num_founders=3)
    record = signed_record(table.genesis, table.live())
    (new,) = (peer for peer in table.seats if peer not in table.genesis.roster)
    return table, record, next(place for place, entry in enumerate(record.contributors) if entry.peer == new)


def test_a_newcomer_that_contributed_votes_next_with_the_credential_that_the_record_shows() -> None:
    table, record, place = _with_newcomer()
    assert _problem(table.genesis, record) == ""
    assert record.contributors[place].peer in record.roster
    shown = [entry.credential for entry in record.contributors]
    assert [bool(credential) for credential in shown] == [entry == place for entry in range(4)]


def test_a_result_that_counts_a_newcomer_without_its_admission_is_no_result() -> None:
    table = Table(4, num_founders=3)
    proposal, founders = proposal_on(table.genesis, table.live()), table.genesis.roster
    (header, *_) = results_of(proposal, table.live())
    assert result_problem(header, proposal, CHECK, founders) == ""
    bare = replace(header, included=tuple(replace(entry, credential=b"") for entry in header.included))
    assert "without its admission" in result_problem(bare, proposal, CHECK, founders)
    assert result_problem(bare, proposal, CHECK, list(table.seats)) == ""


def test_a_newcomer_without_a_credential_or_with_that_of_another_is_refused() -> None:
    """Else whoever writes a record could fill the next roster with keys of its own making."""
    table, record, place = _with_newcomer()
    founder = table.genesis.roster[0]
    for credential in (b"", b"made up", admission_of(founder, RUN_ID), admission_of(founder, b"x" * 32)):  # type: ignore[arg-type]
        entries = list(record.contributors)
        entries[place] = replace(entries[place], credential=credential)
        problem = _problem(table.genesis, replace(record, contributors=tuple(entries)))
        assert "was not admitted to the run" in problem


@pytest.mark.parametrize(("credential", "is_right"), [("own", True), ("of another", False), ("none", False)])
def test_a_reducer_that_neither_votes_nor_contributes_shows_the_credential_that_admitted_it(
    credential: str, *, is_right: bool
) -> None:
    """Else a key of anybody's making could write all results."""
    table = Table(4)
    *members, reducer = table.live()
    genesis = replace(table.genesis, roster=tuple(seat.peer for seat in members))
    record = signed_record(genesis, members)
    shown = {"own": reducer.peer, "of another": members[0].peer}
    proof = admission_of(shown[credential], RUN_ID) if credential in shown else b""
    changed = resealed(_slice(reducer=reducer.peer, credential=proof)(record), table.seats)
    words = f"{short(reducer.peer)} summed slice [0, 4) and was not admitted to the run; expected its credential"
    assert _problem(genesis, changed) == ("" if is_right else words)


def test_the_record_of_an_honest_leader_shows_the_credential_of_a_reducer_that_takes_no_other_part() -> None:
    table = Table(4)
    *members, reducer = table.live()
    genesis = replace(table.genesis, roster=tuple(seat.peer for seat in members))
    proposal = proposal_on(genesis, members)
    proposal = replace(proposal, slices=(SliceSpec(0, NUM_CHUNKS, reducer.peer),))
    (header,) = results_of(proposal, [*members, reducer])
    included = tuple(entry for entry in header.included if entry.peer != reducer.peer)
    bare = with_sum(replace(header, included=included, omitted=()), proposal, reducer)
    assert "which was not admitted to the run" in result_problem(bare, proposal, CHECK, genesis.roster)
    shown = replace(bare, credential=admission_of(reducer.peer, RUN_ID))
    assert result_problem(shown, proposal, CHECK, genesis.roster) == ""
    voters = Voters(frozenset(genesis.roster), frozenset())
    for result, is_right in ((shown, True), (bare, False)):
        record = make_record(genesis, proposal, proposal.ballot, [result], voters, OUTER, TARGET_TOKENS)
        assert (_problem(genesis, record) == "") is is_right


# --- what follows from what was signed ----------------------------------------------------------------------------------------


def _twice(record: CommitRecord) -> CommitRecord:
    peer = record.contributors[0].peer
    return _slice(omitted=_omitted(record, peer, peer))(record)


def _nowhere_counted(record: CommitRecord) -> CommitRecord:
    peer = record.contributors[0].peer
    slices = tuple(replace(part, omitted=_omitted(record, peer)) for part in record.slices)
    return _first(credited_tokens=0)(replace(record, slices=slices))


def _with_unused_attestation(record: CommitRecord) -> CommitRecord:
    return replace(record, attestations=(*record.attestations, Attestation(record.parent, OTHER_ROOT)))


FALSE: dict[str, tuple[Change, str]] = {
    "words": (
        lambda record: _slice(omitted=(Omission(PeerId("x"), "any text"),))(record),
        "leaves members out in free words; expected a code",
    ),
    "no code": (lambda record: _slice(omitted=(Omission(PeerId("x"), ""),))(record), "in free words; expected a code"),
    "a member left out twice": (_twice, "leaves a member out twice"),
    "a slice of nobody": (_counting_nobody, "slice [0, 4) counts no token"),
    "a contributor of no slice": (_nowhere_counted, "is a contributor whom no slice counts"),
    "more credit": (_first(credited_tokens=101), "is credited with 101 tokens; expected 100"),
    "less credit": (_first(credited_tokens=99), "is credited with 99 tokens; expected 100"),
    "a voter that did nothing": (
        lambda record: replace(record, roster=(*record.roster, PeerId("zoe")), incarnations=(*record.incarnations, 1)),
        "is to vote next and neither voted before nor contributed",
    ),
    "a contributor voted out": (_without_a_voter(0), "contributed and is not to vote next"),
    "another disk of a voter": (
        lambda record: replace(record, incarnations=(9, *record.incarnations[1:])),
        "is to vote with disk 9; expected 1",
    ),
    "another state": (
        lambda record: replace(record, attested=Attestation(record.parent, OTHER_ROOT)),
        "the attested state root is not the one of most contributors",
    ),
    "no state": (lambda record: replace(record, attested=None), "the attested state root is not the one of most"),
    "a state that nobody attests": (_with_unused_attestation, "2 attested states; expected each once"),
}


@pytest.mark.parametrize("what", FALSE)
def test_what_does_not_follow_from_what_was_signed_is_refused_whoever_signed_it(what: str) -> None:
    change, words = FALSE[what]
    table = Table(3)
    assert words in _problem(table.genesis, resealed(change(signed_record(table.genesis, table.live())), table.seats))


def test_a_record_of_one_alone_cannot_make_itself_the_only_voter() -> None:
    """Its leader would be a quorum by itself from then on: it would decide all that follows."""
    table = Table(5)
    leader = table.opener()
    record = signed_record(table.genesis, table.live())
    taken = replace(record, roster=(leader.peer,), incarnations=(1,))
    assert "contributed and is not to vote next" in _problem(table.genesis, taken)
    alone = signed_record(table.genesis, [leader])
    assert _problem(table.genesis, alone) == ""
    assert len(alone.roster) == 4
    kept = replace(alone, roster=(leader.peer,), incarnations=(1,))
    assert "the next roster has 1 voters of 5 now; expected at least 4" in _problem(table.genesis, kept)


# --- records of older releases ------------------------------------------------------------------------------------------------


def test_a_record_without_signatures_is_read_on_a_parent_as_old_and_on_no_other() -> None:
    table = Table(3)
    old = record_on(table.genesis, list(table.seats))
    assert old.rules == table.genesis.rules == 0
    assert _problem(table.genesis, old) == ""
    after = "as older releases make it; expected one of this release: ask its leader's owner to install it"
    assert _problem(replace(table.genesis, rules=1), old) == f"a record with rules {old.rules} after 1, {after}"
    signed = _after(table, signed_record(table.genesis, table.live()))
    assert signed.rules == NEW_RUNS
    assert (
        _problem(signed, record_on(signed, list(table.seats)))
        == f"a record with rules {old.rules} after {NEW_RUNS}, {after}"
    )


def test_a_signed_record_of_older_rules_is_read_on_a_parent_as_old_and_on_no_newer_one() -> None:
    table = Table(3)
    record = replace(signed_record(table.genesis, table.live()), rules=SIGNED)
    for old in (0, SIGNED):
        assert _problem(replace(table.genesis, rules=old), record) == ""
    for newer in (TURNS, NEW_RUNS):
        assert "as older releases make it" in _problem(replace(table.genesis, rules=newer), record)


# --- credits ------------------------------------------------------------------------------------------------------------------


def _claiming(table: Table, tokens: int) -> CommitRecord:
    for seat in table.live():
        seat.tokens = tokens
    return signed_record(table.genesis, table.live())


def test_a_lie_about_tokens_that_all_sign_credits_no_more_than_a_few_rounds_and_cannot_end_a_run() -> None:
    table = Table(3)
    record = _claiming(table, 1 << 50)
    most = CREDIT_FACTOR * TARGET_TOKENS
    assert _problem(table.genesis, record) == ""
    assert sum(entry.credited_tokens for entry in record.contributors) <= most == most_credited(table.genesis)
    greedy = _first(credited_tokens=most)(record)
    assert f"is credited with {most} tokens; expected {most // 3}" in _problem(table.genesis, greedy)


def test_one_that_claims_far_more_than_the_others_is_credited_with_a_few_times_their_median() -> None:
    table = Table(3)
    liar, *_ = table.live()
    for seat in table.live():
        seat.tokens = 10
    liar.tokens = 1 << 50
    record = signed_record(table.genesis, table.live())
    assert _problem(table.genesis, record) == ""
    entry = record.contributor(liar.peer)
    assert entry is not None
    assert entry.credited_tokens == CAP_FACTOR * 10


@pytest.mark.parametrize(("num_peers", "most"), [(3, 4**6), (2, 4 * 4)])
def test_rounds_that_really_grow_are_credited_more_and_more_and_those_of_few_up_to_a_factor(
    num_peers: int, most: int
) -> None:
    """Three claims show it; those of two may be the word of one."""
    table, credited = Table(num_peers), [TARGET_TOKENS]
    parent = table.genesis
    for _ in range(6):
        for seat in table.live():
            seat.tokens = 2 * credited[-1]
        record = signed_record(parent, table.live())
        assert _problem(parent, record) == ""
        credited.append(sum(entry.credited_tokens for entry in record.contributors))
        parent = link_after(parent, encode_record(record))
    assert credited == [TARGET_TOKENS * min(4**rounds, most) for rounds in range(7)]


@pytest.mark.parametrize("lie", [10**4, 1 << 50])
def test_of_two_contributors_neither_raises_the_cap_by_its_own_claim(lie: int) -> None:
    table = Table(2)
    liar, honest = table.live()
    liar.tokens, honest.tokens = lie, 100
    record = signed_record(table.genesis, [liar, honest])
    assert _problem(table.genesis, record) == ""
    tokens = {entry.peer: entry.credited_tokens for entry in record.contributors}
    assert tokens[liar.peer] <= CAP_FACTOR * TARGET_TOKENS
    assert tokens[honest.peer] > 0
    raised = resealed(replace(record, weight_cap_tokens=CAP_FACTOR * lie), table.seats)
    assert "expected at most 1200 by the signed tokens" in _problem(table.genesis, raised)


@pytest.mark.parametrize("slow", [1, 10, 75])
def test_the_faster_of_two_peers_is_credited_with_all_of_a_round_that_was_due_at_its_target(slow: int) -> None:
    table = Table(2)
    fast, other = table.live()
    fast.tokens, other.tokens = TARGET_TOKENS, slow
    record = signed_record(table.genesis, [fast, other])
    assert sorted(entry.credited_tokens for entry in record.contributors) == [slow, TARGET_TOKENS]


def test_a_member_is_credited_with_the_share_of_chunks_that_count_it() -> None:
    table = Table(3)
    (late, *_) = table.live()
    record = signed_record(table.genesis, table.live(), late=[late])
    entry = record.contributor(late.peer)
    assert entry is not None
    assert entry.credited_tokens == 100 * (NUM_CHUNKS // 3) // NUM_CHUNKS
    assert _problem(table.genesis, record) == ""


def test_a_cap_made_of_late_heartbeats_is_taken_up_to_a_factor_and_no_further() -> None:
    table = Table(3)
    most = LATE_FACTOR * weight_cap([100] * 3, TARGET_TOKENS, CAP_FACTOR)
    for cap, words in ((most, ""), (most + 1, f"a weight cap of {most + 1} tokens; expected at most {most}")):
        record = replace(signed_record(table.genesis, table.live()), weight_cap_tokens=cap)
        problem = _problem(table.genesis, record)
        assert problem.startswith(words)
        assert bool(problem) == bool(words)


def test_a_record_names_the_highest_cap_that_its_claims_allow_where_it_changes_no_weight() -> None:
    table = Table(3)
    most = LATE_FACTOR * weight_cap([100] * 3, TARGET_TOKENS, CAP_FACTOR)
    record = signed_record(table.genesis, table.live(), weight_cap_tokens=1000 * most)
    assert record.weight_cap_tokens == most
    assert _problem(table.genesis, record) == ""
    table.live()[0].tokens = 2 * most
    heavy = signed_record(table.genesis, table.live(), weight_cap_tokens=1000 * most)
    assert heavy.weight_cap_tokens == 2 * most
    assert "expected at most" in _problem(table.genesis, heavy)


@pytest.mark.parametrize(("cap", "is_low"), [(1, True), (99, True), (100, False), (400, False)])
def test_a_cap_below_what_late_heartbeats_explain_is_too_low(cap: int, is_low: bool) -> None:
    table = Table(3)
    record = signed_record(table.genesis, table.live(), weight_cap_tokens=cap)
    assert bool(low_cap_problem(table.genesis, record, table.genesis.roster)) == is_low


def _without_slow(tokens: list[int], num_slow: int, cap: int) -> tuple[ChainLink, CommitRecord, tuple[PeerId, ...]]:
    """(base, a record that leaves the first of these members out of every slice, those left out)."""
    table = Table(len(tokens))
    for seat, number in zip(table.live(), tokens, strict=True):
        seat.tokens = number
    slow = tuple(seat.peer for seat in table.live()[:num_slow])
    record = signed_record(table.genesis, table.live()[num_slow:], weight_cap_tokens=cap)
    omitted = tuple(Omission(peer, "", OmissionCode.LATE) for peer in slow)
    slices = tuple(replace(part, omitted=(*part.omitted, *omitted)) for part in record.slices)
    return table.genesis, replace(record, slices=slices), slow


@pytest.mark.parametrize(
    ("tokens", "num_slow"),
    [([10, 50, 1000], 1), ([10, 20, 30, 1000, 1000], 1), ([10, 20, 30, 1000, 1000], 2), ([10] * 5 + [1000] * 4, 4)],
)
def test_a_cap_that_slow_members_lowered_is_not_too_low_when_they_are_left_out(
    tokens: list[int], num_slow: int
) -> None:
    """An honest leader makes the cap before it knows who is late."""
    base, record, _ = _without_slow(tokens, num_slow, weight_cap(tokens, TARGET_TOKENS, CAP_FACTOR))
    assert low_cap_problem(base, record, base.roster) == ""


def test_a_cap_that_no_slow_member_can_have_lowered_so_far_is_too_low() -> None:
    base, record, _ = _without_slow([10] + [100] * 4, 1, cap=99)
    assert (
        low_cap_problem(base, record, base.roster)
        == "a weight cap of 99 tokens; expected at least 100 by the signed tokens"
    )


def test_members_of_whom_only_a_leader_tells_explain_no_low_cap() -> None:
    base, record, slow = _without_slow([10, 20, 30, 1000, 1000], 2, cap=120)
    known = [peer for peer in base.roster if peer not in slow]
    assert "expected at least 1000" in low_cap_problem(base, record, known)


@pytest.mark.parametrize(
    ("tokens", "cap"),
    [
        ([], 28),
        ([0], 28),
        ([0, 0, 0], 1),
        ([5], 28),
        ([9], 36),
        ([9, 1 << 60], 36),
        ([1, 1 << 60], 28),
        ([1, 2, 1 << 60], 8),
    ],
)
def test_the_weight_cap_follows_the_median_of_many_and_the_lower_one_or_the_target_of_few(
    tokens: list[int], cap: int
) -> None:
    assert weight_cap(tokens, 7, CAP_FACTOR) == cap


def _base_of(cap_factor: int, *tokens: int) -> tuple[Table, ChainLink]:
    """Members with these tokens, and the start of a run with this weight cap."""
    table = Table(len(tokens))
    for seat, number in zip(table.live(), tokens, strict=True):
        seat.tokens = number
    return table, replace(table.genesis, rules=rules_with(NEW_RUNS, cap_factor))


@pytest.mark.parametrize(("cap_factor", "credited"), [(1, 10), (2, 20), (4, 40), (1000, 900), (NO_CAP, 900)])
def test_a_member_counts_for_as_many_times_the_median_as_the_run_says(cap_factor: int, credited: int) -> None:
    table, base = _base_of(cap_factor, 10, 10, 900)
    proposed = weight_cap([10, 10, 900], base.target_tokens, cap_factor)
    record = signed_record(base, table.live(), weight_cap_tokens=proposed)
    assert _problem(base, record) == ""
    assert low_cap_problem(base, record, base.roster) == ""
    assert sorted(entry.credited_tokens for entry in record.contributors) == [10, 10, credited]
    assert link_after(base, encode_record(record)).rules == base.rules


@pytest.mark.parametrize(("of_run", "of_record"), [(2, 4), (4, 2), (4, NO_CAP), (NO_CAP, 1000)])
def test_a_record_with_another_weight_cap_than_its_run_is_refused(of_run: int, of_record: int) -> None:
    table, base = _base_of(of_run, 10, 10, 10)
    record = replace(signed_record(base, table.live()), rules=rules_with(NEW_RUNS, of_record))
    expected = f"a weight cap of {of_record} times the median; expected the run's {of_run}"
    assert expected in _problem(base, record)


# --- the next voters ----------------------------------------------------------------------------------------------------------


def _shrunk_to(record: CommitRecord, size: int) -> CommitRecord:
    """The first contributor, and as many others of the roster as make up this size."""
    (keeper, *_) = (entry.peer for entry in record.contributors)
    roster = tuple(sorted((keeper, *[peer for peer in record.roster if peer != keeper][: size - 1])))
    return replace(record, roster=roster, incarnations=(1,) * len(roster))


def _few_of_nine() -> tuple[Table, CommitRecord]:
    table = Table(9)
    return table, signed_record(table.genesis, table.live()[:1])


def test_one_commit_drops_a_third_of_the_voters_and_no_more() -> None:
    table, record = _few_of_nine()
    assert len(record.roster) == 6
    assert _problem(table.genesis, record) == ""
    assert "the next roster has 5 voters of 9 now; expected at least 6" in _problem(
        table.genesis, _shrunk_to(record, 5)
    )


def test_those_who_said_goodbye_are_dropped_besides() -> None:
    table, record = _few_of_nine()
    left = [seat.peer for seat in table.live()[-3:]]
    assert _problem(table.genesis, _shrunk_to(record, 3), left) == ""
    assert "expected at least 3" in _problem(table.genesis, _shrunk_to(record, 2), left)
    leaver = record.contributors[0].peer
    gone = _without_a_voter(record.roster.index(leaver))(record)
    assert "contributed and is not to vote next" in _problem(table.genesis, gone)
    assert _problem(table.genesis, gone, [leaver]) == ""


def test_a_lone_commit_may_shrink_the_roster_to_those_who_made_it() -> None:
    table = Table(9)
    record = signed_record(table.genesis, table.live()[:2], lone=True)
    assert len(record.roster) == 2
    assert _problem(table.genesis, record) == ""


def test_a_voter_that_did_not_contribute_keeps_the_disk_that_it_voted_with() -> None:
    table, record = _few_of_nine()
    place = next(i for i, peer in enumerate(record.roster) if record.contributor(peer) is None)
    disks = (*record.incarnations[:place], 2, *record.incarnations[place + 1 :])
    assert "is to vote with disk 2; expected 1" in _problem(table.genesis, replace(record, incarnations=disks))


def test_the_next_roster_of_a_leader_is_never_smaller_than_a_voter_asks_for() -> None:
    table = Table(9)
    peers = list(table.seats)
    for num_contributors in range(1, 10):
        for num_left in range(9):
            left = peers[9 - num_left :]
            contributors = [peer for peer in peers[:num_contributors] if peer not in left]
            roster = next_roster(table.genesis, contributors, contributors, left)
            assert len(roster) >= fewest_voters(table.genesis, left)
            assert set(contributors) <= set(roster) <= set(peers) - set(left)


# --- state roots --------------------------------------------------------------------------------------------------------------


def test_the_state_that_most_attest_counts_ties_go_to_the_lower_one_and_nobody_attests_nothing() -> None:
    low, high = (Attestation(CommitId(b"c" * 32), Root(root * 32)) for root in (b"a", b"b"))
    assert attestation_of([high, low, high]) == high
    assert attestation_of([high, low]) == low
    assert attestation_of([]) is None


def test_contributors_that_attest_different_states_are_all_entered_and_the_most_named_one_counts() -> None:
    table = Table(3)
    record = signed_record(table.genesis, table.live())
    odd = replace(
        record, attestations=(*record.attestations, Attestation(record.parent, OTHER_ROOT)), attested=record.attested
    )
    split = resealed(_first(attests=2)(odd), table.seats)
    assert _problem(table.genesis, split) == ""
    minority = replace(split, attested=Attestation(record.parent, OTHER_ROOT))
    assert "not the one of most contributors" in _problem(table.genesis, minority)
