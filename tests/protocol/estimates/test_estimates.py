"""The formulas, against what the code that they describe does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from averaging.data.packing.packing import token_bytes
from averaging.state.residual_files import bound_bytes
from averaging.state.state import STATE_BYTES_PER_VALUE
from protocol.estimates.estimates import (
    STATE_BYTES_PER_PARAMETER,
    host_memory_bytes,
    ledger_bytes,
    packed_bytes,
    peer_disk_bytes,
    run_size,
)
from protocol.run.manifest import default_run_toml, parse_run_config
from protocol.tensors.tensor_schema import ChunkGrid


def test_sizes_are_those_of_the_code_that_writes_them() -> None:
    assert STATE_BYTES_PER_PARAMETER == STATE_BYTES_PER_VALUE
    for vocab_size in (257, 1 << 16, (1 << 16) + 1):
        assert packed_bytes(1000, vocab_size) == 1000 * token_bytes(vocab_size)


def test_the_file_of_init_makes_a_round_a_minute_or_every_target() -> None:
    size = run_size(parse_run_config(default_run_toml()))
    assert (size.num_parameters, size.state_bytes, size.update_bytes) == (771_328, 6_170_624, 783_380)
    assert size.result_bytes == size.update_bytes
    assert (size.slow_rounds_per_day, size.fast_tokens_per_s, size.fast_rounds) == (1440, 2048.0, 163)


def test_interval_of_a_day_is_one_round_a_day() -> None:
    text = default_run_toml().replace("longest_interval_s = 60.0", "longest_interval_s = 86400.0")
    assert run_size(parse_run_config(text)).slow_rounds_per_day == 1


@pytest.mark.parametrize("estimate", [peer_disk_bytes, host_memory_bytes])
def test_a_billion_parameters_more_are_gigabytes_more(estimate: Callable[[int], int]) -> None:
    assert 20e9 < estimate(10**9) - estimate(0) < 130e9


def test_error_feedback_takes_two_residuals_of_disk() -> None:
    run = run_size(
        parse_run_config(default_run_toml().replace('codec = "int8"', 'codec = "int4"\nerror_feedback = 0.5'))
    )
    assert run.has_feedback
    assert not run_size(parse_run_config(default_run_toml())).has_feedback
    for num_parameters, chunk in ((10**8, 16_384), (10**6, 256)):
        more_bytes = peer_disk_bytes(num_parameters, has_feedback=True) - peer_disk_bytes(num_parameters)
        assert 0.9 * more_bytes < bound_bytes(ChunkGrid(num_parameters, chunk)) <= more_bytes


def test_the_ledger_grows_with_rounds_and_members() -> None:
    assert ledger_bytes(0, 64) == 0
    assert ledger_bytes(100, 2) == 250_000
    assert ledger_bytes(100, 64) == 3_350_000
