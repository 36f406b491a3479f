"""The formulas, against what the code that they describe does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from averaging.data.packing.packing import token_bytes
from averaging.state.residual_files import bound_bytes
from averaging.state.state import STATE_BYTES_PER_VALUE
from protocol.estimates.estimates import (
    archive_bytes,
    host_memory_bytes,
    ledger_bytes,
    packed_bytes,
    run_size,
)
from protocol.estimates.unit_disk import STATE_BYTES_PER_PARAMETER, feedback_disk_bytes, unit_disk_bytes
from protocol.memory_costs import FEEDBACK_BYTES, KEPT_UNIT_BYTES, SCORES_BYTES
from protocol.rounds.lineage.lineage import MAX_DEPTH
from protocol.run.manifest import default_run_toml, parse_run_config
from protocol.tensors.tensor_schema import ChunkGrid


def _disk_bytes(num_parameters: int) -> int:
    return unit_disk_bytes(num_parameters, max(1, num_parameters))


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


@pytest.mark.parametrize(("estimate", "least"), [(_disk_bytes, 20e9), (host_memory_bytes, 8e9)])
def test_a_billion_parameters_more_are_gigabytes_more(estimate: Callable[[int], int], least: float) -> None:
    assert least < estimate(10**9) - estimate(0) < 150e9


def test_the_host_needs_memory_for_its_copy_of_a_unit_where_peers_hold_only_some() -> None:
    for kind, is_more in (("data", False), ("expert", True)):
        size = run_size(parse_run_config(default_run_toml(kind)))
        assert (size.host_bytes > host_memory_bytes(size.num_parameters, has_momentum=False)) is is_more
    assert host_memory_bytes(1000, 100) - host_memory_bytes(1000) == 100 * KEPT_UNIT_BYTES


def test_error_feedback_takes_two_residuals_of_disk() -> None:
    run = run_size(
        parse_run_config(default_run_toml().replace('codec = "int8"', 'codec = "int4"\nerror_feedback = 0.5'))
    )
    without = run_size(parse_run_config(default_run_toml()))
    assert run.peer_bytes - without.peer_bytes == FEEDBACK_BYTES * run.held_parameters
    grids = [ChunkGrid(num_values, chunk) for num_values in (1, 255, 4096, 4097, 10**6) for chunk in (1, 256, 1000)]
    for grid in grids:
        assert feedback_disk_bytes(grid.num_elements, grid.chunk_elements) == bound_bytes(grid), grid


def test_the_ledger_grows_with_rounds_and_members_until_certificates_are_archived() -> None:
    assert ledger_bytes(0, 64) == 0
    assert ledger_bytes(100, 2) == 250_000
    assert ledger_bytes(100, 64) == 3_350_000
    assert archive_bytes(MAX_DEPTH, 64) == 0
    assert archive_bytes(MAX_DEPTH + 10, 64) == 320_000
    assert ledger_bytes(1_000_000, 16) < 250e6 < 8e9 > archive_bytes(1_000_000, 16) > 7e9


def test_a_peer_that_measures_tasks_holds_a_copy_and_a_place_more_of_what_it_trains() -> None:
    task = '\n[[evaluate]]\nname = "facts"\nfile = "built-in:plain-facts"\n'
    for more in ("", "[adapter]\nrank = 4\n"):
        toml = default_run_toml().replace("[run]\n", '[run]\nstart_from = "base"\n', 1) + "\n" + more
        without, measuring = (run_size(parse_run_config(text)) for text in (toml, toml + task))
        assert measuring.peer_bytes == without.peer_bytes + SCORES_BYTES * without.num_parameters
