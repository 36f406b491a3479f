"""The run's phase."""

from __future__ import annotations

from coordinator.progress.run_core import (
    ALL_PAUSED,
    LOST_START_S,
    NOBODY_BACK,
    NOBODY_HERE,
    READY_FOR_S,
    AnnounceFinished,
    CommitVerified,
    PeerLeft,
    PeerReported,
    Phase,
    RunEvent,
    RunRules,
    RunState,
    RunTicked,
    SigningFailed,
    SignStart,
    StartSigned,
    step,
    why_waiting,
)
from protocol.ids import CommitId, PeerId

RULES = RunRules(min_members=2, max_members=3, target_tokens=1000, grace_s=5.0)
A, B, C, D = (PeerId(letter) for letter in "ABCD")
GENESIS = CommitId(b"g" * 32)


def play(*events: tuple[float, RunEvent]) -> tuple[RunState, list[object], str]:
    state, actions, reason = RunState(), [], ""
    for now, event in events:
        state, new, reason = step(state, event, RULES, now)
        actions += new
    return state, actions, reason


def test_waits_for_enough_ready_peers_and_says_so() -> None:
    state, actions, reason = play((0, PeerReported(A, True)), (1, PeerReported(B, False)))
    assert (state.phase, actions) == (Phase.GATHERING, [])
    assert "1 of at least 2" in reason


def test_signs_the_start_when_all_present_are_ready() -> None:
    _, actions, _ = play((0, PeerReported(B, True)), (1, PeerReported(A, True)))
    assert actions == [SignStart((A, B))]


def test_waits_a_moment_for_peers_on_their_way() -> None:
    base = [(0.0, PeerReported(A, True)), (0.1, PeerReported(B, True))]
    with_third = [(0.0, PeerReported(C, False)), *base]
    assert play(*with_third)[1] == []
    assert play(*with_third, (2.0, PeerReported(C, True)))[1] == [SignStart((A, B, C))]
    assert play(*with_third, (5.2, RunTicked()))[1] == [SignStart((A, B))]


def test_no_second_start_is_signed_while_a_peer_says_that_there_was_one() -> None:
    started = (0.0, PeerReported(D, False, has_started=True))
    ready = [(1.0, PeerReported(A, True)), (1.0, PeerReported(B, True))]
    _, actions, reason = play(started, *ready)
    assert (actions, "has started before" in reason) == ([], True)
    assert play(started, *ready, (2.0, StartSigned(GENESIS)))[0].phase is Phase.TRAINING


def test_a_peer_that_never_shows_the_start_it_speaks_of_holds_nobody_up_for_long() -> None:
    reports = [(float(now), PeerReported(D, False, has_started=True)) for now in range(int(LOST_START_S))]
    late = [(LOST_START_S, PeerReported(A, True)), (LOST_START_S, PeerReported(B, True))]
    _, actions, _ = play(*reports, *late, (LOST_START_S + 6, RunTicked()))
    assert actions == [SignStart((A, B))]


def test_signs_once_while_the_signature_is_being_made() -> None:
    _, actions, _ = play((0, PeerReported(A, True)), (0, PeerReported(B, True)), (1, PeerReported(C, True)))
    assert len(actions) == 1


def test_a_signature_that_failed_is_ordered_again_at_the_next_event_and_not_at_once() -> None:
    ready: list[tuple[float, RunEvent]] = [(0, PeerReported(A, True)), (0, PeerReported(B, True))]
    state, actions, reason = play(*ready, (0.1, SigningFailed()))
    assert (state.phase, state.is_signing, len(actions)) == (Phase.GATHERING, False, 1)
    assert "tried again" in reason
    assert play(*ready, (0.1, SigningFailed()), (1, RunTicked()))[1] == [SignStart((A, B))] * 2


def test_a_failed_signature_means_nothing_once_the_start_stands() -> None:
    state, _, _ = play((0, PeerReported(A, True)), (0, PeerReported(B, True)), (0, StartSigned(GENESIS)))
    assert step(state, SigningFailed(), RULES, 1.0)[0] == state


def test_roster_is_cut_to_the_largest_round() -> None:
    events = [(0.0, PeerReported(peer, False)) for peer in (A, B, C, D)]
    _, actions, _ = play(*events, *((1.0, PeerReported(peer, True)) for peer in (D, C, B, A)))
    assert actions == [SignStart((B, C, D))]


def test_peers_that_fell_silent_or_left_are_not_counted() -> None:
    assert play((0, PeerReported(A, True)), (READY_FOR_S + 1, PeerReported(B, True)))[1] == []
    assert play((0, PeerReported(A, True)), (1, PeerLeft(A)), (2, PeerReported(B, True)))[1] == []


def test_trains_until_the_target_and_finishes_once() -> None:
    started = [(0.0, StartSigned(GENESIS))]
    state, actions, _ = play(*started, (1.0, CommitVerified(CommitId(b"a" * 32), 1, 600)))
    assert (state.phase, state.index, actions) == (Phase.TRAINING, 1, [])
    last = CommitVerified(CommitId(b"b" * 32), 2, 1200)
    state, actions, reason = play(*started, (1.0, last), (2.0, RunTicked()))
    assert (state.phase, actions) == (Phase.FINISHED, [AnnounceFinished()])
    assert "1,200" in reason


def test_a_start_record_found_after_a_restart_begins_training() -> None:
    state, actions, _ = play((0, StartSigned(GENESIS)), (1, PeerReported(A, True)), (1, PeerReported(B, True)))
    assert (state.phase, state.head, actions) == (Phase.TRAINING, GENESIS, [])


def test_run_without_a_peer_says_what_it_waits_for_and_after_a_restart_that_peers_may_have_ended_it() -> None:
    assert why_waiting([], num_heard=0, num_away=0) == ""
    assert why_waiting([], num_heard=2, num_away=1) == NOBODY_HERE
    assert why_waiting([], num_heard=0, num_away=2) == NOBODY_BACK
    assert why_waiting(["training", "paused"], num_heard=2, num_away=0) == ""
    assert why_waiting(["paused"], num_heard=2, num_away=0) == ALL_PAUSED
