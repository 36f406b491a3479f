"""Each fault of recovery by itself, in a story as small as it may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.rounds.chain import ChainLink
from tests.simulation import faults
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.stories import Options, simulate


def _only(kind: str, **changed: object) -> Profile:
    return replace(PROFILES["calm"], weights={kind: 1}, num_faults=(1, 1), spread_s=10.0, **changed)


@pytest.mark.parametrize("kind", ["host restart", "host restored"])
def test_a_host_that_was_away_knows_again_what_the_swarm_knows(kind: str) -> None:
    """Its ledger at the end is asked by `Host.check`: the swarm's head, both sides of each fork, each commit once."""
    outcome = simulate(5, _only(kind, fault_s=(10.0, 20.0)), Options(peers=3))
    assert (outcome.error, outcome.faults[kind]) == ("", 1)


@pytest.mark.parametrize(("unheard", "within_s"), [(0.0, 10.0), (1.0, 40.0)])
def test_a_newer_process_elsewhere_closes_the_older_one_by_the_host_at_once_and_by_the_next_directory_record(
    unheard: float, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check_vote` sees that it never votes beside that one, `agree` that the older one is gone at the end."""
    monkeypatch.setattr(faults, "UNHEARD", unheard)
    outcome = simulate(5, _only("second process", has_credentials=True), Options(peers=3, keeps_trace=True))
    assert (outcome.error, outcome.faults["second process"]) == ("", 1)
    assert sum("joined with a newer session" in line for line in outcome.lines) == 1
    begun_s, closed_s = (
        next(float(line.split()[0]) for line in outcome.lines if said in line)
        for said in ("fault second process", "joined with a newer session")
    )
    assert closed_s - begun_s < within_s


def test_credentials_are_renewed_before_they_end() -> None:
    profile = _only("join", has_credentials=True, min_rounds=10, round_s=25.0)
    outcome = simulate(5, profile, Options(peers=3))
    assert (outcome.error, outcome.faults["expiry"]) == ("", 0)
    assert outcome.faults["renewal"] >= 3


def test_a_newer_process_that_votes_beside_the_older_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainLink, "may_vote", lambda *_: True)
    profile = _only("second process", has_credentials=True)
    assert any("with a disk that its roster does not name" in simulate(seed, profile).error for seed in range(4))
