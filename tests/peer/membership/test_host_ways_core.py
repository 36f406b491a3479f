"""Ports of the host in an invite, and the sentence about those that do not answer."""

from __future__ import annotations

from typing import Final

from averaging.network.seams.bulk_address import BulkAddress
from peer.membership.host_ways_core import Purpose, Tried, closed_sentence, data_ports, host_in, peer_ports
from protocol.ids import PeerId

HOST: Final = PeerId("12D3KooWhost")
BOOTSTRAP: Final = (
    f"/ip4/10.9.0.2/tcp/4101/p2p/{HOST}",
    f"/ip6/fd00:9::2/tcp/4101/p2p/{HOST}",
    f"/dns/host.example/tcp/4101/p2p/{HOST}",
    "/ip4/10.9.0.3/tcp/4101/p2p/another",
    f"/ip4/10.9.0.4/tcp/1/p2p/relay/p2p-circuit/p2p/{HOST}",
    f"/ip4/10.9.0.2/udp/4101/quic/p2p/{HOST}",
    "nonsense",
)
FOUR, SIX = BulkAddress("10.9.0.2", 4101), BulkAddress("fd00:9::2", 4101)


def test_ports_are_the_hosts_own_and_those_of_data_follow() -> None:
    ports = peer_ports(BOOTSTRAP, HOST)
    assert ports == (FOUR, SIX, BulkAddress("host.example", 4101))
    assert data_ports(ports[:2], ("10.9.0.2:4100",)) == (BulkAddress("10.9.0.2", 4102), BulkAddress("fd00:9::2", 4102))
    assert data_ports(ports, ("[fd00:9::2]:4102",)) == ()
    assert data_ports((BulkAddress("h", 65_535),), ()) == ()


def test_host_is_named_by_an_invite_whose_addresses_are_all_its_own() -> None:
    assert host_in(BOOTSTRAP[:3]) == HOST
    assert host_in(BOOTSTRAP) is None
    assert host_in(()) is None


def test_ports_that_do_not_answer_are_named_with_the_remedy() -> None:
    data = BulkAddress("10.9.0.2", 4102)
    tried = (Tried(Purpose.PEERS, FOUR, "no answer"), Tried(Purpose.DATA, data, "refused"))
    sentence = closed_sentence("10.9.0.2:4100", tried)
    assert sentence.startswith("the host answers at 10.9.0.2:4100, but not at 10.9.0.2:4101 for peers (no answer) and ")
    assert "10.9.0.2:4102 for weights and data (refused)" in sentence
    assert "Its owner must forward TCP ports 4101 and 4102 to the host and open them" in sentence
    assert "slower" not in sentence
    assert "slower" in closed_sentence("10.9.0.2:4100", (Tried(Purpose.PEERS, FOUR), tried[1]))


def test_one_address_of_several_is_enough() -> None:
    tried = (Tried(Purpose.PEERS, FOUR, "no answer"), Tried(Purpose.PEERS, SIX))
    assert closed_sentence("10.9.0.2:4100", tried) == ""
