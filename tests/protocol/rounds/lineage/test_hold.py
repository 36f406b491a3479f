"""Holds of the host: what is read, when one is over, and a table of peers that opens no rounds.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, RunId, UnitName
from protocol.rounds.events import CommitsFetched
from protocol.rounds.lineage.hold import CLOCK_SLACK_S, HOLD_DOMAIN, MAX_HOLD_S, Hold, newer, open_hold, seal_hold
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Table
from tests.simulation.signing import AUTHORITY, HashVerifier

CHECK = SignatureCheck(HashVerifier(), RUN_ID)
GENESIS = CommitId(b"g" * 32)
HOLD = Hold(1, UNIT, GENESIS, CommitId(b"c" * 32), 1_700_000_000, 600, 40, 2.3125, 42, 3.875)


def _opened(sealed: bytes) -> Hold:
    return open_hold(sealed, check=CHECK, genesis=GENESIS)


def test_a_hold_is_read_as_it_was_signed_and_says_why_in_one_sentence() -> None:
    assert _opened(seal_hold(AUTHORITY, RUN_ID, HOLD)) == HOLD
    assert HOLD.words == "the host holds the run: held-out loss rose from 2.312 at round 40 to 3.875 at round 42"


def test_a_hold_of_another_signer_run_or_start_and_a_malformed_one_are_refused_in_one_line() -> None:
    good = seal_hold(AUTHORITY, RUN_ID, HOLD)
    member = Table(1).live()[0].signer
    cases = {
        "authority signed": seal_hold(member, RUN_ID, HOLD),
        "of run": seal_hold(AUTHORITY, RunId(bytes(32)), HOLD),
        "with start": seal_hold(AUTHORITY, RUN_ID, replace(HOLD, genesis=CommitId(bytes(32)))),
        "cannot be read": seal(AUTHORITY, HOLD_DOMAIN, RUN_ID, 1, NEVER_MS, b"\x05abc"),
        "no number|hold 65": seal(AUTHORITY, HOLD_DOMAIN, RUN_ID, 65, NEVER_MS, _payload(good)),
        "at most 1024": seal(AUTHORITY, HOLD_DOMAIN, RUN_ID, 1, NEVER_MS, bytes(2000)),
        "an envelope for": seal(AUTHORITY, "potluck rewind", RUN_ID, 1, NEVER_MS, _payload(good)),
    }
    for found, sealed in cases.items():
        with pytest.raises(RemoteProtocolError, match=found) as raised:
            _opened(sealed)
        assert "\n" not in raised.value.one_line()


def _payload(sealed: bytes) -> bytes:
    return sealed[102:-64]


def test_the_numbers_of_a_hold_are_bounded() -> None:
    wrong = ({"lasts_s": MAX_HOLD_S + 1}, {"number": 0}, {"good_index": 42}, {"bad_nats": math.inf})
    for changes in wrong:
        with pytest.raises(RemoteProtocolError):
            replace(HOLD, **changes)  # type: ignore[arg-type]


def test_a_hold_lasts_its_time_and_no_longer_and_one_of_no_time_lifts_it() -> None:
    assert not HOLD.is_on(HOLD.unix_s - CLOCK_SLACK_S - 1)
    assert HOLD.is_on(HOLD.unix_s - CLOCK_SLACK_S)
    assert HOLD.is_on(HOLD.unix_s + 599)
    assert not HOLD.is_on(HOLD.unix_s + 600)
    lifted = replace(HOLD, unix_s=HOLD.unix_s + 5, lasts_s=0)
    assert newer(HOLD, lifted) is lifted
    assert not lifted.is_on(HOLD.unix_s + 6)


def test_an_older_hold_never_takes_the_place_of_a_newer_one() -> None:
    second = replace(HOLD, number=2)
    assert newer(None, HOLD) is HOLD
    assert newer(HOLD, second) is second
    assert newer(second, second) is second
    for older in (HOLD, replace(second, unix_s=second.unix_s - 1)):
        with pytest.raises(RemoteProtocolError, match="an older hold"):
            newer(second, older)


# --- at the table -------------------------------------------------------------------------------------------------------------


def _held_table(num_told: int) -> Table:
    table = Table(3, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(3), 200.0)
    hold = replace(HOLD, good_index=1, bad_index=3)
    table.holds = {seat.peer: hold for seat in table.live()[:num_told]}
    return table


def test_a_held_run_ends_the_round_under_way_and_opens_no_other() -> None:
    table = _held_table(3)
    table.run_for(30.0)
    heads = {seat.head.commit for seat in table.live()}
    assert len(heads) == 1
    table.run_for(120.0)
    assert {seat.head.commit for seat in table.live()} == heads
    assert all(not seat.head.is_lone for seat in table.live())
    assert all("the host holds the run" in step.waiting for seat in table.live() for _, step in seat.steps[-1:])


def test_an_opener_that_does_not_know_of_a_hold_opens_no_round_that_a_quorum_knows_of() -> None:
    table = Table(3, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(3), 200.0)
    hold, deaf = replace(HOLD, good_index=1, bad_index=3), table.live()[0]
    table.holds = {seat.peer: hold for seat in table.others(deaf)}
    table.run_for(30.0)
    index = deaf.head.index
    table.run_for(200.0)
    assert {seat.head.index for seat in table.live()} == {index}
    assert not deaf.head.is_lone
    table.holds = {}
    table.run_until(lambda: table.all_at(index + 2), 400.0)


def test_a_run_goes_on_when_the_hold_is_over() -> None:
    table = _held_table(3)
    table.run_for(60.0)
    index = table.live()[0].head.index
    table.holds = {}
    table.run_until(lambda: table.all_at(index + 2))


def test_a_hold_of_another_unit_holds_nobody() -> None:
    table = Table(3, longest_interval_s=5.0)
    hold = replace(HOLD, unit=UnitName("another"), good_index=1, bad_index=3)
    table.holds = {seat.peer: hold for seat in table.live()}
    table.run_until(lambda: table.all_at(5), 200.0)


def test_a_held_run_goes_on_from_the_rewind_that_follows_although_the_hold_would_last_on() -> None:
    table = _held_table(3)
    table.run_for(30.0)
    seat = table.live()[0]
    good = seat.disk.chain[0][0]
    certificate = seal_rewind(AUTHORITY, RUN_ID, good, Rewind(1, seat.head.commit, HOLD.unix_s))
    seat.feed(CommitsFetched(seat.peer, (certificate,)))
    table.run_until(lambda: table.all_at(good.index + 20), 600.0)
    assert all(each.disk.chain[1][0].rewind == 1 for each in table.live())


def test_a_rewind_of_an_earlier_number_ends_no_hold() -> None:
    table = Table(3, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(3), 200.0)
    seat = table.live()[0]
    good = seat.disk.chain[1][0]
    for each in table.live():
        each.feed(CommitsFetched(each.peer, (seal_rewind(AUTHORITY, RUN_ID, good, Rewind(1, good.commit, 1)),)))
    table.run_until(lambda: table.all_at(good.index + 3))
    hold = replace(HOLD, number=2, good_index=good.index, bad_index=good.index + 3)
    table.holds = {each.peer: hold for each in table.live()}
    table.run_for(30.0)
    index = seat.head.index
    table.run_for(60.0)
    assert seat.head.index == index
