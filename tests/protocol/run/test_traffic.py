"""The formulas, against what the code that they describe does, and which link is too slow."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from averaging.codecs import codec_by_name, codec_names
from averaging.network.seams.interfaces import MAX_FRAME_BYTES
from averaging.rounds.lineage.retention import update_bytes as kept_update_bytes
from averaging.state.state import STATE_BYTES_PER_VALUE
from protocol.rounds.messages.bounds import MAX_CHUNKS
from protocol.run.traffic import (
    MOST_CHUNK_ELEMENTS,
    LinkNumbers,
    chunks_problem,
    needed_mbit_per_s,
    round_bytes,
    too_slow,
    update_bytes,
)
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import ChunkGrid
from tests.benchmarks.convergence_training import CHUNK, data_parallel_bytes
from tests.benchmarks.convergence_ways import FP32, POINTS, RAMP_FP32, REGIMES, SYNC, SYNC_MUON, Target, Way


def test_the_longest_chunk_of_a_state_fits_into_a_frame() -> None:
    assert (
        MOST_CHUNK_ELEMENTS * STATE_BYTES_PER_VALUE <= MAX_FRAME_BYTES < 2 * MOST_CHUNK_ELEMENTS * STATE_BYTES_PER_VALUE
    )
    assert chunks_problem(1 << 30, MOST_CHUNK_ELEMENTS) is None
    found, expected = chunks_problem(1 << 30, 2 * MOST_CHUNK_ELEMENTS) or ("", "")
    assert "chunk_elements is 262144: no newcomer could fetch the state" in found
    assert expected == "at most 131072"


@pytest.mark.parametrize("num_values", [7 * 10**9, 80 * 10**9, MAX_CHUNKS * 300 + 1])
def test_chunks_that_no_round_could_name_are_refused_with_a_length_that_works(num_values: int) -> None:
    found, expected = chunks_problem(num_values, 256) or ("", "")
    assert f"{num_values} values averaged at once have {-(-num_values // 256)} chunks" in found
    least = int(expected.removeprefix("at least "))
    assert chunks_problem(num_values, least) is None
    assert chunks_problem(num_values, least - 1) is not None


def test_a_unit_for_which_no_chunk_is_long_enough_is_to_be_cut() -> None:
    _, expected = chunks_problem(MAX_CHUNKS * MOST_CHUNK_ELEMENTS + 1, MOST_CHUNK_ELEMENTS) or ("", "")
    assert expected == f"at most {MAX_CHUNKS * MOST_CHUNK_ELEMENTS} values of a unit, as the stages of a pipeline have"


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


SLOW = LinkNumbers(mbit_per_s=1.0, each_way_bytes=26_600_000, longest_interval_s=60.0)


def test_a_link_that_takes_longer_than_a_round_may_is_refused_with_the_numbers_that_would_work() -> None:
    found = too_slow(SLOW)
    assert "round.link_mbit_per_s 1: a round is 26.6 MB up and as much down, which takes this link 213 s" in found
    assert "expected a link of at least 3.55, round.longest_interval_s of at least 213, or" in found
    assert too_slow(replace(SLOW, mbit_per_s=3.55)) == ""
    assert too_slow(replace(SLOW, longest_interval_s=213.0)) == ""


def test_an_interval_that_no_manifest_may_have_is_not_named_as_one_that_would_work() -> None:
    found = too_slow(replace(SLOW, mbit_per_s=0.002, longest_interval_s=86_400.0))
    assert "expected a link of at least 0.003, or a codec" in found
    assert "longest_interval_s of at least" not in found


@pytest.mark.parametrize(
    ("is_blocking", "utilisation", "mbit_per_s", "kept"),
    [(True, 0.95, 1.0, 0.0), (True, 0.95, 10.0, 0.64), (False, 0.95, 3.7, 0.96), (False, 0.5, 3.95, 0.9)],
)
def test_a_link_on_which_measured_rounds_would_outlast_the_longest_interval_is_refused_with_what_would_work(
    is_blocking: bool, utilisation: float, mbit_per_s: float, kept: float
) -> None:
    link = replace(SLOW, mbit_per_s=mbit_per_s, target_utilisation=utilisation, is_blocking=is_blocking)
    found = too_slow(link)
    assert f"with round.target_utilisation {utilisation:g} it would last" in found
    named = {"link of at least": "mbit_per_s", "longest_interval_s of at least": "longest_interval_s"}
    for words, name in named.items():
        number = float(re.search(f"{words} ([0-9.]+[0-9])", found).group(1))  # type: ignore[union-attr]
        assert too_slow(replace(link, **{name: number})) == ""  # type: ignore[arg-type]
        assert too_slow(replace(link, **{name: 0.98 * number})) != ""  # type: ignore[arg-type]
    assert ("target_utilisation of at" in found) == bool(kept)
    if kept:
        assert f"target_utilisation of at {'most' if is_blocking else 'least'} {kept:g}" in found
        assert too_slow(replace(link, target_utilisation=kept)) == ""


def test_the_slowest_links_and_shares_that_a_manifest_may_name_are_refused_in_a_line_that_can_be_read() -> None:
    slowest = replace(SLOW, mbit_per_s=1e-6, longest_interval_s=1.0)
    for utilisation, is_blocking in ((0.0, False), (0.01, False), (1.0 - 2.0**-53, True)):
        found = too_slow(replace(slowest, target_utilisation=utilisation, is_blocking=is_blocking))
        assert "expected a link of at least" in found
        assert len(found) < 400


def test_a_link_that_is_just_too_slow_does_not_seem_to_be_fast_enough() -> None:
    assert "takes this link 61 s of round.longest_interval_s 60:" in too_slow(replace(SLOW, mbit_per_s=3.53))


@pytest.mark.parametrize(
    ("each_way_bytes", "interval_s", "needed"),
    [(7_500_000, 60.0, 1.0), (7_500_001, 60.0, 1.01), (75_000, 600.0, 0.001), (1_234_000_000, 10.0, 988.0)],
)
def test_the_needed_link_is_rounded_up_to_what_carries_a_round(
    each_way_bytes: int, interval_s: float, needed: float
) -> None:
    assert needed_mbit_per_s(each_way_bytes, interval_s) == needed
    assert too_slow(LinkNumbers(needed, each_way_bytes, interval_s)) == ""


# --- what the table of losses is held to --------------------------------------------------------------------------------------


def _times_fewer(way: Way) -> float:
    """Bytes of data-parallel training over those of a way, by its schedule alone."""
    regime, done, num_rounds = REGIMES["L"], 0, 0
    while done < regime.num_steps:
        done += way.ramp.local_steps(done)
        num_rounds += 1
    size = model_schema(regime.model).num_elements
    up, down = (update_bytes(codec, size, CHUNK) for codec in (way.codec, way.result_codec))
    each_way, _ = round_bytes(up, down, regime.num_peers, reduces=True)
    return data_parallel_bytes(regime) / (num_rounds * each_way)


@pytest.mark.parametrize("fewer", [100.0, 400.0])
def test_schedules_that_are_judged_at_so_many_times_fewer_bytes_send_as_few(fewer: float) -> None:
    judged = [point.way for point in POINTS for target in point.targets if target.fewer == fewer]
    assert judged
    assert min(map(_times_fewer, judged)) >= fewer


HELD = (
    ("ramp e3m0", Target(SYNC, 3.0, 100)),
    ("ramp Muon e3m0", Target(SYNC, 6.0, 400)),
    ("H int8", Target(FP32, 0.3)),
    ("H int4", Target(FP32, 0.3)),
    ("ramp e3m0", Target(RAMP_FP32, 0.3)),
    ("topk feedback", Target(RAMP_FP32, 1.0)),
    ("streaming fragments e3m0", Target(FP32, 0.0)),
    ("Muon e3m0", Target(SYNC, 0.0)),
    ("Muon e3m0", Target(SYNC_MUON, 3.0)),
)


@pytest.mark.parametrize(("words", "target"), HELD)
def test_every_codec_schedule_and_optimizer_of_the_table_is_held_to_its_target(words: str, target: Target) -> None:
    held = [point.way.name for point in POINTS if target in point.targets]
    assert any(all(word in name for word in words.split()) for name in held), held


def test_nothing_in_the_table_is_held_to_a_wider_target() -> None:
    assert {target for point in POINTS for target in point.targets} == {target for _, target in HELD}
