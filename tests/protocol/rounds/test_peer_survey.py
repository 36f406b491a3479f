from __future__ import annotations

import random
from dataclasses import replace
from types import MappingProxyType

import pytest

from protocol.ids import CommitId, PeerId
from protocol.rounds import machine as core
from protocol.rounds.events import Event, LeaveOrdered, PeerLost, RoundTicked
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.peer_survey import most_tokens_of_others, surveyed
from protocol.rounds.queries import idle_patience_s, is_due, quorum_in_reach, ready_tokens
from protocol.rounds.state import RoundState, RoundStep
from tests.protocol.rounds.round_table import Table, acquaint, heartbeat_of


def _without(state: RoundState) -> RoundState:
    return replace(state, survey=None)


def _voters(state: RoundState) -> frozenset[PeerId]:
    assert state.survey is not None
    return state.survey.voters


@pytest.mark.parametrize("seed", range(2))
def test_a_machine_decides_the_same_with_its_survey_as_without_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser, table, num_kept = random.Random(seed), Table(5), 0
    real = core.step

    def both(state: RoundState, event: Event, now_s: float) -> RoundStep:
        nonlocal num_kept
        found, anew = real(state, event, now_s), real(_without(state), event, now_s)
        assert found == anew
        if found.state.survey is not None and found.state.survey is state.survey:
            num_kept += 1
        return found

    monkeypatch.setattr(core, "step", both)
    acquaint(table)
    for _ in range(12):
        seat = chooser.choice(list(table.seats.values()))
        match chooser.randrange(6):
            case 0 if seat.is_up and len(table.live()) > 3:
                table.kill(seat)
            case 1 if not seat.is_up:
                table.restart(seat, loses_disk=chooser.random() < 0.3)
            case 2 if len(table.live()) == 5:
                seat.feed(LeaveOrdered())
            case 3:
                table.split(*chooser.sample(list(table.seats.values()), 2))
            case 4:
                table.heal()
            case _ if seat.is_awake:
                seat.feed(RoundTicked(chooser.choice((0.0, 3.0))))
        table.run_for(chooser.choice((0.5, 3.0, 8.0)))
    assert num_kept > 100


def test_a_survey_says_what_others_have_ready_at_most_and_follows_what_they_tell() -> None:
    table = Table(4)
    acquaint(table)
    seat, other, gone, _ = table.live()
    state = surveyed(seat.state, 0.0)
    assert state.survey is not None
    assert most_tokens_of_others(state) == ready_tokens(state, table.now_s) - seat.tokens == 300
    other.state = replace(other.state, tokens_ready=170)
    seat.state = state
    seat.hear(other, heartbeat_of(other))
    assert seat.state.survey is not state.survey
    assert most_tokens_of_others(seat.state) == most_tokens_of_others(_without(seat.state)) == 370
    table.kill(gone)
    table.now_s += 600.0
    assert (ready_tokens(seat.state, table.now_s), most_tokens_of_others(seat.state)) == (seat.tokens, 370)
    assert is_due(seat.state, table.now_s) == is_due(_without(seat.state), table.now_s)


def test_voters_are_known_until_one_of_them_falls_silent_goes_or_comes_back_on_another_disk() -> None:
    table = Table(5)
    acquaint(table)
    seat = table.live()[0]
    patience_s = idle_patience_s(seat.state)
    state = surveyed(seat.state, table.now_s - patience_s)
    voters = _voters(state)
    assert len(voters) == 3
    assert surveyed(state, table.now_s - patience_s) is state
    assert _voters(surveyed(state, table.now_s + 0.1)) == frozenset()
    voter = table.seats[min(voters)]
    seat.state = replace(state, link=replace(state.link, disks=MappingProxyType({voter.peer: 1})))
    seat.hear(voter, heartbeat_of(voter))
    assert _voters(seat.state) == voters
    seat.hear(voter, replace(heartbeat_of(voter), member=Member(voter.peer, 2, 2)))
    assert _voters(seat.state) == frozenset()
    seat.state = state
    seat.feed(PeerLost(voter.peer))
    assert _voters(seat.state) == frozenset()


def test_a_survey_of_other_peers_or_of_another_commit_is_worth_nothing() -> None:
    table = Table(4)
    acquaint(table)
    seat = table.live()[0]
    state = surveyed(seat.state, 0.0)
    ballot = Ballot(LAST_ATTEMPT, seat.peer)
    alone = replace(state, peers=MappingProxyType({}))
    assert most_tokens_of_others(alone) == 0
    assert not quorum_in_reach(surveyed(alone, 0.0), ballot, table.now_s)
    moved = replace(state, link=replace(state.link, commit=CommitId(b"m" * 32)))
    assert most_tokens_of_others(moved) == 0
