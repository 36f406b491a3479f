"""Asking the host whether others can connect to this peer: a real port here, a host that answers as it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog.testing
import trio
import trio.testing

from peer.checks.reach import WITHIN_S, find_outbound_only
from peer.membership.coordinator_client import DialBack, ProbeProof
from peer.settings.config import PeerConfig
from protocol.errors import PotluckError, RefusedError, TemporaryError
from protocol.host.calls import DIAL_BACK_NONCE_BYTES

CREDENTIAL = b"our credential"
Clock = trio.testing.MockClock


class _Client:
    """A coordinator that sees us at `seen_as`, and reaches us or does not."""

    def __init__(self, answer: bool | PotluckError, seen_as: str = "203.0.113.9", takes_s: float = 0.0) -> None:
        self.answer, self.seen_as, self.takes_s = answer, seen_as, takes_s
        self.ports: list[int] = []

    async def dial_back(self, proof: ProbeProof, port: int, nonce: bytes) -> DialBack:
        assert proof == ProbeProof(b"", CREDENTIAL)
        self.ports.append(port)
        await trio.sleep(self.takes_s)
        if isinstance(self.answer, PotluckError):
            raise self.answer
        if self.answer:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                assert await stream.receive_some(DIAL_BACK_NONCE_BYTES) == nonce
        return DialBack(self.answer, self.seen_as)


async def _find(
    folder: Path, client: _Client, *, is_host_there: bool = True, **settings: object
) -> tuple[bool, list[str]]:
    """The findings, and the message to the owner."""
    config = PeerConfig(state_dir=folder, **{"listen_host": "127.0.0.1", **settings})  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logs:
        found = await find_outbound_only(config, client, CREDENTIAL, is_host_there=is_host_there)  # type: ignore[arg-type]
    return found, [str(line["reason"]) for line in logs if line["log_level"] == "warning"]


async def test_peer_that_cannot_be_connected_to_finds_out_by_itself_and_tells_its_owner_once(tmp_path: Path) -> None:
    found, reported = await _find(tmp_path, _Client(False))
    assert found
    assert len(reported) == 1
    assert reported[0].startswith("Others cannot connect to this machine; your work counts in full all the same.")
    assert await _find(tmp_path, _Client(False)) == (True, [])
    _, moved = await _find(tmp_path, _Client(False), listen_host="0.0.0.0")
    assert "--announce-host 203.0.113.9" in moved[0]


async def test_peer_that_can_be_connected_to_says_nothing(tmp_path: Path) -> None:
    client = _Client(True)
    assert await _find(tmp_path, client) == (False, [])
    assert len(client.ports) == 1


@pytest.mark.parametrize("answer", [TemporaryError("4 checks within 60 s"), RefusedError("not admitted")])
async def test_host_that_does_not_tell_leaves_it_to_the_owner(tmp_path: Path, answer: PotluckError) -> None:
    assert await _find(tmp_path, _Client(answer)) == (False, [])


@pytest.mark.parametrize(
    ("settings", "is_host_there", "is_outbound"),
    [
        ({"no_listen": True}, True, True),
        ({"announce_host": "example.org", "listen_port": 4001}, True, False),
        ({}, False, False),
    ],
)
async def test_host_is_not_asked_where_the_owner_has_said_it_or_the_host_is_away(
    tmp_path: Path, settings: dict[str, object], is_host_there: bool, is_outbound: bool
) -> None:
    client = _Client(False)
    assert await _find(tmp_path, client, is_host_there=is_host_there, **settings) == (is_outbound, [])
    assert client.ports == []


async def test_demo_on_a_busy_machine_stays_reachable(tmp_path: Path) -> None:
    assert await _find(tmp_path, _Client(False, seen_as="127.0.0.1")) == (False, [])


async def test_start_does_not_wait_for_a_host_that_is_slow(tmp_path: Path, autojump_clock: Clock) -> None:
    began_s = trio.current_time()
    assert await _find(tmp_path, _Client(False, takes_s=60.0)) == (False, [])
    assert trio.current_time() - began_s <= WITHIN_S + 1
