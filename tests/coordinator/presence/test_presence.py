from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.presence.presence import LIVE_S, PeerEntry, heard, helping, live_peers, mean_train_loss, num_live
from protocol.host.reports import HELPING
from tests.coordinator.progress.test_run_view import A, B, C, peer


def test_live_peers_are_those_heard_of_lately_that_did_not_leave() -> None:
    peers = {A: PeerEntry(peer(), 0.0), B: PeerEntry(peer(), 50.0), C: PeerEntry(peer(state="left"), 50.0)}
    assert live_peers(peers, 51.0) == [B]
    assert live_peers(peers, LIVE_S) == [A, B]


def test_peer_is_here_since_its_first_report_after_a_silence_or_a_goodbye() -> None:
    entry = heard(None, peer(), 10.0)
    assert entry == PeerEntry(peer(), 10.0, 10.0)
    entry = heard(entry, peer(), 10.0 + LIVE_S)
    assert (entry.seen_s, entry.since_s) == (10.0 + LIVE_S, 10.0)
    assert heard(entry, peer(), 11.0 + 2 * LIVE_S).since_s == 11.0 + 2 * LIVE_S
    entry = heard(entry, peer(state="left"), 20.0 + LIVE_S)
    assert heard(entry, peer(), 21.0 + LIVE_S).since_s == 21.0 + LIVE_S


def test_a_helper_counts_as_live_for_as_long_as_it_was_told_to_stay_silent() -> None:
    helpers = helping({}, C, replace(peer(state=HELPING), is_outbound_only=False), 10.0, 300.0)
    assert [num_live(helpers, now_s) for now_s in (11.0, 309.0, 311.0)] == [1, 1, 0]
    assert helping(helpers, B, peer(state="left"), 200.0).keys() == {C}
    assert helping(helpers, B, peer(state="left"), 400.0) == {}


def test_training_loss_is_weighted_by_speed() -> None:
    peers = {A: PeerEntry(peer(300.0, 2.0), 0.0), B: PeerEntry(peer(100.0, 4.0), 0.0)}
    assert mean_train_loss(peers, 1.0) == pytest.approx(2.5)
    assert mean_train_loss({A: PeerEntry(peer(loss=None), 0.0)}, 1.0) is None
    assert mean_train_loss({A: PeerEntry(peer(0.0, 3.0), 0.0)}, 1.0) is None
