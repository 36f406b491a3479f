from __future__ import annotations

from types import MappingProxyType

from averaging.rounds.named_peers import with_names
from protocol.frozen import replace
from protocol.identity.names import peer_name
from protocol.ids import PeerId, short
from protocol.rounds.state import PeerView
from tests.protocol.rounds.round_table import Table


def test_reasons_of_rounds_name_peers_as_every_screen_does() -> None:
    other = PeerId("12D3KooWOtherABCDEF")
    state = replace(Table(1).live()[0].state, peers=MappingProxyType({other: PeerView(other, heard_at_s=1.0)}))
    text = f"round 3 of {short(other)} waits for {short(state.config.me.peer)}, 123456 tokens"
    me, other_name = peer_name(state.config.me.peer), peer_name(other)
    assert with_names(text, state) == f"round 3 of {other_name} waits for {me}, 123456 tokens"
