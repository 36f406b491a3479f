"""The lines about ports and the invite."""

from __future__ import annotations

from coordinator.admission.addresses import HostAddresses
from coordinator.admission.greeting import address_lines, complete_lines, invite_lines, open_lines
from coordinator.admission.invites import IssuedInvite
from coordinator.run.start_command import StartCommand

ADDRESSES = HostAddresses("::", ("0.0.0.0", "::"), ("10.9.0.2", "fd00:9::2"), 4600, 4601)


def test_ports_in_use_are_said_with_their_purpose() -> None:
    lines = address_lines(ADDRESSES, 4602)
    assert lines == [
        "address  10.9.0.2, fd00:9::2",
        "ports    TCP 4600 (host), 4601 (peers), 4602 (weights and data)",
    ]
    assert "port 4602 is in use by another program" in address_lines(ADDRESSES, 5000)[-1]


def test_invite_of_a_local_network_is_followed_by_the_command_that_opens_it_to_others() -> None:
    text = "\n".join(
        invite_lines(IssuedInvite("potluck1:abc", 97, 1_700_000_000), ADDRESSES, StartCommand(("mine.toml",)))
    )
    assert text.startswith("invite for 97 peers, until ")
    assert "    potluck join potluck1:abc" in text
    assert "potluck host mine.toml --announce-host YOUR_ADDRESS --grpc-port 4600 --p2p-port 4601" in text
    assert "forward TCP 4600 to 4602 on the router" in text


def test_complete_run_has_no_invite_and_says_where_its_last_checkpoint_comes_from_if_it_is_missing() -> None:
    (line,) = complete_lines(has_last_checkpoint=True)
    assert "no invite" in line
    assert "potluck join" in complete_lines(has_last_checkpoint=False)[-1]


def test_the_line_of_an_open_run_is_told_apart_from_the_secret_one() -> None:
    publish, secret = open_lines("potluck2:abc")
    assert "potluck join potluck2:abc" in publish
    assert "no secret" in publish
    assert "has a secret" in secret
