"""Three peers and a host as real processes, and what volunteers' machines do to them in the middle of a round.

The staging is the benchmark's (tests/benchmarks/faults.py), which measures how fast all this goes; here only what comes of it counts.
Peers train slowly and send slowly, so that an exchange lasts long enough to be struck in its middle.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.benchmarks.fault_trials import BACK_LIMIT_S, LEAVE_LIMIT_S, NEXT_ROUND_LIMIT_S, Fault, Stage, Trial, strike
from tests.benchmarks.faults import open_stage
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.points import Point
from tests.benchmarks.processes import open_children
from tests.benchmarks.swarm import wait_until
from tests.e2e.forked_children import ForkedChildren
from tests.forked import Forked

NUM_PEERS = 3
NUM_LEAVES = 4
ROUNDS_TO_BE_BACK = 3
"""The promise is two, which the benchmark judges (fault_rows.py); beside other tests a round of 3 s may pass while a peer wakes up."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[Stage]:
    """A swarm that has made its first rounds; each test leaves it whole, or on its way."""
    directory = tmp_path_factory.mktemp("faults")
    places = Places(LOOPBACK, (Place(),) * NUM_PEERS, "loopback")
    with (
        open_children(directory / "logs", partial(ForkedChildren, forked=forked)) as children,
        open_stage(children, directory, places, random.Random(1)) as stage,
    ):
        stage.warm_up()
        yield stage


def _judged(stage: Stage, trial: Trial | None) -> Trial:
    assert trial is not None, "nobody came to that point"
    stage.judge([trial])
    assert trial.round_s is not None, "the survivors did not commit the round"
    assert trial.are_roots_equal
    assert trial.is_one_chain, "two certificates on one base, or somebody without it"
    return trial


def test_a_round_survives_a_peer_killed_in_its_middle_and_counts_it_again_when_it_is_back(stage: Stage) -> None:
    trial = stage.run(Fault("whole session killed", "session"))
    stage.await_return()
    assert _judged(stage, trial).back_s is not None, "it was not counted again"


def test_a_frozen_peer_that_wakes_up_is_counted_again_within_rounds_and_makes_no_fork(stage: Stage) -> None:
    trial = _judged(stage, stage.run(Fault("frozen", "freeze")))
    assert trial.suspected_s, "nobody missed it"
    assert trial.rounds_to_count is not None, "it was not counted again"
    assert trial.rounds_to_count <= ROUNDS_TO_BE_BACK


def test_a_peer_that_is_asked_to_leave_in_the_middle_of_a_round_stays_for_it_and_says_goodbye(
    stage: Stage,
) -> None:
    trial = _judged(stage, stage.run(Fault("asked to leave", "leave")))
    peers = stage.watch.swarm.peers
    victim = peers[trial.victim]
    assert any(line.text == "leaving" for line in victim.log.since(trial.struck_s)), "it wrote no goodbye"
    heard = [
        line
        for peer in peers.values()
        for line in peer.log.since(trial.struck_s)
        if peer is not victim and line.text == f"{victim.short} left"
    ]
    assert heard, "nobody heard its goodbye"
    assert victim.peer_id in stage.watch.rounds[trial.index].members, "it did not stay for the round"


def test_a_peer_that_is_asked_to_leave_between_two_rounds_is_counted_in_the_next_one(stage: Stage) -> None:
    """The others may open that round between our look and the signal. That cannot be seen from outside, and it leaves again later."""
    stage.await_return()
    said = list[str]()
    for _ in range(NUM_LEAVES):
        is_counted, index, lines = _leaves_between_rounds(stage)
        stage.start_again(Trial(Fault("asked to leave between rounds", "leave"), index, 2, False, time.time()))
        if is_counted:
            return
        said += lines
    raise AssertionError(f"it left {NUM_LEAVES} times and was never counted: {said}")


def _leaves_between_rounds(stage: Stage) -> tuple[bool, int, list[str]]:
    """Ask a voter to leave that has trained since a commit that was just made: the next round is then the farthest. Whether that round
    counts it, which one it is, and what it said meanwhile.
    """
    watch, victim = stage.watch, stage.watch.swarm.peers[2]

    def has_vote() -> bool:
        watch.look()
        last = watch.rounds.get(watch.index_of(victim))
        return last is not None and victim.peer_id in last.members  # only voters' work is carried

    def is_between_rounds() -> bool:
        is_voter, status = has_vote(), watch.heads[victim.number]
        has_trained = status.tokens_ready > 0 and status.round_waiting.startswith("training")
        return is_voter and status.index > before and has_trained

    assert wait_until(has_vote, BACK_LIMIT_S), "it was not counted again"
    before = watch.index_of(victim)
    assert wait_until(is_between_rounds, BACK_LIMIT_S), "it trained nothing between two rounds"
    index, struck_s = watch.index_of(victim), time.time()
    strike("leave", victim, [victim.running.process.pid])
    victim.running.process.wait(timeout=LEAVE_LIMIT_S)

    def is_committed() -> bool:
        watch.look()
        return index + 1 in watch.rounds

    assert wait_until(is_committed, NEXT_ROUND_LIMIT_S), "the others made no round"
    said = [line.text for line in victim.log.since(struck_s)]
    return victim.peer_id in watch.rounds[index + 1].members, index + 1, said


def test_an_opener_that_dies_with_its_ack_on_disk_leaves_one_certificate(stage: Stage) -> None:
    stage.await_return()  # else the two that are left are no quorum
    trial = _judged(stage, stage.run(Fault("opener killed", "point", Point("acked", "after"))))
    assert trial.is_at_point
