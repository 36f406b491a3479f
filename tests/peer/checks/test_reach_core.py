from __future__ import annotations

from dataclasses import replace

import pytest

from peer.checks.host_core import PortTaken, ReachReport
from peer.checks.machine_core import Unread
from peer.checks.reach_core import is_outbound_only, outbound_sentence

NOT_REACHED = ReachReport("0.0.0.0", 4001, False, "203.0.113.9", False, "")
REACHED = replace(NOT_REACHED, is_reached=True)


def _found(reach: ReachReport | PortTaken | Unread | None, *, no_listen: bool = False, announce_host: str = "") -> bool:
    return is_outbound_only(no_listen=no_listen, announce_host=announce_host, reach=reach)


def test_peer_that_the_host_could_not_connect_to_says_that_nobody_can() -> None:
    assert _found(NOT_REACHED)
    assert _found(replace(NOT_REACHED, is_own_address=True))
    assert not _found(REACHED)


@pytest.mark.parametrize("reach", [None, PortTaken("in use"), Unread("4 checks within 60 s")])
def test_where_the_host_could_not_be_asked_the_owner_decides(reach: PortTaken | Unread | None) -> None:
    assert not _found(reach)
    assert _found(reach, no_listen=True)


def test_owners_word_comes_before_what_the_host_found() -> None:
    assert not _found(NOT_REACHED, announce_host="example.org")
    assert _found(REACHED, no_listen=True)


@pytest.mark.parametrize("seen_as", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.0.0.2"])
def test_host_on_the_same_machine_that_was_too_slow_says_nothing_about_the_way_here(seen_as: str) -> None:
    assert not _found(replace(NOT_REACHED, seen_as=seen_as))


@pytest.mark.parametrize("seen_as", ["", "no address", "fe80::1%eth0", "::ffff:203.0.113.9"])
def test_any_other_caller_is_no_loopback(seen_as: str) -> None:
    assert _found(replace(NOT_REACHED, seen_as=seen_as))


def test_owner_is_told_in_one_line_what_was_found_what_follows_and_the_flag_that_mends_it() -> None:
    reported = outbound_sentence(NOT_REACHED)
    assert reported == (
        "Others cannot connect to this machine; your work counts in full all the same. "
        "To help more: forward TCP 4001 to it and join with --listen-port 4001 --announce-host 203.0.113.9"
    )
