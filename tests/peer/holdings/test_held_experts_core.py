"""Which experts a peer takes, and how many it has room for."""

from __future__ import annotations

from peer.holdings.held_experts_core import Known, choose, founded, of_founders, room_for
from protocol.host.expert_choice import Holding
from protocol.ids import PeerId, Root, UnitName
from protocol.pipeline.placement.peer_memory import peer_memory_bytes
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.run.manifest import default_run_toml, parse_run_config
from tests.protocol.run.test_experts_section import EXPERTS, expert_toml

ME, A, B = PeerId("me"), PeerId("a"), PeerId("b")


def _start() -> StartRecord:
    rosters = {"trunk": (), "expert-0": (A,), "expert-1": (ME, B)}
    units = tuple(StartUnit(UnitName(name), b"", Root(bytes(32)), roster) for name, roster in rosters.items())
    return StartRecord(bytes(32), units, (ME, A, B), 1, 1)


def test_the_owner_comes_first_then_the_disk_then_the_start_then_what_the_run_lacks() -> None:
    others = {A: Holding((0,)), B: Holding((1,))}
    assert choose(Known(3, ME, 1, (0,), (1,), (2,), others)).experts == (0,)
    assert choose(Known(3, ME, 1, (), (1,), (2,), others)).experts == (1,)
    assert choose(Known(3, ME, 1, (), (), (0,), others)).experts == (0,)
    choice = choose(Known(3, ME, 1, others=others))
    assert choice.experts == (2,)
    assert choice.reason == "the run lacks them most: the experts have 1, 1, 0 holders among those listed"


def test_the_start_record_tells_who_founded_what() -> None:
    assert founded(_start(), ME, 2) == (1,)
    assert of_founders(_start(), 2) == {ME: (1,), A: (0,), B: (1,)}
    assert founded(_start(), PeerId("late"), 2) == ()


def test_as_many_experts_as_fit_into_what_the_owner_allows_and_one_at_least() -> None:
    config = parse_run_config(expert_toml(section=EXPERTS + "holdings = 2\n"))
    enough = peer_memory_bytes(config.held_elements)
    assert room_for(config, 0, 0) == 2
    assert room_for(config, enough, 0) == 2
    assert room_for(config, enough - 1, 0) == 1
    assert room_for(config, 1, 0) == 1
    assert room_for(config, 0, 18 * config.held_elements) == 2
    assert room_for(config, 0, 18 * config.held_elements - 1) == 1
    assert room_for(parse_run_config(default_run_toml()), 0, 0) == 0
