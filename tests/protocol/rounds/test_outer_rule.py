from __future__ import annotations

import pytest

from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.chain import ChainLink
from protocol.rounds.messages import OuterStep
from protocol.rounds.outer_rule import PLAIN_MEAN, outer_of_round

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
