"""Two signatures of one voter: when they prove a lie, and when an honest voter may make both.

Rules: R16, R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.ids import CommitId, Root, UnitName
from protocol.rounds.lineage.double_votes import conviction_of, double_voter, double_voters
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.claim import encode_claim
from protocol.rounds.messages.messages import Ack, AckedRecord, Certificate, Leave
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.requests import ContributionHeader
from protocol.rounds.messages.wire import encode_message
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Seat, Table
from tests.simulation.signing import HashVerifier

CHECK = SignatureCheck(HashVerifier(), RUN_ID)
BASE, ONE, OTHER = (CommitId(name * 32) for name in (b"b", b"1", b"2"))


def _ack(seat: Seat, attempt: int = 0, commit: CommitId = ONE, **changes: object) -> bytes:
    ack = Ack(UNIT, BASE, Ballot(attempt, seat.peer), commit, version=1)
    return seat.sealed(encode_message(replace(ack, **changes)))  # type: ignore[arg-type]


def _naming(seat: Seat, attempt: int, commit: CommitId) -> dict[str, object]:
    return {"before": Ballot(attempt, seat.peer), "before_commit": commit}


@pytest.fixture
def voter() -> Seat:
    return Table(3).live()[0]


def test_two_records_acked_in_one_ballot_convict_their_voter_in_either_order(voter: Seat) -> None:
    pair = _ack(voter), _ack(voter, commit=OTHER)
    assert double_voter(*pair, CHECK) == double_voter(*pair[::-1], CHECK) == voter.peer


def test_a_later_ack_that_hides_the_earlier_one_or_names_another_record_convicts(voter: Seat) -> None:
    first = _ack(voter, 1)
    for hidden in (
        _ack(voter, 2, OTHER),
        _ack(voter, 2, OTHER, **_naming(voter, 0, ONE)),
        _ack(voter, 2, OTHER, **_naming(voter, 1, CommitId(b"3" * 32))),
    ):
        assert double_voter(first, hidden, CHECK) == voter.peer


def test_an_honest_voter_may_ack_another_record_in_a_higher_ballot_and_names_the_one_before(voter: Seat) -> None:
    later = _ack(voter, 2, OTHER, **_naming(voter, 1, ONE))
    assert double_voter(_ack(voter, 1), later, CHECK) is None
    between = _ack(voter, 5, ONE, **_naming(voter, 2, OTHER))
    assert double_voter(_ack(voter, 1), between, CHECK) is None, "the same record again"
    assert double_voter(_ack(voter, 0, CommitId(b"0" * 32)), later, CHECK) is None, "it names the newest one before"


@pytest.mark.parametrize(
    "changes",
    [
        {"lone": True},
        {"version": 0},
        {"unit": UnitName("fragment-9")},
        {"base": CommitId(b"x" * 32)},
        {"commit": ONE},
    ],
)
def test_lone_acks_acks_of_older_releases_and_acks_of_another_round_prove_nothing(
    changes: dict[str, object], voter: Seat
) -> None:
    assert double_voter(_ack(voter), _ack(voter, **{"commit": OTHER, **changes}), CHECK) is None  # type: ignore[arg-type]


def test_nobody_is_convicted_by_what_it_did_not_sign(voter: Seat) -> None:
    liar = voter.table.others(voter)[0]
    mine, forged = _ack(voter), _ack(voter, commit=OTHER)
    tampered = forged[:-1] + bytes([forged[-1] ^ 1])
    for other in (_ack(liar, commit=OTHER), tampered, b"", _goodbye(liar, None)):
        assert double_voter(mine, other, CHECK) is None
    assert double_voter(mine, forged, replace(CHECK, run_id=b"x" * 32)) is None


def test_two_certificates_on_one_base_convict_those_who_acked_both_and_nobody_else() -> None:
    one, both, other = Table(3).live()
    first = Certificate(b"", (_ack(one), _ack(both), b"no ack"))
    second = Certificate(b"", (_ack(other, commit=OTHER), _ack(both, commit=OTHER)))
    ((voter, *acks),) = double_voters(first, second, CHECK)
    assert voter == both.peer
    assert double_voter(*acks, CHECK) == both.peer
    assert double_voters(first, first, CHECK) == ()


def test_a_conviction_names_voter_base_and_both_records_in_few_words(voter: Seat) -> None:
    found = conviction_of(_ack(voter), _ack(voter, 1, OTHER), CHECK)
    assert found is not None
    assert (found.voter, found.base, found.commits) == (voter.peer, BASE, (ONE, OTHER))
    assert found.words == "acked 31313131 and 32323232 on base 62626262, and the later ack hides the earlier"
    assert conviction_of(_ack(voter), _ack(voter), CHECK) is None


# --- goodbyes -----------------------------------------------------------------------------------------------------------------


def _goodbye(seat: Seat, attempt: int | None, acked: int | None = None, **changes: object) -> bytes:
    """It tells of its promise to this attempt, and of an ack in that one; None for neither."""
    promised = None if attempt is None else Ballot(attempt, seat.peer)
    entry = None if acked is None else AckedRecord(Ballot(acked, seat.peer), b"record")
    leave = Leave(seat.member, UNIT, BASE, promised, entry, version=LEAVE_VERSION)
    return seat.sealed(encode_message(replace(leave, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("promised", "acked"), [(None, None), (1, None), (2, None), (1, 1), (7, 1), (None, 0)])
def test_a_goodbye_that_tells_of_no_ack_as_high_as_one_on_its_base_convicts_whatever_it_promised(
    promised: int | None, acked: int | None, voter: Seat
) -> None:
    pair = _ack(voter, 2), _goodbye(voter, promised, acked)
    for found in (conviction_of(*pair, CHECK), conviction_of(*pair[::-1], CHECK)):
        assert found is not None
        assert (found.voter, found.base, found.commits) == (voter.peer, BASE, (ONE,))
        assert found.words == "acked 31313131 on base 62626262, and its goodbye hides that"


def test_an_honest_goodbye_and_one_of_another_round_or_beside_a_lone_or_old_ack_convict_nobody(voter: Seat) -> None:
    ack, hides = _ack(voter, 2), _goodbye(voter, None)
    restarted = replace(voter.member, incarnation=voter.member.incarnation + 1, session=voter.member.session + 1)
    for one, other in (
        (ack, _goodbye(voter, 2, 2)),
        (ack, _goodbye(voter, LAST_ATTEMPT)),
        (ack, _goodbye(voter, None, base=CommitId(b"x" * 32))),
        (ack, _goodbye(voter, None, unit=UnitName("fragment-9"))),
        (ack, _goodbye(voter, None, version=0)),
        (ack, _goodbye(voter, None, version=0, member=restarted)),
        (_ack(voter, 2, lone=True), hides),
        (_ack(voter, 2, version=0), hides),
        (hides, hides),
    ):
        assert conviction_of(one, other, CHECK) is None
        assert conviction_of(other, one, CHECK) is None


def test_a_certificate_with_a_goodbye_and_one_with_its_signers_ack_convict_it() -> None:
    one, both, other = Table(3).live()
    first = Certificate(b"", (_ack(one),), (_goodbye(both, None), b"no goodbye"))
    second = Certificate(b"", (_ack(other, commit=OTHER), _ack(both, commit=OTHER)))
    for pair in ((first, second), (second, first)):
        ((voter, *signed),) = double_voters(*pair, CHECK)
        assert voter == both.peer
        assert double_voter(*signed, CHECK) == both.peer


# --- claims -------------------------------------------------------------------------------------------------------------------


def _claim(seat: Seat, signer: Seat | None = None, **changes: object) -> bytes:
    root = Root(b"r" * 32)
    claim = ContributionHeader(UNIT, BASE, seat.member, 100, "fp32", root, BASE, root)
    return (signer or seat).sealed(encode_claim(replace(claim, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"tokens": 101}, {"root": b"x" * 32}, {"attested_root": b"x" * 32}])
def test_two_claims_of_one_process_on_one_base_convict_it(voter: Seat, changes: dict[str, object]) -> None:
    found = conviction_of(_claim(voter), _claim(voter, **changes), CHECK)
    assert found is not None
    assert (found.voter, found.base) == (voter.peer, BASE)
    assert "two claims of one process" in found.words


def test_claims_that_an_honest_peer_may_sign_or_that_are_not_its_own_convict_nobody(voter: Seat) -> None:
    other, first = voter.table.live()[1], _claim(voter)
    restarted = replace(voter.member, session=voter.member.session + 1)
    for second in (
        first,
        _claim(voter, member=restarted, tokens=101),
        _claim(voter, base=CommitId(b"n" * 32), tokens=101),
        _claim(voter, unit=UnitName("other"), tokens=101),
        _claim(voter, signer=other, tokens=101),
        _claim(other),
        _ack(voter),
        b"",
    ):
        assert conviction_of(first, second, CHECK) is None
        assert conviction_of(second, first, CHECK) is None
