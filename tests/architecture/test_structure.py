"""Rooms: small, named by one idea, with imports that never go round in a circle."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tests.architecture.source import modules
from tests.architecture.structure import (
    circles,
    class_methods,
    dataclass_fields,
    file_imports,
    files_by_folder,
    room_imports,
    shared_module_names,
)

MOST_FILES = 18
MOST_FIELDS = 12
MOST_METHODS = 25

MANY_FIELDS = {
    "averaging/network/memory/memory_host.py:MemoryHost": 16,
    "averaging/network/pacing/line_rate.py:LineRateSettings": 32,
    "averaging/rounds/exchange/exchange_context.py:ExchangeContext": 18,
    "coordinator/checkpoints/checkpointer.py:CheckpointPlace": 13,
    "coordinator/progress/run_view.py:RunPicture": 20,
    "peer/demo/run.py:Swarm": 14,
    "peer/status/status_board.py:StatusBoard": 28,
    "protocol/host/reports.py:PeerReport": 33,
    "protocol/pipeline/lanes/lane_machine.py:LaneState": 19,
    "protocol/rounds/messages/record.py:CommitRecord": 20,
    "protocol/rounds/messages/record.py:Included": 13,
    "protocol/rounds/messages/messages.py:Proposal": 14,
    "protocol/rounds/messages/messages.py:ResultHeader": 13,
    "protocol/rounds/state.py:Leading": 14,
    "protocol/rounds/state.py:OpenRound": 34,
    "protocol/rounds/state.py:PeerView": 13,
    "protocol/rounds/state.py:RoundConfig": 26,
    "protocol/rounds/state.py:RoundState": 26,
}
"""Dataclasses with more fields than others may have: wire messages and states of machines. None of them may grow."""

MANY_METHODS = {
    "averaging/network/memory/memory_network.py:MemorySwarm": 26,
    "averaging/rounds/exchange/exchange.py:Exchange": 27,
    "averaging/rounds/exchange/exchange_driver.py:ExchangeDriver": 30,
    "averaging/rounds/lineage/unit_chain.py:UnitChain": 40,
    "averaging/rounds/peer_rounds.py:PeerRounds": 39,
    "averaging/rounds/unit_service.py:RoundService": 38,
    "coordinator/ledger/ledger.py:Ledger": 27,
    "coordinator/progress/tracker.py:RunTracker": 38,
    "peer/membership/credential_cache.py:CredentialCache": 29,
    "peer/pipeline/lane_shares.py:StageShares": 36,
    "peer/pipeline/seats/lane_seat.py:LaneSeat": 37,
    "peer/training/local_training.py:LocalTrainer": 27,
    "peer/training/trainer.py:WorkerTrainer": 37,
}
"""Classes with more methods than others may have. None of them may grow."""

BOTH_DAEMONS = {"peer", "coordinator"}


def test_a_room_holds_few_files() -> None:
    assert {folder: count for folder, count in files_by_folder().items() if count > MOST_FILES} == {}


def test_rooms_import_in_no_circle() -> None:
    assert circles(room_imports()) == []


def test_files_import_in_no_circle_not_even_for_types() -> None:
    assert circles(file_imports()) == []


def test_a_circle_of_imports_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_every_room_says_what_it_is_for() -> None:
    rooms = {
        module.path: ast.get_docstring(module.tree) or "" for module in modules() if module.path.endswith("__init__.py")
    }
    assert {path: len(text.splitlines()) for path, text in rooms.items() if not text} == {}


@pytest.mark.parametrize(
    ("counted", "most", "listed"),
    [(dataclass_fields, MOST_FIELDS, MANY_FIELDS), (class_methods, MOST_METHODS, MANY_METHODS)],
    ids=["fields of dataclasses", "methods of classes"],
)
def test_classes_are_small_and_the_large_ones_do_not_grow(
    counted: Callable[[], dict[str, int]], most: int, listed: dict[str, int]
) -> None:
    counts = counted()
    assert {name: count for name, count in counts.items() if count > listed.get(name, most)} == {}
    assert {name for name in listed if counts.get(name, 0) <= most} == set(), "take it from the list"


def test_two_modules_share_a_name_only_where_each_daemon_has_one() -> None:
    """A search for a file name finds one file, or the same thing of peer and coordinator."""
    wrong = {}
    for name, paths in shared_module_names().items():
        tops = [path.split("/")[0] for path in paths]
        if name not in SHARED and (set(tops) - BOTH_DAEMONS or len(tops) != len(set(tops))):
            wrong[name] = paths
    assert wrong == {}


SHARED = {
    "blocks",  # each model family has one
    "config",  # each model family has one, as each daemon has
    "layout",  # each model family has one
    "dry_run",  # what both daemons' dry runs tell alike stands in protocol/estimates
    "machine",  # the round machine, and the volunteer's machine
    "screen",  # of the demo, and of a peer that joins
    "state",  # of the round machine, and of a unit on disk
    "traffic",  # that a run will take, and that a peer has had
}
