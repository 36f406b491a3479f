"""The bytes that peers send between two rounds: the budget of an idle peer holds in the first seconds after a commit, too."""

from __future__ import annotations

from typing import Final

from tests.benchmarks.allreduce_rows import IDLE_BYTES_PER_S
from tests.benchmarks.idle_memory import SPANS_S, said_in_memory

NUM_PEERS: Final = 12
MOST_PEERS: Final = 32
"""With so many the budget is to hold."""


def test_the_peer_that_says_most_after_a_commit_stays_within_its_part_of_the_budget_of_an_idle_one() -> None:
    (said,) = said_in_memory(NUM_PEERS, SPANS_S[:1])
    assert said.most * MOST_PEERS / NUM_PEERS <= IDLE_BYTES_PER_S
    assert said.mean < said.most, "the next opener hears most"
