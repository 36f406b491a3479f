"""The conditions of taking part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.policy.admission import (
    AdmissionFacts,
    InviteFacts,
    Verdict,
    clock_error,
    decide_admission,
    decide_renewal,
)
from protocol.errors import PotluckError, RefusedError, RunOverError, TemporaryError, VersionError
from protocol.ids import PROTOCOL_VERSION, PeerId

NOW = 1_700_000_000.0
FRESH = AdmissionFacts(
    peer=PeerId("peer"),
    protocol_version=PROTOCOL_VERSION,
    is_same_run=True,
    peer_unix_s=NOW,
    invite=InviteFacts(uses=0, max_uses=1, expires_unix_s=int(NOW) + 60),
    is_admitted=False,
    is_banned=False,
    is_run_over=False,
    num_live_peers=0,
    max_peers=64,
)


def test_admits_a_newcomer_with_a_fresh_invite() -> None:
    assert decide_admission(FRESH, NOW).verdict is Verdict.ADMIT_WITH_INVITE


def test_admits_a_known_peer_again_without_burning_an_invite() -> None:
    assert decide_admission(replace(FRESH, is_admitted=True, invite=None), NOW).verdict is Verdict.ADMIT_AGAIN


def test_a_full_run_lets_a_known_peer_in_and_no_newcomer() -> None:
    full = replace(FRESH, num_live_peers=64)
    assert decide_admission(replace(full, is_admitted=True, invite=None), NOW).verdict is Verdict.ADMIT_AGAIN
    assert type(decide_admission(full, NOW).error) is TemporaryError


@pytest.mark.parametrize(
    ("facts", "kind", "says"),
    [
        (replace(FRESH, invite=None), RefusedError, "did not make"),
        (replace(FRESH, invite=InviteFacts(1, 1, int(NOW) + 60)), RefusedError, "used 1 of 1"),
        (replace(FRESH, invite=InviteFacts(0, 1, int(NOW) - 600)), RefusedError, "expired 10 minutes ago"),
        (replace(FRESH, protocol_version=PROTOCOL_VERSION + 1), VersionError, "protocol version"),
        (replace(FRESH, is_same_run=False), RefusedError, "another run"),
        (replace(FRESH, is_banned=True, is_admitted=True), RefusedError, "banned"),
        (replace(FRESH, is_run_over=True), RunOverError, "ended"),
        (replace(FRESH, num_live_peers=64), TemporaryError, "64 peers"),
        (replace(FRESH, peer_unix_s=NOW + 720), RefusedError, "12 minutes ahead of"),
        (replace(FRESH, peer_unix_s=NOW - 720), RefusedError, "12 minutes behind"),
        (replace(FRESH, peer_unix_s=float("nan")), RefusedError, "clock"),
    ],
)
def test_refuses_and_says_why(facts: AdmissionFacts, kind: type[PotluckError], says: str) -> None:
    decision = decide_admission(facts, NOW)
    assert decision.verdict is Verdict.REFUSE
    assert type(decision.error) is kind
    assert says in decision.reason


def test_renews_only_for_peers_that_were_admitted() -> None:
    assert decide_renewal(replace(FRESH, is_admitted=True, invite=None), NOW).verdict is Verdict.ADMIT_AGAIN
    assert "never admitted" in decide_renewal(FRESH, NOW).reason


def test_clocks_within_five_minutes_are_fine() -> None:
    assert clock_error(NOW + 300, NOW) is None
    assert clock_error(NOW - 301, NOW) is not None
