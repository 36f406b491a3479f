"""Peers that came by the open door have no vote until they are keepers; all others have one."""

from __future__ import annotations

from coordinator.presence.junior_standings import JuniorStandings
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId

STRANGER, MEMBER, KEEPER = PeerId("stranger"), PeerId("member"), PeerId("keeper")


def test_only_peers_that_did_not_come_by_the_door_have_a_vote() -> None:
    standings = JuniorStandings()
    assert standings.has_vote(STRANGER)
    given = {STRANGER: PeerStanding.STRANGER, MEMBER: PeerStanding.MEMBER}
    standings.take(given)
    given.clear()
    assert [standings.has_vote(peer) for peer in (STRANGER, MEMBER, KEEPER)] == [False, False, True]
    standings.take({})
    assert standings.has_vote(MEMBER)
    assert standings.juniors == {}
