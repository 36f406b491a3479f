from __future__ import annotations

import pytest

from averaging.network.libp2p.libp2p_stream import DialVerdicts
from protocol.errors import CallTimeout, ConnectionReset, PeerUnreachable
from protocol.ids import PeerId

PEER = PeerId("12D3KooWQAqQX2YQexMmQapfgrFV88PTtqkyiRo1LjpZoVbkjQYR")
DIAL = f"failed to dial: failed to dial {PEER}: all dials failed\n  * [/ip4/127.0.0.1/tcp/4001] "

CIRCUIT = "  * [/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWRelay/p2p-circuit] "


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (DIAL + "dial tcp4 127.0.0.1:4001: connect: connection refused", PeerUnreachable),
        (
            DIAL + "dial tcp4 127.0.0.1:4001: i/o timeout\n  * [/ip4/127.0.0.1/tcp/4002] connection refused",
            PeerUnreachable,
        ),
        (DIAL + "read tcp4 127.0.0.1:4001: connection reset by peer", ConnectionReset),
        ("failed to negotiate protocol: stream reset", ConnectionReset),
        (DIAL + "connect: network is unreachable", CallTimeout),
        (DIAL + "connect: no route to host", CallTimeout),
        (DIAL + "socket: too many open files", CallTimeout),
        ("cannot reserve outbound stream: resource limit exceeded", CallTimeout),
        ("context canceled", CallTimeout),
        ("failed to dial: routing: not found", PeerUnreachable),
        (DIAL + "dial tcp4 127.0.0.1:4001: i/o timeout", CallTimeout),
        ("context deadline exceeded", CallTimeout),
        (DIAL + "dial backoff", CallTimeout),
        ("connection failed", CallTimeout),
        (CIRCUIT + "error opening relay circuit: NO_RESERVATION (204)", PeerUnreachable),
        (CIRCUIT + "error opening hop stream to relay: dial tcp4 10.0.0.1:4001: connection refused", CallTimeout),
        (DIAL + "connection refused\n" + CIRCUIT + "error opening relay circuit: NO_RESERVATION", PeerUnreachable),
    ],
)
def test_what_is_no_refusal_and_no_stranger_is_no_death(reason: str, error: type[Exception]) -> None:
    assert type(DialVerdicts().failed(PEER, reason)) is error


def test_who_refused_a_moment_ago_is_gone_until_it_is_dialled_again() -> None:
    verdicts = DialVerdicts()
    verdicts.failed(PEER, DIAL + "connect: connection refused")
    assert type(verdicts.failed(PEER, DIAL + "dial backoff")) is PeerUnreachable
    verdicts.failed(PEER, DIAL + "i/o timeout")
    assert type(verdicts.failed(PEER, DIAL + "dial backoff")) is CallTimeout


def test_who_was_reached_since_it_refused_is_not_gone_by_that() -> None:
    verdicts = DialVerdicts()
    verdicts.failed(PEER, DIAL + "connect: connection refused")
    verdicts.opened(PEER)
    assert type(verdicts.failed(PEER, DIAL + "dial backoff")) is CallTimeout
