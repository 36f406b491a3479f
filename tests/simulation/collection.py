"""All scenarios, by name: importing a theme puts its own into SCENARIOS."""

from __future__ import annotations

from tests.simulation import (
    scenarios_clocks,
    scenarios_crashes,
    scenarios_host,
    scenarios_links,
    scenarios_sides,
    scenarios_spoiled,
    scenarios_turnover,
    scenarios_units,
    scenarios_votes,
)
from tests.simulation.scenario import SCENARIOS

THEMES = (
    scenarios_sides,
    scenarios_votes,
    scenarios_crashes,
    scenarios_host,
    scenarios_clocks,
    scenarios_links,
    scenarios_turnover,
    scenarios_units,
    scenarios_spoiled,
)

__all__ = ["SCENARIOS", "THEMES"]
