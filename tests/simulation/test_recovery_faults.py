"""Each fault of recovery by itself, in a story as small as it may be."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from averaging.rounds.lineage.round_context import Tasks
from averaging.state.unit_log import UnitLog
from peer.membership import saved_membership as membership_file
from peer.status.health import HealthNotes
from protocol.errors import StorageError
from protocol.rounds.lineage.chain_link import ChainLink
from tests.simulation import faults, full_disk, seeds
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


# --- a full disk --------------------------------------------------------------------------------------------------------------


def _filled(monkeypatch: pytest.MonkeyPatch, killed: float = 0.0, left_bytes: int = 0) -> Profile:
    """One disk is full for half a minute, or nearly so; its peer is killed at the end, or not."""
    monkeypatch.setattr(full_disk, "LEFT_BYTES", (left_bytes,))
    monkeypatch.setattr(full_disk, "KILLED", killed)
    return _only("full disk", fault_s=(30.0, 35.0), has_credentials=True)


@pytest.mark.parametrize(("left_bytes", "killed"), [(0, 0.0), (0, 1.0), (1500, 0.0)])
def test_a_full_disk_is_told_stops_nobody_else_and_its_peer_goes_on_once_there_is_room(
    left_bytes: int, killed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end all are counted in one round, and the restart finds what was acked: the story asks for both. If 1500 bytes are left,
    an ack fits, and its certificate does not.
    """
    outcome = simulate(5, _filled(monkeypatch, killed, left_bytes), Options(peers=4, keeps_trace=True))
    assert (outcome.error, outcome.faults["full disk"], outcome.faults["refusal told"]) == ("", 1, 1)
    begun, ended = (
        next(place for place, line in enumerate(outcome.lines) if said in line)
        for said in ("fault full disk", "has room")
    )
    heads = {line.split()[3] for line in outcome.lines[begun:ended] if " commit " in line}
    assert len(heads) >= 3


def _swallows_refusals(patch: pytest.MonkeyPatch) -> None:
    append = UnitLog._append

    async def forgetful(log: UnitLog, entry: bytes) -> None:
        with contextlib.suppress(StorageError):
            await append(log, entry)

    patch.setattr(UnitLog, "_append", forgetful)


def _tells_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HealthNotes, "take", lambda *_: None)


def _falls_with_a_task(patch: pytest.MonkeyPatch) -> None:
    async def unguarded(_: Tasks, function: Callable[..., Awaitable[None]], *args: object) -> None:
        await function(*args)

    patch.setattr(Tasks, "guarded", unguarded)


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        (_swallows_refusals, "which its full disk has not"),
        (_tells_nobody, "its status says ''"),
        (_falls_with_a_task, "no space left on the disk"),
    ],
)
def test_a_peer_that_takes_a_full_disk_wrongly_is_found(
    breaks: Callable[[pytest.MonkeyPatch], None], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    # the results fit, and their ack does not
    assert named in simulate(5, _filled(monkeypatch, left_bytes=300), Options(peers=4)).error


# --- a dead seed --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("for_good", [0.0, 1.0])
def test_with_the_host_away_and_the_first_seed_dead_a_peer_comes_back_by_others_and_a_newcomer_joins(
    for_good: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "FOR_GOOD", for_good)
    outcome = simulate(5, _only("seed dead", fault_s=(5.0, 8.0), has_credentials=True), Options(peers=5))
    found = outcome.faults["seed dead"], outcome.faults["way in"], outcome.faults["join"], outcome.faults["restart"]
    assert (outcome.error, found) == ("", (1, 1, 1, 1 if for_good else 2))


def test_a_peer_that_remembers_one_way_in_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_file, "KEPT_PEERS", 1)
    profile = _only("seed dead", fault_s=(30.0, 35.0), has_credentials=True)
    assert "does not find the run" in simulate(5, profile, Options(peers=5)).error
