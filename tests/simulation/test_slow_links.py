"""Rounds behind slow links: as many steps as their exchange needs, and nobody is taken for dead."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import pytest

from tests.benchmarks.slow_links_virtual import walkable
from tests.simulation.slow_links import Links, Reported, RoundTiming, run

BEFORE, SETTLING, STEADY = 12, 5, 6
"""Rounds until the lines change; from then until rounds are as long as the new ones ask for; and those that are looked at."""


@dataclass(frozen=True)
class Change:
    """Lines of all peers that become others in the middle of the run, bits a second; how far rounds may be off before and then."""

    is_blocking: bool
    first: float
    then: float
    most_off: tuple[float, float]

    @property
    def exchanges(self) -> float:
        """A round lasts so many exchanges, at least."""
        return 19.0 if self.is_blocking else 1 / 0.95

    def play(self) -> Reported:
        links = Links(self.first, num_peers=2, then_bits_per_s=self.then, changes_after=BEFORE)
        timing, num_rounds = RoundTiming(None, 0.95, self.is_blocking), BEFORE + SETTLING + STEADY
        return run(links, timing, lambda reported: len(reported.rounds) >= num_rounds, 40_000.0)

    def check(self, reported: Reported, most_off: float) -> None:
        """Of the last rounds: the fewest steps that keep the utilisation, and none far from the others."""
        # each round is as long as the exchange of the one before it asks for, and exchanges differ by a third
        exchange_s = statistics.fmean(one.exchange_s for one in reported.steady(STEADY + 1)[:-1])
        fewest = self.exchanges * exchange_s / reported.step_s
        assert abs(reported.steps(STEADY) - fewest) <= max(1.0, most_off * fewest)
        assert reported.utilisation(STEADY) > (0.94 if self.is_blocking else 0.98)
        tokens = [one.tokens for one in reported.steady(STEADY)]
        assert max(tokens) <= 1.33 * statistics.median(tokens)
        assert min(tokens) >= statistics.median(tokens) / 1.33


@pytest.mark.parametrize(
    "change",
    [
        Change(False, 50e6, 10e6, (0.02, 0.02)),
        Change(False, 10e6, 50e6, (0.02, 0.02)),
        Change(True, 50e6, 10e6, (0.02, 0.02)),
    ],
    ids=["overlap, slower", "overlap, faster", "blocking, slower"],
)
def test_measured_rounds_come_to_the_fewest_steps_that_keep_the_utilisation_and_again_when_the_lines_change(
    change: Change,
) -> None:
    reported = change.play()
    change.check(replace(reported, rounds=reported.rounds[:BEFORE]), change.most_off[0])
    change.check(reported, change.most_off[1])
    assert len(reported.targets) >= BEFORE + SETTLING + STEADY
    assert {len(targets) for targets in reported.targets.values()} == {1}, "of one round all have the same target"
    assert (reported.deaths, reported.num_partial) == (set(), 0)


def test_where_training_waits_the_step_that_was_under_way_is_no_waiting_and_measured_rounds_are_no_longer_for_it() -> (
    None
):
    """Half a step is 8% of this exchange: rounds that paid for it, too, were as much longer, and trained for 95.4% of the time."""
    reported = run(
        Links(100e6, num_peers=2), RoundTiming(None, 0.95, True), lambda reported: len(reported.rounds) >= 36, 4000.0
    )
    assert reported.utilisation(24) == pytest.approx(0.95, abs=0.002)


def test_at_a_thousandth_of_a_gigabit_with_losses_rounds_go_on_and_nobody_is_taken_for_dead() -> None:
    reported = run(Links(1e6, latency_s=0.1, loss=0.01, num_peers=2), RoundTiming(100), lambda reported: False, 900.0)
    assert (reported.deaths, reported.num_partial) == (set(), 0)
    assert reported.rounds


def test_fixed_numbers_of_steps_are_moved_only_where_a_simulated_walk_would_come_back_to_its_beginning() -> None:
    """Seven steps became fifteen, so that no fixed number came near to measured rounds of seven."""
    few_and_far = [1, 7, 8, 503, 520, 1015, 1032]
    assert [walkable(steps) for steps in few_and_far] == few_and_far
    assert [walkable(steps) for steps in (504, 512, 519, 1024)] == [520, 520, 520, 1032]
