"""How long many newcomers take for one state at once, in virtual time: `python -m tests.benchmarks.joining_storm [newcomers]`.

A hundred megabytes over lines of 20 Mbit/s each way, from four donors. One newcomer alone is the measure.
"""

from __future__ import annotations

import sys
from typing import Final

import pytest
import trio
import trio.testing

from tests.averaging.rounds.fetching.test_fellows import chunks_stand_for_long_ones, joining_storm

NUM_NEWCOMERS: Final = 50


def main() -> None:
    """Print how long each took, against one alone."""
    num_newcomers = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_NEWCOMERS
    with pytest.MonkeyPatch.context() as patch:
        chunks_stand_for_long_ones(patch)
        for number in (1, num_newcomers):
            clock = trio.testing.MockClock(autojump_threshold=0)
            storm, lines = trio.run(joining_storm, number, clock=clock)
            took_s = sorted(storm.took_s.values())
            given = sum(sent for peer, sent in lines.bytes_up.items() if peer.startswith("donor"))
            print(
                f"{number} newcomers: first {took_s[0]:.0f} s, middle {took_s[len(took_s) // 2]:.0f} s, last {took_s[-1]:.0f} s; "
                f"the donors sent {given / 1e6:.0f} MB"
            )


if __name__ == "__main__":
    main()
