"""Each fault of recovery by itself, in a story as small as it may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.stories import Options, simulate


def _only(kind: str, **changed: object) -> Profile:
    return replace(PROFILES["calm"], weights={kind: 1}, num_faults=(1, 1), spread_s=10.0, **changed)


@pytest.mark.parametrize("kind", ["host restart", "host restored"])
def test_a_host_that_was_away_knows_again_what_the_swarm_knows(kind: str) -> None:
    """Its ledger at the end is asked by `Host.check`: the swarm's head, both sides of each fork, each commit once."""
    outcome = simulate(5, _only(kind, fault_s=(10.0, 20.0)), Options(peers=3))
    assert (outcome.error, outcome.faults[kind]) == ("", 1)
