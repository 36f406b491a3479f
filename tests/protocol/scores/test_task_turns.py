from __future__ import annotations

from protocol.ids import PeerId, RunId, UnitName
from protocol.scores.task_turns import items_of_part, turn_order

RUN, UNIT = RunId(b"r" * 32), UnitName("fragment-0")
PEERS = tuple(PeerId(name) for name in "abcd")


def test_the_parts_of_a_task_have_each_item_once_and_are_about_equally_large() -> None:
    for parts in (1, 2, 3, 7):
        cut = [items_of_part("facts", 20, part, parts) for part in range(parts)]
        assert sorted(item for part in cut for item in part) == list(range(20))
        sizes = [len(part) for part in cut]
        assert max(sizes) - min(sizes) <= 1
        assert all(list(part) == sorted(part) for part in cut)


def test_parts_follow_from_the_task_s_name_and_not_from_the_order_of_items() -> None:
    assert items_of_part("facts", 20, 0, 2) == items_of_part("facts", 20, 0, 2)
    assert items_of_part("facts", 20, 0, 2) != items_of_part("other", 20, 0, 2)
    assert items_of_part("facts", 20, 0, 2) not in (tuple(range(0, 20, 2)), tuple(range(10)))


def test_parts_fall_to_different_peers_as_long_as_there_are_enough() -> None:
    for index in range(20):
        first = [turn_order(RUN, UNIT, "facts", index, part, PEERS)[0] for part in range(4)]
        assert sorted(first) == sorted(PEERS)
        assert sorted(turn_order(RUN, UNIT, "facts", index, 2, PEERS)) == sorted(PEERS)


def test_turns_change_with_the_commit_and_the_task_and_are_fair() -> None:
    firsts = [turn_order(RUN, UNIT, "facts", index, 0, PEERS)[0] for index in range(400)]
    assert all(60 <= firsts.count(peer) <= 140 for peer in PEERS)
    assert firsts != [turn_order(RUN, UNIT, "other", index, 0, PEERS)[0] for index in range(400)]
    assert turn_order(RUN, UNIT, "facts", 1, 0, ()) == ()
