from __future__ import annotations

import pytest

from averaging.codecs import codec_by_name
from averaging.rounds.keeping import update_bytes
from averaging.state import STATE_BYTES_PER_VALUE
from peer.assembly import replay_at_most
from protocol.tensor_schema import ChunkGrid


@pytest.mark.parametrize("codec_name", ["fp32", "int8", "int4", "top6"])
def test_up_to_that_many_missed_commits_are_fewer_bytes_than_a_state_and_the_commit_that_attests_it(
    codec_name: str,
) -> None:
    results, grid = codec_by_name(codec_name), ChunkGrid(10 * 65_536 + 77, 65_536)
    update, state = update_bytes(results, grid), STATE_BYTES_PER_VALUE * grid.num_elements
    most = replay_at_most(results, grid)
    assert most * update <= state + update < (most + 1) * update
