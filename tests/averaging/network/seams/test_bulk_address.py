from __future__ import annotations

import pytest

from averaging.network.seams import bulk_address
from averaging.network.seams.bulk_address import BulkAddress, decode_addresses, encode_addresses, own_addresses
from protocol.errors import RemoteProtocolError

ADDRESSES = (BulkAddress("203.0.113.9", 4002), BulkAddress("box.example.org", 1), BulkAddress("2001:db8::1", 65535))


def test_addresses_are_read_as_they_were_written() -> None:
    assert decode_addresses(encode_addresses(ADDRESSES)) == ADDRESSES
    assert decode_addresses(encode_addresses(())) == ()
    assert len(decode_addresses(encode_addresses(ADDRESSES * 9))) == 8


@pytest.mark.parametrize(
    "data",
    [
        b"\n", b"host", b"host ", b"host 0", b"host 65536", b"host 1 2", b" 1", b"-a 1", b"a..b 1", b"fe80::1%eth0 1",
        b"h\xc3\xa9 1", b"a 1\n" * 9, b"a 1\n" + b"b" * 3000, b"a\x00b 1", b"a 1\n",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_addresses(data)


def test_our_addresses_are_the_hosts_of_our_libp2p_addresses_with_the_bulk_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_address, "_public_ipv6", lambda: ["2a00::5"])
    ours = ("/ip4/192.168.1.5/tcp/4001/p2p/me", "/ip4/8.8.4.4/tcp/4001/p2p/me")
    relayed = "/ip4/9.9.9.9/tcp/4001/p2p/relay/p2p-circuit/p2p/me"
    own = own_addresses((*ours, relayed), "::", 4002)
    assert own == (BulkAddress("8.8.4.4", 4002), BulkAddress("2a00::5", 4002), BulkAddress("192.168.1.5", 4002))
    assert own_addresses(ours[:1], "192.168.1.5", 7) == (BulkAddress("192.168.1.5", 7),)
    named = own_addresses(("/dns4/box.example.org/tcp/4001/p2p/me",), "::", 7)
    assert named == (BulkAddress("box.example.org", 7),)
    assert own_addresses((), "::", 7) == ()
    assert own_addresses(ours[:1], "0.0.0.0", 7) == (BulkAddress("192.168.1.5", 7),)
