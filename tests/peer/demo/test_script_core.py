from __future__ import annotations

from dataclasses import replace

from peer.demo.observation import PeerReport
from peer.demo.script_core import (
    DOWN_PATIENCE_S,
    EXPERTS,
    PAUSE_SHARE,
    STAGES,
    START_SHARE,
    VICTIM,
    WHOLE_MODEL,
    Action,
    DemoState,
    Stage,
    round_counting_victim,
    step,
)
from tests.peer.demo_world import observation, round_row

START = DemoState(started_s=0.0, limit_s=600.0)
DOWN = replace(START, stage=Stage.DOWN, killed_s=100.0, index_at_kill=5)


def test_gathering_waits_until_the_first_round_commits() -> None:
    state, actions, _ = step(START, observation(), 1.0)
    assert (state.stage, actions) == (Stage.GATHERING, ())
    state, actions, _ = step(state, observation((round_row(1),)), 2.0)
    assert (state.stage, actions) == (Stage.TRAINING, ())


def test_gathering_waits_while_the_host_does_not_answer() -> None:
    state, actions, reason = step(START, replace(observation(), host=None), 1.0)
    assert (state, actions) == (START, ())
    assert "host" in reason


def test_gathering_gives_up_when_no_round_commits_in_time() -> None:
    state, actions, reason = step(START, observation(), START_SHARE * START.limit_s + 1)
    assert (state.stage, actions) == (Stage.ENDED, (Action.GIVE_UP,))
    assert "no round" in reason
    slower, actions, _ = step(replace(START, limit_s=1200.0), observation(), START_SHARE * START.limit_s + 1)
    assert (slower.stage, actions) == (Stage.GATHERING, ())


def test_training_kills_the_victim_when_half_the_tokens_are_committed() -> None:
    training = replace(START, stage=Stage.TRAINING)
    assert step(training, observation((round_row(4),)), 50.0)[1] == ()
    state, actions, _ = step(training, observation((round_row(5),)), 60.0)
    assert actions == (Action.KILL_VICTIM,)
    assert (state.stage, state.killed_s, state.index_at_kill) == (Stage.DOWN, 60.0, 5)


def test_down_waits_while_rounds_still_count_the_victim() -> None:
    seen = observation((round_row(5), round_row(6)), exits={2: -9})
    assert step(DOWN, seen, 101.0)[:2] == (DOWN, ())


def test_down_restarts_the_victim_when_a_round_commits_without_it() -> None:
    seen = observation((round_row(5), round_row(6), round_row(7, ("one", "three"))), exits={2: -9})
    state, actions, _ = step(DOWN, seen, 108.0)
    assert actions == (Action.RESTART_VICTIM,)
    assert (state.stage, state.index_at_restart) == (Stage.REJOINING, 7)


def test_down_restarts_the_victim_when_patience_is_over() -> None:
    seen = observation((round_row(5),), exits={2: -9})
    assert step(DOWN, seen, 100.0 + DOWN_PATIENCE_S + 1)[1] == (Action.RESTART_VICTIM,)


def test_rejoining_ends_only_with_a_round_after_the_restart() -> None:
    rejoining = replace(DOWN, stage=Stage.REJOINING, index_at_restart=7)
    before = observation((round_row(6), round_row(7), round_row(8, ("one", "three"))))
    assert step(rejoining, before, 110.0)[0].stage is Stage.REJOINING
    after = observation((round_row(7), round_row(8, ("one", "three")), round_row(9)))
    assert step(rejoining, after, 118.0)[0].stage is Stage.REJOINED
    counted = round_counting_victim(after, 7)
    assert counted is not None
    assert counted.index == 9


def test_rejoining_pauses_the_others_when_most_tokens_are_committed_until_the_victim_trains() -> None:
    rejoining, alone = replace(DOWN, stage=Stage.REJOINING, index_at_restart=6), ("one", "three")
    soon = observation((round_row(6), *(round_row(index, alone) for index in (7,))))
    assert soon.host is not None
    assert soon.host.total_tokens >= PAUSE_SHARE * soon.host.target_total_tokens
    before = observation((round_row(6, alone),))
    assert step(rejoining, before, 110.0)[:2] == (rejoining, ())
    paused, actions, _ = step(rejoining, soon, 120.0)
    assert (paused.stage, actions, paused.paused_s) == (Stage.REJOINING, (Action.PAUSE_OTHERS,), 120.0)
    starting = replace(soon, reports={VICTIM: PeerReport(peer="two", worker_state="starting")})
    assert step(paused, soon, 121.0)[:2] == (paused, ())
    assert step(paused, starting, 122.0)[:2] == (paused, ())
    trains = replace(soon, reports={VICTIM: PeerReport(peer="two", worker_state="training")})
    resumed, actions, _ = step(paused, trains, 150.0)
    assert (resumed.stage, actions, resumed.resumed_s) == (Stage.REJOINING, (Action.RESUME_OTHERS,), 150.0)
    assert step(resumed, trains, 151.0)[:2] == (resumed, ()), "once is enough"
    counted = observation((round_row(7, alone), round_row(8)))
    assert step(resumed, counted, 160.0)[0].stage is Stage.REJOINED


def test_others_that_wait_for_the_victim_go_on_when_a_round_counts_it() -> None:
    paused = replace(DOWN, stage=Stage.REJOINING, index_at_restart=6, paused_s=120.0)
    resumed, actions, _ = step(paused, observation((round_row(7), round_row(8))), 121.0)
    assert actions == (Action.RESUME_OTHERS,)
    assert step(resumed, observation((round_row(7), round_row(8))), 122.0)[0].stage is Stage.REJOINED


def test_rejoining_in_lanes_never_pauses_the_others() -> None:
    rejoining = replace(DOWN, stage=Stage.REJOINING, index_at_restart=6, cast=STAGES)
    assert step(rejoining, observation((round_row(9, ("one", "four")),)), 120.0)[:2] == (rejoining, ())


def test_any_stage_finishes_when_every_peer_has_left_cleanly() -> None:
    state, actions, _ = step(replace(START, stage=Stage.REJOINED), observation(exits={1: 0, 2: 0, 3: 0}), 200.0)
    assert (state.stage, actions) == (Stage.ENDED, (Action.FINISH,))


def test_any_stage_gives_up_when_a_peer_fails() -> None:
    state, actions, reason = step(replace(START, stage=Stage.TRAINING), observation(exits={1: 4}), 20.0)
    assert (state.stage, actions) == (Stage.ENDED, (Action.GIVE_UP,))
    assert reason == "peer 1 left with exit code 4"


def test_any_stage_gives_up_when_the_limit_is_reached() -> None:
    assert step(replace(START, stage=Stage.REJOINED), observation(), 601.0)[1] == (Action.GIVE_UP,)


def test_a_demo_of_experts_has_two_holders_of_each_and_ends_when_all_four_have_left() -> None:
    start = replace(START, cast=EXPERTS)
    assert sorted(EXPERTS.expert_of(number) or 0 for number in range(1, 5)) == [0, 0, 1, 1]
    assert EXPERTS.num_experts == 2
    assert [number for number in (1, 3, 4) if EXPERTS.expert_of(number) == EXPERTS.expert_of(VICTIM)] == [4]
    three = dict.fromkeys((1, 2, 3), 0)
    assert step(start, observation((round_row(1),), exits=three), 1.0)[0].stage is not Stage.ENDED
    assert step(start, observation((round_row(1),), exits={**three, 4: 0}), 1.0)[1] == (Action.FINISH,)


def test_in_lanes_a_round_while_the_victim_is_dead_is_enough_and_its_own_word_counts_it_again() -> None:
    assert (STAGES.num_peers, STAGES.num_stages, STAGES.slow_peer, WHOLE_MODEL.slow_peer) == (6, 3, None, 3)
    down, others = replace(DOWN, cast=STAGES), ("one", "four")
    assert step(down, observation((round_row(5, others),), exits={2: -9}), 101.0)[1] == ()
    seen = observation((round_row(5, others), round_row(6, others)), exits={2: -9})
    state, actions, _ = step(down, seen, 102.0)
    assert (state.stage, actions) == (Stage.REJOINING, (Action.RESTART_VICTIM,))
    uncounted = replace(seen, exits={}, reports={VICTIM: PeerReport(peer="two")})
    assert step(state, uncounted, 110.0)[0].stage is Stage.REJOINING
    counted = replace(uncounted, reports={VICTIM: PeerReport(peer="two", rounds_counted=1)})
    assert step(state, counted, 111.0)[0].stage is Stage.REJOINED
