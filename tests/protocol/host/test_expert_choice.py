"""The choice of experts: all peers share them out alike, and an owner's wishes are checked."""

from __future__ import annotations

import itertools

import pytest

from protocol.errors import ConfigError
from protocol.host.expert_choice import Holding, believes_claims, check_experts, holders, parse_experts, share_out
from protocol.ids import PeerId

A, B, C, D = (PeerId(name) for name in "abcd")
WARY = PeerId("e")
"""Counts nothing that is merely said; `D` does."""

OPEN = Holding()


def test_founders_are_shared_out_evenly_in_the_order_of_their_ids() -> None:
    assert share_out(2, {D: OPEN, A: OPEN, C: OPEN, B: OPEN}) == {A: (0,), B: (1,), C: (0,), D: (1,)}


def test_who_has_room_takes_what_nobody_holds_and_no_more() -> None:
    roomy = Holding(room=2)
    assert share_out(3, {A: OPEN, B: roomy}) == {A: (0,), B: (1, 2)}
    assert share_out(2, {A: roomy, B: roomy}) == {A: (0,), B: (1,)}
    assert share_out(4, {A: roomy}) == {A: (0, 1)}
    assert share_out(1, {A: Holding(room=8)}) == {A: (0,)}


def test_what_was_decided_stands_and_a_joiner_takes_what_the_run_lacks() -> None:
    held = {A: Holding((0,)), B: Holding((0, 1)), C: Holding((1,))}
    assert share_out(3, {**held, D: OPEN})[D] == (2,)
    assert share_out(3, {**held, D: OPEN}) == {A: (0,), B: (0, 1), C: (1,), D: (2,)}
    assert share_out(2, {**held, D: OPEN})[D] == (0,)


def test_between_experts_that_as_many_hold_what_is_merely_claimed_decides() -> None:
    held = {A: Holding((0,)), B: Holding((1,))}
    for peer in (D, WARY):
        assert share_out(2, {**held, peer: OPEN}, (3, 1))[peer] == (1,)
        assert share_out(2, {**held, peer: OPEN}, (1, 1))[peer] == (0,)


def test_half_of_all_peers_count_what_is_merely_claimed_so_that_neither_liars_nor_their_absence_decide_for_all() -> (
    None
):
    held = {A: Holding((0,)), B: Holding((1,))}
    assert (believes_claims(D), believes_claims(WARY)) == (True, False)
    assert share_out(3, {**held, WARY: OPEN}, (0, 0, 9))[WARY] == (2,), "nobody is known to hold it"
    assert share_out(3, {**held, D: OPEN}, (0, 0, 9))[D] == (0,)
    assert share_out(3, {**held, D: OPEN}, (0, 0, 2))[D] == (0,)
    assert share_out(3, {**held, D: OPEN}, (0, 0, 1))[D] == (2,), "as many, and nobody is known to hold it"
    believing = [believes_claims(PeerId(f"peer {number}")) for number in range(400)]
    assert 160 <= sum(believing) <= 240


def test_newcomers_who_come_one_after_another_while_the_first_still_downloads_do_not_all_take_one_expert() -> None:
    held, claims = {A: Holding((0,)), B: Holding((1,))}, [0, 0, 0]
    for number in range(60):
        late = PeerId(f"late {number}")
        (expert,) = share_out(3, {**held, late: OPEN}, claims)[late]
        claims[expert] += 1  # it says so, and has nothing to show yet
    assert sum(claims) == 60
    assert max(claims) == claims[2] <= 45, "nobody was known to hold it"
    assert min(claims) >= 7


def test_two_who_join_at_once_and_see_each_other_take_different_experts() -> None:
    seen = {A: Holding((0,)), C: OPEN, D: OPEN}
    for order in itertools.permutations(seen):
        shared = share_out(3, {peer: seen[peer] for peer in order})
        assert (shared[C], shared[D]) == ((1,), (2,))


def test_a_peer_that_claims_an_expert_that_is_none_changes_nothing_for_others() -> None:
    assert share_out(2, {A: Holding((7,)), B: OPEN})[B] == (0,)


def test_holders_are_told_of_every_expert_also_of_one_without_any() -> None:
    assert holders(3, {B: (0,), A: (0, 1)}) == ((A, B), (A,), ())


def test_an_owner_names_experts_by_their_numbers() -> None:
    assert parse_experts("1, 0") == (0, 1)


@pytest.mark.parametrize("text", ["one", "0,,1", "-1", "0;1", "0,0", "99999", "٣"])
def test_what_is_no_number_of_an_expert_is_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError, match="peer setting expert is"):
        parse_experts(text)


def test_experts_that_a_run_has_not_are_refused() -> None:
    check_experts((), 0, 0)
    check_experts((0, 1), 2, 2)
    with pytest.raises(ConfigError, match=r"expert 2 of a run of 2; expected 0 to 1"):
        check_experts((2,), 2, 1)
    with pytest.raises(ConfigError, match=r"expert 0 of a run without experts"):
        check_experts((0,), 0, 0)
    with pytest.raises(ConfigError, match=r"2 experts; expected at most 1 in this run"):
        check_experts((0, 1), 2, 1)
