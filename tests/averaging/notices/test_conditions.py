"""Which notices are due."""

from __future__ import annotations

from averaging.notices.conditions import AGAIN_AFTER_S, Condition, NoticeBook

FULL = Condition("disk_full", "full")


def test_a_condition_is_told_once_however_long_it_holds() -> None:
    book = NoticeBook({})
    assert book.due([FULL], 0.0, 1000.0) == [FULL]
    assert [book.due([FULL], float(s), 1000.0 + s) for s in (5, 4000, 90_000)] == [[], [], []]


def test_a_condition_that_comes_back_is_told_again_after_an_hour_at_the_earliest() -> None:
    book = NoticeBook({})
    assert book.due([FULL], 0.0, 1000.0) == [FULL]
    assert book.due([], 10.0, 1010.0) == []
    assert book.due([FULL], 20.0, 1020.0) == []
    assert book.due([FULL], AGAIN_AFTER_S - 1, 1000.0 + AGAIN_AFTER_S - 1) == []
    assert book.due([FULL], AGAIN_AFTER_S, 1000.0 + AGAIN_AFTER_S) == [FULL]


def test_another_kind_is_told_within_the_hour_and_a_second_of_a_kind_is_not() -> None:
    book, first, second = NoticeBook({}), Condition("peer_banned", "1", 1), Condition("peer_banned", "2", 2)
    assert book.due([first], 0.0, 1000.0) == [first]
    assert book.due([second, FULL], 5.0, 1005.0) == [FULL]
    assert book.due([second], AGAIN_AFTER_S, 1000.0 + AGAIN_AFTER_S) == [second]


def test_a_condition_that_must_hold_for_a_while_is_not_told_before() -> None:
    book, lost = NoticeBook({}), Condition("quorum_lost", "lost", for_s=120.0)
    assert book.due([lost], 0.0, 1000.0) == book.due([lost], 100.0, 1100.0) == []
    assert book.due([], 110.0, 1110.0) == []
    assert book.due([lost], 130.0, 1130.0) == []
    assert book.due([lost], 250.0, 1250.0) == [lost]


def test_a_process_that_is_started_again_keeps_the_hour_unless_the_clock_was_set_back() -> None:
    assert NoticeBook({"disk_full": 990.0}).due([FULL], 0.0, 1000.0) == []
    assert NoticeBook({"disk_full": 5000.0}).due([FULL], 0.0, 1000.0) == [FULL]
