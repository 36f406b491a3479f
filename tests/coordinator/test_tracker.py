"""The tracker when its ledger or its callers let it down; the rest of it is tested through the service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from structlog.testing import capture_logs

from coordinator.ledger import Ledger
from coordinator.restart import GATHER_S
from coordinator.run_core import Phase
from protocol.coordination import START_DOMAIN, PeerReport
from protocol.envelope import open_envelope
from protocol.errors import StorageError
from tests.coordinator.chain_world import PEERS, VERIFIER, Chain
from tests.coordinator.host_world import UNIT, HostWorld, open_host

T = TypeVar("T")
READY = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)


async def _all_ready(host: HostWorld) -> None:
    for peer in PEERS:
        await host.tracker.report(peer.peer_id, READY)


async def test_a_start_that_the_ledger_refused_is_tried_again_at_the_next_tick(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_host(tmp_path) as host:
        real, failures = Ledger.put_once, 2

        def full(ledger: Ledger, name: str, value: bytes) -> bytes:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise StorageError("the ledger could not be used (disk full)", "a writable file")
            return real(ledger, name, value)

        monkeypatch.setattr(Ledger, "put_once", full)
        for peer in PEERS[:2]:
            await host.tracker.report(peer.peer_id, READY)  # the trouble is not the reporting peer's
        assert (host.tracker.state.phase, host.tracker.state.is_signing) == (Phase.GATHERING, False)
        assert "tried again" in host.tracker.news().reason
        await host.tracker.tick()
        assert host.tracker.state.phase is Phase.GATHERING
        await host.tracker.tick()
        assert host.tracker.state.phase is Phase.TRAINING
        assert host.tracker.start_record


async def test_a_start_cut_short_with_the_call_that_brought_it_is_made_at_the_next_tick(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_host(tmp_path) as host:
        real, is_stuck = host.writer.run, True

        async def stuck(use: Callable[[Ledger], T]) -> T:
            if is_stuck:
                await trio.sleep_forever()
            return await real(use)

        monkeypatch.setattr(host.writer, "run", stuck)
        with trio.move_on_after(1) as given_up:
            await _all_ready(host)
        assert given_up.cancelled_caught
        assert (host.tracker.state.phase, host.tracker.state.is_signing) == (Phase.GATHERING, False)
        is_stuck = False
        await host.tracker.tick()
        assert host.tracker.state.phase is Phase.TRAINING


async def test_a_peer_speaks_for_its_own_address_only(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        one, two = PEERS[0].peer_id, PEERS[1].peer_id
        own, forged = f"/ip4/192.0.2.1/tcp/1/p2p/{one}", f"/ip4/192.0.2.9/tcp/9/p2p/{two}"
        await host.tracker.report(one, PeerReport("training", "", UNIT, addresses=(own, forged)))
        assert host.tracker.addresses_of([one, two]) == (own,)
        assert host.tracker.addresses_of([two]) == ()


async def _with_commits(host: HostWorld, num_commits: int) -> Chain:
    await _all_ready(host)
    sealed = host.tracker.start_record
    envelope = open_envelope(sealed, verifier=VERIFIER, domain=START_DOMAIN, run_id=host.run_id, now_unix_ms=None)
    chain = Chain(host.run_id, given_start=envelope.payload)
    for _ in range(num_commits):
        chain.commit(tokens=(1, 1, 1))
    report = PeerReport("training", "", UNIT, certificates=tuple(chain.certificates))
    await host.tracker.report(PEERS[0].peer_id, report)
    return chain


def _at(chain: Chain, index: int) -> PeerReport:
    return PeerReport("training", "", UNIT, head=chain.commits[index - 1][0], index=index)


async def test_after_a_restart_it_is_said_once_that_nothing_was_lost_when_a_peer_stands_where_the_ledger_does(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain = await _with_commits(host, 2)
    with open_host(tmp_path) as host, capture_logs() as said:
        await host.tracker.restore()
        await host.tracker.tick()
        assert not [line for line in said if line["event"] == "restarted"]
        await host.tracker.report(PEERS[1].peer_id, _at(chain, 2))
        await host.tracker.tick()
        await host.tracker.tick()
        told = [line["reason"] for line in said if line["event"] == "restarted"]
        assert told == ["restarted at round 2; nothing was lost"]


async def test_after_a_restart_the_round_since_which_work_was_lost_is_said_when_no_peer_comes_with_more(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain = await _with_commits(host, 2)
    with open_host(tmp_path) as host, capture_logs() as said:
        await host.tracker.restore()
        await host.tracker.report(PEERS[1].peer_id, _at(chain, 1))
        await host.tracker.tick()
        await trio.sleep(GATHER_S)
        await host.tracker.tick()
        (told,) = [line["reason"] for line in said if line["event"] == "restarted"]
        assert "work since round 1 was lost" in told
