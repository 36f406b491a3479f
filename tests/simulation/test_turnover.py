"""Peers come and go for hours, or say goodbye while bytes are slow; `--profile churn` and `--profile slow-leave` run more of it."""

from __future__ import annotations

from tests.simulation.profiles import PROFILES
from tests.simulation.stories import Options, simulate


def test_every_round_resolves_though_a_quarter_of_the_peers_goes_and_as_many_come_between_two_rounds() -> None:
    profile = PROFILES["churn"]
    outcome = simulate(2, profile, Options(hours=3.0))
    assert outcome.error == ""
    assert max(outcome.turnover) >= 0.25
    assert all(outcome.faults[kind] for kind in profile.kinds)


def test_rounds_go_on_though_peers_say_goodbye_while_the_bytes_of_a_round_are_on_their_way() -> None:
    outcome = simulate(0, PROFILES["slow-leave"])
    assert outcome.error == ""
    assert outcome.faults["slow leave"] > 0
