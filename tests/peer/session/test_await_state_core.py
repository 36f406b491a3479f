from __future__ import annotations

import pytest

from peer.session.await_state_core import PATIENCE_S, Found, lacks_state, waiting_sentence

SHOWN_BY_THE_HOST = 200
"""Letters of a reason that a report takes along."""


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Found(own_index=0, reported_index=81), "the run is at round 81, and nothing of it is here"),
        (Found(own_index=0, reported_index=1), "one round is a run, too"),
    ],
)
def test_peer_with_nothing_of_a_run_that_is_under_way_has_nothing_to_begin_on(found: Found, why: str) -> None:
    assert lacks_state(found), why


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Found(own_index=0, reported_index=0), "founders at the start, or nobody tells of any head"),
        (Found(own_index=40, reported_index=81), "a run restarts from what survivors hold"),
        (Found(own_index=81, reported_index=81), "it is here"),
        (Found(own_index=82, reported_index=81), "the host is behind"),
        (
            Found(own_index=0, reported_index=1, is_next_at_hand=True),
            "it may be the last that can finish the first round",
        ),
    ],
)
def test_peer_goes_on_from_what_it_has_and_founders_begin_at_the_start(found: Found, why: str) -> None:
    assert not lacks_state(found), why


def test_nothing_is_said_while_a_short_run_is_being_replayed() -> None:
    assert waiting_sentence(81, PATIENCE_S - 1, is_outbound_only=False) == ""


@pytest.mark.parametrize(
    ("is_outbound_only", "ourselves"), [(True, "this is one of them"), (False, "`potluck doctor` says")]
)
def test_owner_is_told_what_is_waited_for_since_when_why_and_what_mends_it(
    is_outbound_only: bool, ourselves: str
) -> None:
    reported = waiting_sentence(81, 180.0, is_outbound_only=is_outbound_only)
    begin = reported[:SHOWN_BY_THE_HOST]
    assert "round 81, for 3 min now: nobody who has it can be reached" in begin
    assert "one volunteer must be reachable, --no-listen peers cannot connect to each other" in begin
    assert ourselves in reported
    assert "goes on by itself" in reported
    assert "new run from a checkpoint: start_from" in reported
