"""Names and addresses: their form and their meaning."""

from __future__ import annotations

import pytest

from averaging.network.seams.host_names import multiaddress, unfit_to_announce, unfit_to_listen, unheard

ANY = ("0.0.0.0", "::")
OWN = ("127.0.0.1", "::1", "10.9.0.2", "fd00:9::2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0", "stands for all addresses"),
        ("::", "stands for all addresses"),
        ("..", "single dots"),
        ("a..b", "single dots"),
        ("-", "hyphens"),
        ("a-.example", "hyphens"),
        ("1.2.3", "four numbers"),
        ("010.0.0.1", "leading zeros"),
        ("256.0.0.1", "four numbers"),
        ("host.0x7f", "four numbers"),
        ("7", "four numbers"),
        ("fe80::1%eth0", "zone"),
        ("fe80::1", "zone"),
        ("::ffff:10.0.0.1", "the IPv4 address itself: 10.0.0.1"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("0.1.2.3", "reserved"),
        ("100::1", "discarded"),
        ("[::1]", "alone"),
        ("http://x", "alone"),
        ("x:1", "alone"),
        ("a" * 64 + ".example", "letters"),
        ("höst.example", "xn--hst-sna.example"),
    ],
)
def test_what_nobody_can_dial_is_not_announced(text: str, expected: str) -> None:
    assert expected in unfit_to_announce(text)


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "127.0.0.1", "169.254.3.4", "::1", "fd00:9::2", "localhost", "my_box-2", "host.example.org"]
)
def test_what_others_can_dial_is_announced(text: str) -> None:
    assert unfit_to_announce(text) == unfit_to_listen(text) == ""


def test_daemon_may_listen_on_all_addresses_and_not_on_a_group() -> None:
    assert [unfit_to_listen(text) for text in ANY] == ["", ""]
    assert "multicast" in unfit_to_listen("ff02::1")
    assert "four numbers" in unfit_to_listen("1.2.3")


def test_name_may_have_records_of_either_kind() -> None:
    assert multiaddress("run.example.org", 5) == "/dns/run.example.org/tcp/5"
    assert multiaddress("::1", 5) == "/ip6/::1/tcp/5"
    assert multiaddress("10.0.0.1", 5) == "/ip4/10.0.0.1/tcp/5"


@pytest.mark.parametrize(
    ("told", "listens_on", "why"),
    [
        (("fd00:9::2",), ("0.0.0.0",), "IPv6, on which"),
        (("10.9.0.2",), ("::",), "IPv4, on which"),
        (("2001:db8::7",), ("10.9.0.2",), "IPv6, on which"),
        (("10.9.0.2",), ("10.9.0.9",), "nobody listens there"),
        (("127.0.0.1",), ("10.9.0.2",), "nobody listens there"),
        (("fd00:9::2",), ANY, ""),
        (("10.9.0.2",), ANY, ""),
        (("198.51.100.7", "2001:db8::7"), ("0.0.0.0",), ""),
        (("198.51.100.7",), ("127.0.0.1",), ""),
        (("127.0.0.1",), ("0.0.0.0",), ""),
        ((), ("0.0.0.0",), ""),
    ],
)
def test_announced_address_is_compared_with_the_listening_ones(
    told: tuple[str, ...], listens_on: tuple[str, ...], why: str
) -> None:
    found = unheard(told, listens_on, OWN)
    assert why in found
    assert bool(found) == bool(why)


def test_machine_without_ipv4_cannot_be_announced_over_ipv4() -> None:
    assert "IPv4" in unheard(("198.51.100.7",), ANY, ("127.0.0.1", "::1", "fd00:9::2"))
