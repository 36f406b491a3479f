from __future__ import annotations

from protocol.memory_costs import DAEMON_BYTES, HOST_BYTES, MAPPING_BYTES, MOMENTUM_BYTES, PEER_BYTES, TRAINING_BYTES


def test_a_peer_takes_what_its_processes_take_with_their_mapping_counted_once() -> None:
    assert PEER_BYTES == DAEMON_BYTES + MAPPING_BYTES + TRAINING_BYTES


def test_training_in_float32_holds_parameters_gradients_and_two_moments() -> None:
    assert TRAINING_BYTES >= 4 * 4


def test_a_host_or_a_daemon_has_room_for_an_anchor_and_where_there_is_one_a_momentum() -> None:
    assert min(HOST_BYTES, DAEMON_BYTES, MOMENTUM_BYTES) >= 4
