from __future__ import annotations

import pytest

from averaging.codecs import codec_by_name
from averaging.rounds.keeping import update_bytes
from averaging.state import STATE_BYTES_PER_VALUE
from peer.assembly import replay_at_most, unit_pace
from protocol.ids import UnitName
from protocol.manifest import default_run_toml, parse_run_config
from protocol.rounds.stagger import UNSTAGGERED
from protocol.tensor_schema import ChunkGrid
from tests.protocol.test_experts_section import expert_toml


@pytest.mark.parametrize("codec_name", ["fp32", "int8", "int4", "top6"])
def test_up_to_that_many_missed_commits_are_fewer_bytes_than_a_state_and_the_commit_that_attests_it(
    codec_name: str,
) -> None:
    results, grid = codec_by_name(codec_name), ChunkGrid(10 * 65_536 + 77, 65_536)
    update, state = update_bytes(results, grid), STATE_BYTES_PER_VALUE * grid.num_elements
    most = replay_at_most(results, grid)
    assert most * update <= state + update < (most + 1) * update


def test_an_experts_rounds_take_its_share_of_the_trunks_tokens_from_the_first_one_on() -> None:
    config = parse_run_config(expert_toml("target_tokens = 1000"))
    units = [UnitName(name) for name in ("trunk", "expert-0", "expert-1")]
    assert unit_pace(config, units[0], units) == (config.round_target, UNSTAGGERED)
    for expert in units[1:]:
        target, stagger = unit_pace(config, expert, units)
        assert target.most_tokens == 500
        assert stagger.due_at(1000, 0) == 500  # as the start record says for all units
        assert stagger.due_at(500, 1) == 500
        assert stagger.next_target(500, 500, 500) == 500
    whole = parse_run_config(default_run_toml())
    target, stagger = unit_pace(whole, UnitName("fragment-0"), [UnitName("fragment-0")])
    assert (target, stagger.num_units) == (whole.round_target, 1)
