"""The formulas, against what the code that they describe does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from averaging.codecs import codec_by_name, codec_names
from averaging.data.packing import token_bytes
from averaging.residual_files import bound_bytes
from averaging.rounds.keeping import update_bytes as kept_update_bytes
from averaging.state import STATE_BYTES_PER_VALUE
from protocol.estimates import (
    STATE_BYTES_PER_PARAMETER,
    host_memory_bytes,
    ledger_bytes,
    packed_bytes,
    peer_disk_bytes,
    peer_memory_bytes,
    round_bytes,
    run_size,
    update_bytes,
)
from protocol.manifest import default_run_toml, parse_run_config
from protocol.tensor_schema import ChunkGrid


def test_sizes_are_those_of_the_code_that_writes_them() -> None:
    assert STATE_BYTES_PER_PARAMETER == STATE_BYTES_PER_VALUE
    for vocab_size in (257, 1 << 16, (1 << 16) + 1):
        assert packed_bytes(1000, vocab_size) == 1000 * token_bytes(vocab_size)


@pytest.mark.parametrize("codec", sorted(codec_names()))
@pytest.mark.parametrize(("num_parameters", "chunk"), [(771_328, 16_384), (1, 256), (1000, 300), (512, 256)])
def test_an_update_weighs_what_the_codec_makes_of_its_chunks(codec: str, num_parameters: int, chunk: int) -> None:
    expected = kept_update_bytes(codec_by_name(codec), ChunkGrid(num_parameters, chunk))
    assert update_bytes(codec, num_parameters, chunk) == expected


@pytest.mark.parametrize(
    ("members", "reduces", "expected"),
    [
        (1, True, (0, 0)),
        (1, False, (0, 0)),
        (2, True, (700, 700)),
        (4, True, (1050, 1050)),
        (64, True, (1379, 1379)),
        (2, False, (1000, 400)),
        (64, False, (1000, 400)),
    ],
)
def test_a_round_moves_two_updates_each_way_at_most_and_one_without_a_slice(
    members: int, reduces: bool, expected: tuple[int, int]
) -> None:
    assert round_bytes(1000, 400, members, reduces=reduces) == expected


def test_the_file_of_init_makes_a_round_a_minute_or_every_target() -> None:
    size = run_size(parse_run_config(default_run_toml()))
    assert (size.num_parameters, size.state_bytes, size.update_bytes) == (771_328, 6_170_624, 783_380)
    assert size.result_bytes == size.update_bytes
    assert (size.slow_rounds_per_day, size.fast_tokens_per_s, size.fast_rounds) == (1440, 2048.0, 163)


def test_interval_of_a_day_is_one_round_a_day() -> None:
    text = default_run_toml().replace("longest_interval_s = 60.0", "longest_interval_s = 86400.0")
    assert run_size(parse_run_config(text)).slow_rounds_per_day == 1


@pytest.mark.parametrize("estimate", [peer_memory_bytes, peer_disk_bytes, host_memory_bytes])
def test_a_billion_parameters_more_are_gigabytes_more(estimate: Callable[[int], int]) -> None:
    assert 20e9 < estimate(10**9) - estimate(0) < 130e9


def test_error_feedback_takes_two_residuals_of_memory_and_of_disk() -> None:
    run = run_size(
        parse_run_config(default_run_toml().replace('codec = "int8"', 'codec = "int4"\nerror_feedback = 0.5'))
    )
    assert run.has_feedback
    assert not run_size(parse_run_config(default_run_toml())).has_feedback
    assert peer_memory_bytes(1000, has_feedback=True) == peer_memory_bytes(1000) + 8000
    for num_parameters, chunk in ((10**8, 16_384), (10**6, 256)):
        more_bytes = peer_disk_bytes(num_parameters, has_feedback=True) - peer_disk_bytes(num_parameters)
        assert 0.9 * more_bytes < bound_bytes(ChunkGrid(num_parameters, chunk)) <= more_bytes


def test_the_ledger_grows_with_rounds_and_members() -> None:
    assert ledger_bytes(0, 64) == 0
    assert ledger_bytes(100, 2) == 250_000
    assert ledger_bytes(100, 64) == 3_350_000
