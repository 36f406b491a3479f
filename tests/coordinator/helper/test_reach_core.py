"""When it is said that the peers cannot meet."""

from __future__ import annotations

from coordinator.helper.reach_core import PATIENCE_S, Reach

HIDDEN = [True, True, False]


def test_most_peers_hidden_without_a_helper_is_warned_of_once_a_helper_had_the_time_to_start() -> None:
    reach = Reach().after_look(HIDDEN, 0, 10.0)
    assert (reach.num_peers, reach.num_hidden, reach.warning) == (3, 2, "")
    assert reach.after_look(HIDDEN, 0, 9.0 + PATIENCE_S).warning == ""
    assert reach.after_look(HIDDEN, 0, 10.0 + PATIENCE_S).warning.startswith("nobody can connect to 2 of 3 peers")


def test_a_helper_at_work_or_a_peer_that_can_be_connected_to_ends_the_warning_and_its_patience() -> None:
    apart = Reach().after_look(HIDDEN, 0, 0.0).after_look(HIDDEN, 0, PATIENCE_S)
    for are_hidden, num_helpers in ((HIDDEN, 1), ([True, False], 0), ([True], 0), ([], 0)):
        mended = apart.after_look(are_hidden, num_helpers, PATIENCE_S + 1)
        assert (mended.warning, mended.apart_since_s) == ("", None)
        assert mended.after_look(HIDDEN, 0, PATIENCE_S + 2).warning == ""
