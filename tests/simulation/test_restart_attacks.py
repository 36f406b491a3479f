"""Attacks of one admitted member on peers that have just started, at a table of honest peers: none succeeds.

Rules: R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import pytest

from protocol.rounds.messages.messages import Committed
from tests.protocol.rounds.made_commits import alone_on
from tests.protocol.rounds.round_table import UNIT, Table


@pytest.mark.parametrize("longest_interval_s", [5.0, 600.0])
@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("num_peers", [3, 4, 5])
def test_a_commit_that_a_member_signs_alone_is_not_followed_by_peers_that_have_just_started(
    num_peers: int, longest_interval_s: float, *, is_behind: bool
) -> None:
    """With those that it takes along, a member that votes on nothing else would leave the others without a quorum for ever."""
    table = Table(num_peers, longest_interval_s=longest_interval_s)
    table.run_until(lambda: table.all_at(2), 60.0)
    liar, stays, *others = table.live()
    (alone,), index = alone_on(liar.head, [liar], 1), stays.head.index
    assert alone.link.record is not None
    liar.disk.results.update(part.result_hash for part in alone.link.record.slices)
    table.drops = lambda sender, to, message: sender == liar.peer
    for seat in others[: num_peers // 2]:
        newest = seat.disk.chain.pop()[1] if is_behind else seat.disk.chain[-1][1]
        table.restart(seat)
        for certificate in (newest, alone.certificate):
            seat.hear(liar, Committed(UNIT, certificate))
        table.talk()
        if is_behind:
            seat.hear(liar, Committed(UNIT, alone.certificate))
    honest = table.others(liar)
    table.run_until(lambda: all(seat.head.index >= index + 2 for seat in honest), 3000.0)
    for seat in honest:
        assert seat.state.tree.path(alone.link.commit, seat.head.commit) is None
