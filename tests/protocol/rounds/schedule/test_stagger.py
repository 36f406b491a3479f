from __future__ import annotations

from protocol.rounds.schedule.stagger import Stagger

ALONE = Stagger()


def test_a_unit_that_is_alone_keeps_its_target_whatever_was_offered() -> None:
    assert ALONE.due_at(1000, 0) == ALONE.due_at(1000, 7) == 1000
    assert ALONE.interval_s(60.0, 0) == ALONE.interval_s(60.0, 7) == 60.0
    assert ALONE.next_target(1000, 1000, 4000) == 1000


def test_first_rounds_of_the_units_divide_one_rounds_work_evenly() -> None:
    units = [Stagger(place, 4) for place in range(4)]
    assert [unit.due_at(1000, 0) for unit in units] == [250, 500, 750, 1000]
    assert [unit.due_at(1000, 1) for unit in units] == [1000] * 4
    assert [unit.interval_s(60.0, 0) for unit in units] == [15.0, 30.0, 45.0, 60.0]
    assert Stagger(0, 4).due_at(2, 0) == 1


def test_what_a_round_was_opened_too_late_is_taken_off_the_next_one() -> None:
    assert Stagger(1, 4).next_target(1000, 500, 530) == 970
    assert Stagger(1, 4).next_target(1000, 500, 500) == 1000
    assert Stagger(1, 4).next_target(1000, 500, 200) == 1000, "one that time made due is no reason to wait longer"


def test_a_round_is_never_cut_to_less_than_half() -> None:
    assert Stagger(1, 4).next_target(1001, 500, 5000) == Stagger(1, 4).shortest(1001) == 501
    assert ALONE.shortest(1001) == 1001


def test_units_that_are_opened_late_by_different_amounts_do_not_drift_towards_each_other() -> None:
    late, times = (7, 0, 3, 11), []
    for place in range(4):
        unit, due_at, now, opened = Stagger(place, 4), Stagger(place, 4).due_at(1000, 0), 0, []
        for _ in range(50):
            now += due_at + late[place]
            opened.append(now)
            due_at = unit.next_target(1000, due_at, due_at + late[place])
        times.append(opened[-1])
    assert [time - 49_000 - late[place] for place, time in enumerate(times)] == [250, 500, 750, 1000]


def test_units_that_fell_due_together_are_at_their_places_after_one_round() -> None:
    units, due_at = [Stagger(place, 4) for place in range(4)], 1000
    # everybody was restarted: all have the same tokens ready, and the first unit's next round is a round's work away
    targets = [unit.next_target(1000, due_at, 1000, until_first=1000) for unit in units]
    assert targets == [1000, 1250, 500, 750]
    places = sorted(target % 1000 for target in targets)
    assert places == [0, 250, 500, 750]


def test_a_unit_at_its_place_keeps_its_target_and_one_beside_it_comes_back_by_the_shorter_way() -> None:
    third = Stagger(2, 4)
    assert third.next_target(1000, 1000, 1000, until_first=500) == 1000
    assert third.next_target(1000, 1000, 1000, until_first=400) == 900
    assert third.next_target(1000, 1000, 1000, until_first=620) == 1120
    assert third.next_target(1000, 1000, 1030, until_first=470) == 970, (
        "opened too late, as without looking at the first"
    )
    assert third.next_target(1000, 1000, 1000, until_first=-500) == 1000, (
        "the first one's is under way, half a round late"
    )


def test_whatever_the_first_unit_does_targets_stay_between_a_half_and_one_and_a_half_of_a_rounds_work() -> None:
    unit = Stagger(3, 5)
    targets = {unit.next_target(1001, 1001, 1001, until_first) for until_first in range(-2500, 2500, 7)}
    assert unit.shortest(1001) <= min(targets)
    assert max(targets) <= unit.longest(1001) == 1501
    assert ALONE.longest(1001) == 1001
