from __future__ import annotations

import pytest

from averaging.rounds.lineage import retention
from averaging.state.state import STATE_BYTES_PER_VALUE
from peer.checks.dry_run_core import OfferedResources, peer_estimates
from peer.status.status import PeerStatus
from peer.status.status_text import status_lines
from protocol.estimates.estimates import run_size
from protocol.estimates.unit_disk import STATE_BYTES_PER_PARAMETER, max_updates, num_kept_updates, unit_disk_bytes
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
