from __future__ import annotations

import pytest

from coordinator.rpc import caller_host


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:7000", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:7000", "2001:db8::1"),
        ("ipv6:[::1]:7000", "::1"),
        ("unix:/run/socket", ""),
        ("", ""),
    ],
)
def test_caller_is_known_by_its_ip_address_alone(peer: str, host: str) -> None:
    assert caller_host(peer) == host
