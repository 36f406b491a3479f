"""The rows of the leaderboard."""

from __future__ import annotations

from coordinator.policy.standing_core import WorkDay
from coordinator.status.leaders import MOST_LEADERS, leaders_of
from protocol.identity.chosen_name import ChosenName
from protocol.identity.identity import Identity
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId

ONE, OTHER = Identity(b"1" * 32).peer_id, Identity(b"2" * 32).peer_id


def test_whoever_has_most_counted_tokens_is_first_with_kept_share_and_days() -> None:
    days = {ONE: [WorkDay(1, 100, 100)], OTHER: [WorkDay(1, 100, 200), WorkDay(2, 50, 50), WorkDay(3, 0, 50)]}
    rows = leaders_of(days, {OTHER: ChosenName("anna", "oak")}, {OTHER: PeerStanding.MEMBER})
    assert [row["name"] for row in rows] == [peer_name(OTHER), peer_name(ONE)]
    assert rows[0] == {
        "name": peer_name(OTHER),
        "nickname": "anna",
        "team": "oak",
        "tokens": 150,
        "kept_percent": 50.0,
        "num_days": 2,
        "standing": "member",
    }
    assert (rows[1]["nickname"], rows[1]["standing"]) == ("", "keeper")


def test_a_long_board_is_cut() -> None:
    days = {PeerId(Identity(bytes([n]) * 32).peer_id): [WorkDay(1, n, n)] for n in range(1, MOST_LEADERS + 10)}
    rows = leaders_of(days, {}, {})
    assert len(rows) == MOST_LEADERS
    assert rows[0]["tokens"] == MOST_LEADERS + 9
