"""A peer estimates the cost of a move from its own start, as far as it was measured."""

from __future__ import annotations

import pytest

from averaging.rounds.lineage.round_reports import DownloadProgress
from peer.holdings.move_costs import UNMEASURED, DownloadRate, MoveCosts, as_measured
from protocol.ids import PeerId
from protocol.pipeline.placement.placement import Placement, Server

ME, OTHER = PeerId("me"), PeerId("other")
PLACED = Placement(
    (1.0, 1.0), (800, 800), tuple(Server(peer, 0, 1.0, 10.0, frozenset({0, 1})) for peer in (ME, OTHER)), 20.0, 3600.0
)


def _update(rate: DownloadRate, *words: tuple[float, int], index: int = 3) -> None:
    for now_s, bytes_here in words:
        rate.update(DownloadProgress(index, bytes_here, 4_000, 2), now_s)


def test_a_downloads_rate_is_of_what_came_since_it_began_and_what_was_on_the_disk_is_left_out() -> None:
    rate = DownloadRate()
    assert rate.bytes_per_s is None
    _update(rate, (10.0, 2_000))
    assert rate.bytes_per_s is None
    _update(rate, (12.0, 2_500), (14.0, 4_000))
    assert rate.bytes_per_s == pytest.approx(500.0)


def test_a_download_that_begins_anew_or_is_of_another_state_is_measured_by_itself() -> None:
    rate = DownloadRate()
    _update(rate, (0.0, 0), (1.0, 1_000))
    _update(rate, (100.0, 0), (102.0, 200))
    assert rate.bytes_per_s == pytest.approx(100.0)
    _update(rate, (200.0, 3_000), (201.0, 4_000), index=4)
    assert rate.bytes_per_s == pytest.approx(1_000.0)
    _update(rate, (300.0, 4_000), index=4)
    assert rate.bytes_per_s == pytest.approx(1_000.0), "one that was here already says nothing of the line"


def test_our_own_costs_take_the_place_of_what_is_guessed_of_us_and_of_nobody_else() -> None:
    assert as_measured(PLACED, ME, UNMEASURED) == PLACED
    measured = as_measured(PLACED, ME, MoveCosts(40.0, 5.0))
    assert {server.peer: server.download_bytes_per_s for server in measured.servers} == {ME: 40.0, OTHER: 10.0}
    assert measured.warm_up_s == 5.0
    assert as_measured(PLACED, ME, MoveCosts(warm_up_s=7.0)).servers == PLACED.servers
