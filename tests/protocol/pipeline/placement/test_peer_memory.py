from __future__ import annotations

from protocol.pipeline.placement.peer_memory import peer_memory_bytes


def test_a_billion_parameters_more_are_gigabytes_more() -> None:
    assert 20e9 < peer_memory_bytes(10**9) - peer_memory_bytes(0) < 130e9


def test_error_feedback_takes_two_residuals_and_what_is_being_written_of_memory() -> None:
    assert peer_memory_bytes(1000, has_feedback=True) == peer_memory_bytes(1000) + 10000


def test_tasks_take_a_copy_and_a_place_beside_a_snapshot_of_memory() -> None:
    assert peer_memory_bytes(1000, has_tasks=True) == peer_memory_bytes(1000) + 8000
