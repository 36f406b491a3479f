from __future__ import annotations

import pytest

from peer.forecast.crew_core import Link
from peer.forecast.round_times_core import AGREEMENT_S, Pace, round_times
from protocol.estimates.estimates import run_size
from protocol.run.manifest import RunConfig, default_run_toml, parse_run_config
from protocol.run.traffic import round_bytes

FAST, SLOW = Link(1000.0, 1000.0), Link(1.0, 0.1)


def _run(**keys: object) -> RunConfig:
    run = parse_run_config(default_run_toml())
    return run.model_copy(update={"round": run.round.model_copy(update=keys)})


def test_a_round_is_due_at_its_tokens_or_after_the_longest_interval() -> None:
    run = _run()
    fast = round_times(run, Pace(3, 122_880 / 20.0, FAST))
    assert fast.round_s == pytest.approx(20.0, rel=0.01)
    assert fast.local_steps == pytest.approx(20.0, rel=0.01)
    slow = round_times(run, Pace(3, 100.0, FAST))
    assert slow.round_s == pytest.approx(60.0, rel=0.01)
    assert slow.tokens == pytest.approx(6000.0, rel=0.01)


def test_bytes_of_a_round_are_those_of_the_dry_run() -> None:
    run = _run()
    size = run_size(run)
    found = round_times(run, Pace(3, 5000.0, FAST))
    assert (found.up_bytes, found.down_bytes) == round_bytes(size.update_bytes, size.result_bytes, 3, reduces=True)


def test_training_that_goes_on_makes_longer_rounds_on_a_thin_link_and_training_that_waits_loses_time() -> None:
    pace = Pace(3, 122_880 / 20.0, Link(1.0, 0.25))
    beside, waiting = (round_times(_run(mode=mode), pace) for mode in ("overlap", "blocking"))
    assert beside.exchange_s == waiting.exchange_s > 30
    assert beside.lost_share < 0.01
    assert beside.local_steps > 30
    assert waiting.lost_share == pytest.approx(waiting.exchange_s / waiting.round_s, rel=0.01)
    assert waiting.round_s == pytest.approx(20.0 + waiting.exchange_s, rel=0.01)


def test_auto_rounds_are_as_short_as_their_exchange_allows() -> None:
    found = round_times(_run(local_steps="auto", target_utilisation=0.5), Pace(3, 3e3, Link(10.0, 10.0)))
    assert found.round_s == pytest.approx(2 * found.exchange_s, rel=0.01)


def test_one_member_exchanges_nothing_and_loses_nothing() -> None:
    found = round_times(_run(), Pace(1, 5000.0, SLOW))
    assert (found.exchange_s, found.up_bytes, found.lost_share, found.problem) == (0.0, 0, 0.0, "")


def test_a_link_that_carries_no_round_is_a_problem_with_one_that_would() -> None:
    found = round_times(_run(), Pace(3, 5000.0, SLOW))
    assert "expected a link of at least" in found.problem
    assert round_times(_run(), Pace(3, 5000.0, FAST)).problem == ""


def test_a_ramp_has_shorter_rounds_on_average() -> None:
    even, ramp = (round_times(_run(ramp_share=share), Pace(3, 1e5, FAST)) for share in (0.0, 0.02))
    assert ramp.round_s < even.round_s
    assert ramp.exchange_s >= AGREEMENT_S
