from __future__ import annotations

from protocol.identity.names import peer_name
from protocol.ids import PeerId


def test_a_name_is_two_words_and_stays_the_same() -> None:
    name = peer_name(PeerId("12D3KooWEfY2TmhEWp1scTkNTgGcB6sBdaeicFJXJjeBmUpFMyg8"))
    assert len(name.split("-")) == 2
    assert name == peer_name(PeerId("12D3KooWEfY2TmhEWp1scTkNTgGcB6sBdaeicFJXJjeBmUpFMyg8"))


def test_a_hundred_peers_rarely_share_a_name() -> None:
    names = {peer_name(PeerId(f"peer{i}")) for i in range(100)}
    assert len(names) >= 95
