from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.memory_costs import DAEMON_BYTES, HOST_BYTES, MAPPING_BYTES, MOMENTUM_BYTES, PEER_BYTES, TRAINING_BYTES
from protocol.pipeline.placement.peer_memory import peer_memory_bytes

RESULTS = Path(__file__).parents[1] / "benchmarks/results/memory.jsonl"
PROMISED = ": promised by the dry run, over measured"
MOST_PROMISED = 1.25


def test_a_peer_takes_what_its_processes_take_with_their_mapping_counted_once() -> None:
    assert PEER_BYTES == DAEMON_BYTES + MAPPING_BYTES + TRAINING_BYTES


def test_training_in_float32_holds_parameters_gradients_and_two_moments() -> None:
    assert TRAINING_BYTES >= 4 * 4


def test_a_host_or_a_daemon_has_room_for_an_anchor_and_where_there_is_one_a_momentum() -> None:
    assert min(HOST_BYTES, DAEMON_BYTES, MOMENTUM_BYTES) >= 4


RUNS = {
    "390M values: first peer": {},
    "int8: a peer's memory": {},
    "int8 in 4 fragments: a peer's memory": {"has_fragments": True},
    "topk: a peer's memory": {"has_feedback": True},
    "topk without feedback: a peer's memory": {},
}
"""The parts of memory of a peer of each measured run. A paused one is not here: no dry run knows that."""


def _measured() -> list[tuple[str, int, int]]:
    """Of each run of the recorded results: its name, the values of its model, and the most bytes that a peer of it took."""
    rows = map(json.loads, RESULTS.read_text(encoding="utf8").splitlines())
    of_runs = [
        (row["metric"].removesuffix(PROMISED), row["settings"]) for row in rows if row["metric"].endswith(PROMISED)
    ]
    short = [(name.removeprefix("24M to 101M values: "), facts) for name, facts in of_runs]
    return [(name, facts.get("values") or facts["to"], facts["measured"]) for name, facts in short if name in RUNS]


@pytest.mark.parametrize(("name", "num_values", "measured_bytes"), _measured())
def test_what_is_promised_is_no_less_than_what_was_measured_and_at_most_a_quarter_more(
    name: str, num_values: int, measured_bytes: int
) -> None:
    promised_bytes = peer_memory_bytes(num_values, **RUNS[name])
    assert measured_bytes <= promised_bytes <= MOST_PROMISED * measured_bytes
