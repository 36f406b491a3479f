"""Standings: what each may do, and how a credential names it."""

from __future__ import annotations

import pytest

from protocol.identity.credential import check_credential, make_ca, make_request, make_tls_key, open_request
from protocol.identity.identity import Identity
from protocol.identity.standing import (
    ALL_KEEPERS,
    STANDING_SCHEME,
    PeerStanding,
    all_keepers,
    standing_in,
    standing_uris,
)
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import RunId

ALICE, BOB, RUN, NOW = Identity(b"a" * 32), Identity(b"b" * 32), RunId(b"r" * 32), 1_700_000_000.0
CA = make_ca(b"c" * 32, now_unix_s=NOW)
VERIFIER = Ed25519Verifier(CA.certificate_der)


def _credential(standing: PeerStanding, days: float = 1.0) -> bytes:
    request = make_request(ALICE, RUN, make_tls_key(), NOW)
    asked = open_request(request, verifier=VERIFIER, run_id=RUN, now_unix_s=NOW)
    return CA.issue(asked, RUN, now_unix_s=NOW, days=days, serial=1, standing=standing)


def test_a_stranger_contributes_alone_a_member_also_reduces_and_a_keeper_also_votes() -> None:
    rights = {each.word: (each.may_reduce, each.may_vote) for each in PeerStanding}
    assert rights == {"stranger": (False, False), "member": (True, False), "keeper": (True, True)}


@pytest.mark.parametrize("standing", PeerStanding)
def test_a_credential_proves_the_standing_that_the_authority_gave(standing: PeerStanding) -> None:
    credential = _credential(standing)
    checked = check_credential(credential, CA.certificate_der, peer_id=ALICE.peer_id, run_id=RUN, now_unix_s=NOW)
    assert checked.standing is standing
    assert VERIFIER.standing(credential, ALICE.peer_id, RUN) is standing


def test_nobody_has_a_standing_by_the_credential_of_another_peer_or_authority() -> None:
    credential = _credential(PeerStanding.KEEPER)
    assert VERIFIER.standing(credential, BOB.peer_id, RUN) is None
    other = make_ca(b"d" * 32, now_unix_s=NOW)
    assert Ed25519Verifier(other.certificate_der).standing(credential, ALICE.peer_id, RUN) is None
    assert VERIFIER.standing(b"", ALICE.peer_id, RUN) is None


def test_a_keepers_credential_names_no_standing_so_that_those_of_runs_by_invite_are_as_ever() -> None:
    assert standing_uris(PeerStanding.KEEPER) == ()
    assert STANDING_SCHEME.encode() not in _credential(PeerStanding.KEEPER)
    assert STANDING_SCHEME.encode() in _credential(PeerStanding.STRANGER)


@pytest.mark.parametrize("word", ["king", "", "keeper stranger"])
def test_a_standing_of_a_later_release_counts_as_a_strangers(word: str) -> None:
    assert standing_in([f"{STANDING_SCHEME}{word}"]) is PeerStanding.STRANGER
    assert standing_in([f"{STANDING_SCHEME}keeper", f"{STANDING_SCHEME}{word}"]) is PeerStanding.STRANGER


def test_where_nothing_is_known_everybody_is_a_keeper() -> None:
    assert all_keepers() is ALL_KEEPERS
    assert standing_in([]) is PeerStanding.KEEPER


def test_a_credential_lasts_for_hours_where_it_is_asked_for() -> None:
    checked = check_credential(
        _credential(PeerStanding.STRANGER, days=0.25),
        CA.certificate_der,
        peer_id=ALICE.peer_id,
        run_id=RUN,
        now_unix_s=NOW,
    )
    assert checked.not_after_unix_s == NOW + 6 * 3600
