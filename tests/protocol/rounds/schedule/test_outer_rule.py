from __future__ import annotations

from functools import partial

import pytest

from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import OuterStep
from protocol.rounds.schedule.outer_rule import PLAIN_MEAN, outer_of_round
from protocol.rounds.schedule.target import RoundTarget
from tests.protocol.rounds.round_table import TARGET_TOKENS, Table

NESTEROV = OuterStep("nesterov", 0.7, 0.9)


def _base(target_tokens: int, num_members: int) -> ChainLink:
    roster = tuple(PeerId(f"peer {number}") for number in range(num_members))
    return ChainLink(UnitName("fragment-0"), CommitId(bytes(32)), 3, roster, 10_000, target_tokens)


@pytest.mark.parametrize(
    ("target_tokens", "num_members", "expected"),
    [(6399, 1, PLAIN_MEAN), (6400, 1, NESTEROV), (12_799, 2, PLAIN_MEAN), (12_800, 2, NESTEROV)],
)
def test_a_round_has_momentum_once_each_member_has_enough_steps_in_it(
    target_tokens: int, num_members: int, expected: OuterStep
) -> None:
    assert outer_of_round(NESTEROV, 6400, _base(target_tokens, num_members)) == expected


def test_without_a_bound_every_round_has_momentum() -> None:
    assert outer_of_round(NESTEROV, 0, _base(1, 8)) == NESTEROV


def test_rounds_of_a_ramp_take_the_plain_mean_until_members_have_enough_steps_and_all_ack_both() -> None:
    ramp = RoundTarget(450, 40, ramp_share=0.5)
    table = Table(3, outer=NESTEROV, momentum_from_tokens=60, target=ramp)
    due, taken = [TARGET_TOKENS], []
    for index in range(1, 5):
        table.run_until(partial(table.all_at, index))
        (head,) = {seat.head for seat in table.live()}
        assert head.record is not None
        due.append(head.target_tokens)
        taken.append(head.record.outer)
    assert taken == [NESTEROV if tokens >= 3 * 60 else PLAIN_MEAN for tokens in due[:-1]]
    assert set(taken) == {NESTEROV, PLAIN_MEAN}
