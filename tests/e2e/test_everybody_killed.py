"""Host and peers are killed at once in the middle of training; started again, they go on from the same root.

The staging is the benchmark's (tests/benchmarks/everybody_killed.py), which does it fifty times at random moments.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from coordinator.progress.restart_report import GATHER_S
from tests.benchmarks.everybody_killed import MOST_ROUNDS_LOST, RESTARTED, end, go_on, newest_reported, start_again
from tests.benchmarks.processes import open_children
from tests.benchmarks.recovery_swarm import TINY, await_whole, open_swarm, run_config
from tests.benchmarks.swarm import wait_until
from tests.e2e.forked_children import ForkedChildren
from tests.forked import Forked

NUM_PEERS = 2
INTERVAL_S = 1.0
SLOWDOWN = 50.0
WITHIN_S = 200.0
ROUNDS_BEFORE = 2
SENTENCE = "; nothing was lost"


def test_everybody_killed_at_once_stands_up_with_nothing_torn_and_goes_on_from_one_root(
    tmp_path: Path, forked: Forked
) -> None:
    config = run_config(TINY, NUM_PEERS, INTERVAL_S, every_rounds=1)
    children_of = partial(ForkedChildren, forked=forked)
    with (
        open_children(tmp_path / "logs", children_of) as children,
        open_swarm(children, tmp_path, config, SLOWDOWN) as swarm,
    ):
        await_whole(swarm, ROUNDS_BEFORE)
        death = end(swarm, newest_reported(swarm))
        assert death.torn == []

        start_again(swarm, death)
        assert death.lost is not None
        assert death.lost <= MOST_ROUNDS_LOST
        assert death.has_sentence, "a peer that does not say where it restarts"
        assert go_on(swarm), "no common root, or no further round"
        reported = wait_until(lambda: RESTARTED in swarm.host.output(), GATHER_S + WITHIN_S)
        assert reported, f"a host that does not say what was lost: {swarm.host.output()[-3000:]}"
        assert death.lost or SENTENCE in swarm.host.output(), swarm.host.output()[-3000:]
