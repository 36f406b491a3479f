from __future__ import annotations

import pytest

from protocol.host.report_pace import IDLE_EVERY_S, MAX_AGAIN_S, REPORTS_PER_S, again_in_s, patience_s, turn_s


@pytest.mark.parametrize("num_peers", [0, 1, 64, 500, 2000, 7500, 100_000])
def test_reports_come_at_one_rate_at_any_number_of_peers(num_peers: int) -> None:
    again = again_in_s(num_peers, is_under_way=True)
    assert num_peers / again <= REPORTS_PER_S
    assert IDLE_EVERY_S <= again <= MAX_AGAIN_S
    assert patience_s(num_peers) == 3 * again


def test_a_few_peers_that_wait_report_more_often_and_many_do_not() -> None:
    assert again_in_s(3, is_under_way=False) < again_in_s(3, is_under_way=True)
    assert again_in_s(2000, is_under_way=False) == again_in_s(2000, is_under_way=True) == 40.0


@pytest.mark.parametrize("num_peers", [3, 64, 500, 2000])
def test_news_of_all_peers_at_once_come_at_no_higher_rate(num_peers: int) -> None:
    again = again_in_s(num_peers, is_under_way=True)
    assert num_peers / turn_s(num_peers, again, is_under_way=True) <= REPORTS_PER_S
    waiting = again_in_s(num_peers, is_under_way=False)
    assert num_peers / turn_s(0, waiting, is_under_way=False) <= REPORTS_PER_S
