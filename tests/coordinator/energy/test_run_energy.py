from __future__ import annotations

import pytest

from coordinator.energy.run_energy import MOST_PEERS, RunEnergy
from protocol.host.reports import EnergySpent
from protocol.ids import PeerId

ONE, OTHER = PeerId("one"), PeerId("other")
KWH = 3.6e6


def test_peers_add_up_by_their_newest_reports() -> None:
    energy = RunEnergy()
    for joules in (KWH, 2 * KWH):
        energy.heard(ONE, EnergySpent(joules, 1000))
    energy.heard(OTHER, EnergySpent(KWH, 500))
    energy.heard(PeerId("without"), None)
    sums = energy.sums()
    assert (sums.num_peers, sums.kwh, sums.tokens) == (2, 3.0, 1500)
    assert sums.joules_per_token == pytest.approx(3 * KWH / 1500)
    assert sums.carbon_kg is None


def test_a_peer_that_starts_again_goes_on_from_its_sum() -> None:
    energy = RunEnergy()
    for joules, tokens in ((KWH, 10), (2 * KWH, 20), (0.0, 0), (KWH, 5)):
        energy.heard(ONE, EnergySpent(joules, tokens))
    assert (energy.sums().kwh, energy.sums().tokens) == (3.0, 25)


def test_each_peers_grid_counts_for_its_own_energy() -> None:
    energy = RunEnergy()
    energy.heard(ONE, EnergySpent(KWH, 0, 50.0))
    energy.heard(OTHER, EnergySpent(KWH, 0, 400.0))
    assert energy.sums().carbon_kg == pytest.approx(0.45)
    assert energy.sums().carbon_share == 1.0


def test_without_a_grid_only_the_known_part_has_carbon() -> None:
    energy = RunEnergy()
    energy.heard(ONE, EnergySpent(KWH, 0, 0.0))
    energy.heard(OTHER, EnergySpent(3 * KWH))
    assert (energy.sums().carbon_kg, energy.sums().carbon_share) == (0.0, 0.25)


def test_a_run_without_meters_tells_nothing() -> None:
    assert RunEnergy().sums().json() == {}


@pytest.mark.parametrize("most", [MOST_PEERS, 3])
def test_peers_without_end_are_not_kept(most: int) -> None:
    energy = RunEnergy(most)
    for number in range(most + 10):
        energy.heard(PeerId(f"peer-{number}"), EnergySpent(1.0))
    assert energy.sums().num_peers == most
