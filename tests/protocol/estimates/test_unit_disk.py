from __future__ import annotations

import pytest

from averaging.rounds.lineage import retention
from averaging.state.state import STATE_BYTES_PER_VALUE
from peer.checks.dry_run_core import OfferedResources, peer_estimates
from peer.status.status import PeerStatus
from peer.status.status_text import status_lines
from protocol.estimates.estimates import checkpoint_fetch_bytes, run_size
from protocol.estimates.unit_disk import (
    SMALL_STATE_BYTES,
    STATE_BYTES_PER_PARAMETER,
    Occasion,
    asked_spacing,
    commit_write_bytes,
    generation_spacing,
    is_generation_due,
    max_updates,
    num_kept_updates,
    unit_disk_bytes,
)
from protocol.run.manifest import default_run_toml, parse_run_config


def test_the_limit_is_ten_states_and_twice_the_kept_updates_with_some_of_open_rounds() -> None:
    assert STATE_BYTES_PER_PARAMETER == STATE_BYTES_PER_VALUE
    assert num_kept_updates(1000, 1000) == 32
    assert max_updates(32) == 69
    assert unit_disk_bytes(1000, 1000) == 80_000 + 69_000
    assert unit_disk_bytes(1000, 1000, feedback_bytes=5) == unit_disk_bytes(1000, 1000) + 5
    assert retention.KEPT_UPDATE_SNAPSHOTS * STATE_BYTES_PER_VALUE == 32


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_dry_run_and_status_tell_one_limit_of_the_disk(codec: str) -> None:
    run = parse_run_config(default_run_toml().replace('codec = "int8"', f'codec = "{codec}"'))
    bound_bytes = run_size(run).disk_bytes
    dry = {e.name: e.expected for e in peer_estimates(run, 5_000_000, OfferedResources(2_000_000_000, False, 0.0))}
    status = PeerStatus(peer="12D3KooW", name="calm-otter", disk_bytes=1_000_000, disk_files_bound_bytes=bound_bytes)
    (told,) = (line.partition(", ")[2] for line in status_lines(status) if line.startswith("disk: "))
    assert dry["disk"] == f"{told}, and 5.0 MB of data"


BILLION = 10**9


def _spacing(bytes_per_value: float, num_values: int = BILLION) -> int:
    update_bytes = int(bytes_per_value * num_values)
    return generation_spacing(num_values, update_bytes, num_kept_updates(num_values, update_bytes))


@pytest.mark.parametrize(("bytes_per_value", "spacing"), [(4.0, 4), (2.0, 8), (1.016, 16), (0.516, 31), (0.1, 160)])
def test_states_are_so_rare_that_they_cost_half_of_the_results_and_any_head_follows_from_the_last_but_one(
    bytes_per_value: float, spacing: int
) -> None:
    assert _spacing(bytes_per_value) == spacing
    assert STATE_BYTES_PER_PARAMETER / spacing <= 0.505 * bytes_per_value
    assert 2 * spacing - 1 <= num_kept_updates(BILLION, int(bytes_per_value * BILLION))


def test_small_states_are_written_at_every_commit_and_others_at_the_first_that_is_worth_it() -> None:
    small = SMALL_STATE_BYTES // STATE_BYTES_PER_PARAMETER
    assert [_spacing(1.0, num_values) for num_values in (1, small, small + 1)] == [1, 1, 16]
    assert generation_spacing(small + 1, small + 1, num_kept=5) == 3, "the kept updates lead there"
    assert generation_spacing(small + 1, 100 * small, num_kept=0) == 1


@pytest.mark.parametrize(
    ("occasion", "newest", "due"),
    [
        (Occasion.COMMIT, 0, [16, 17, 18]),
        (Occasion.COMMIT, 15, [19, 20, 21]),
        (Occasion.COMMIT, 13, [17, 18, 19]),
        (Occasion.COMMIT, 16, [32, 33, 34]),
        (Occasion.ASKED, 16, [20, 21, 22]),
        (Occasion.WANTED, 16, [17, 18, 19]),
        (Occasion.REPLACED, 16, [16, 17, 18]),
    ],
)
def test_a_state_is_due_at_the_same_commits_for_all_and_sooner_for_who_asks(
    occasion: Occasion, newest: int, due: list[int]
) -> None:
    assert asked_spacing(16) == 4
    found = [index for index in range(newest, 64) if is_generation_due(16, index, newest, occasion)]
    assert found[:3] == due
    assert found == list(range(found[0], 64)), "a state that was refused stays due"


@pytest.mark.parametrize(("spacing", "asked"), [(1, 1), (4, 1), (8, 2), (16, 4), (160, 4)])
def test_who_asks_again_and_again_gets_a_new_state_after_a_few_commits(spacing: int, asked: int) -> None:
    assert asked_spacing(spacing) == asked


def test_a_commit_writes_its_results_and_a_share_of_a_state() -> None:
    assert commit_write_bytes(BILLION, BILLION, asked_every=0) == 1.5 * BILLION
    assert commit_write_bytes(BILLION, BILLION, asked_every=1000) == 1.5 * BILLION
    assert commit_write_bytes(BILLION, BILLION, asked_every=8) == 2 * BILLION
    assert commit_write_bytes(BILLION, BILLION, asked_every=1) == 3 * BILLION, "at most after every fourth"
    assert commit_write_bytes(1000, 1000, asked_every=1000) == 9000


def test_a_run_in_small_fragments_writes_them_at_every_round() -> None:
    text = default_run_toml()
    run = parse_run_config(text)
    whole = run_size(run)
    parts = run_size(parse_run_config(text.replace("[round]\n", '[round]\nmode = "streaming"\nfragments = 4\n')))
    with_feedback = text.replace('codec = "int8"', 'codec = "int8"\nerror_feedback = 0.5')
    seldom = parse_run_config(text.replace("every_rounds = 5", "every_rounds = 8"))
    rare = run_size(seldom)
    assert whole.write_bytes == whole.result_bytes + -(-whole.state_bytes // 16), "the host replays five results"
    assert checkpoint_fetch_bytes(run) == 5 * whole.result_bytes
    assert rare.write_bytes == whole.result_bytes + -(-whole.state_bytes // 8), "the host asks after every eighth"
    assert checkpoint_fetch_bytes(seldom) == whole.state_bytes
    assert parts.write_bytes >= parts.result_bytes + parts.state_bytes
    assert run_size(parse_run_config(with_feedback)).write_bytes > whole.write_bytes + 8 * whole.num_parameters
