"""A host restored from an old copy of its ledger, and peers that have forgotten what was in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio.testing
from structlog.testing import capture_logs

from coordinator.history.history_rows import begins_at
from coordinator.history.run_history import HistoryPlace, RunHistory
from coordinator.ledger.ledger import START_RECORD
from protocol.errors import RemoteProtocolError
from protocol.host.host_statements import HostStatements
from protocol.host.reports import PeerReport, ReportReply
from protocol.identity.identity import Identity
from protocol.rounds.lineage.milestones import seal_milestone
from protocol.rounds.messages.start import Milestone
from protocol.rounds.messages.wire import decode_certificate
from tests.coordinator.chain_world import HOST, PEERS, VERIFIER, Chain
from tests.coordinator.history.history_world import make_small
from tests.coordinator.host_world import UNIT, HostWorld, open_host
from tests.coordinator.progress.test_chain_log import grown

Clock = trio.testing.MockClock


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@asynccontextmanager
async def _restored(folder: Path, num_known: int) -> AsyncIterator[tuple[HostWorld, Chain]]:
    """A host whose ledger has so many of the run's 30 commits."""
    with open_host(folder) as host:
        chain = grown(Chain(run_id=host.run_id), 30)
        host.ledger.put_once(START_RECORD, chain.sealed_start)
        await host.tracker.restore()
        place = HistoryPlace(host.run_id, HOST, VERIFIER, UNIT, folder / "archive")
        host.tracker.history = RunHistory(place, host.writer, host.offload)
        await host.tracker.history.restore()
        await _report(host, chain, 1, num_known)
        yield host, chain


async def _report(
    host: HostWorld, chain: Chain, first: int, last: int, milestones: tuple[bytes, ...] = ()
) -> ReportReply:
    """A peer shows these rounds."""
    commit, index, total = chain.commits[last - 1]
    certificates = tuple(chain.certificates[first - 1 : last])
    signed = HostStatements(milestones=milestones)
    report = PeerReport("training", "", UNIT, commit, index, total, certificates=certificates, signed=signed)
    return await host.tracker.report(PEERS[0].peer_id, report)


def _milestone(chain: Chain, index: int, host: Identity = HOST) -> bytes:
    record = decode_certificate(chain.certificates[index - 1]).record
    return seal_milestone(host, chain.run_id, Milestone(chain.genesis.commit, record, chain.start_root))


async def test_an_old_copy_goes_on_from_a_milestone_that_it_signed_where_nobody_has_the_commits_before_it(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _restored(tmp_path, 5) as (host, chain):
        reply = await _report(host, chain, 13, 30)
        assert (reply.index, reply.want_from_index) == (5, 6), "no certificate leads there"
        with capture_logs() as logs:
            reply = await _report(host, chain, 13, 30, (_milestone(chain, 12), _milestone(chain, 20)))
        assert [line["index"] for line in logs if line["event"] == "begun_at_milestone"] == [12]
        assert (reply.index, reply.want_from_index, reply.head) == (30, 31, chain.head[0])
        assert begins_at(host.ledger, UNIT) == chain.commits[11][0]
    with open_host(tmp_path) as again:
        await again.tracker.restore()
        assert again.tracker.state.index == 30


async def test_an_old_copy_that_peers_can_bring_up_to_date_skips_nothing(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _restored(tmp_path, 5) as (host, chain):
        reply = await _report(host, chain, 6, 30, (_milestone(chain, 12),))
        assert reply.index == 30
        assert begins_at(host.ledger, UNIT) is None
        assert host.tracker.chain is not None
        assert host.tracker.history is not None
        assert host.tracker.history.newest() == (_milestone(chain, 12),)


async def test_a_milestone_that_we_did_not_sign_is_refused_and_nothing_is_lost(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _restored(tmp_path, 5) as (host, chain):
        with pytest.raises(RemoteProtocolError, match="host signed"):
            await _report(host, chain, 13, 30, (_milestone(chain, 12, PEERS[0]),))
        assert host.tracker.state.index == 5
        other = replace(chain, run_id=PEERS[0].public_key)  # type: ignore[arg-type]
        with pytest.raises(RemoteProtocolError, match="of run"):
            await _report(host, chain, 13, 30, (_milestone(other, 12),))
        assert begins_at(host.ledger, UNIT) is None


async def test_a_milestone_without_the_commits_after_it_changes_nothing(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _restored(tmp_path, 5) as (host, chain):
        reply = await _report(host, chain, 31, 30, (_milestone(chain, 12),))
        assert (reply.index, begins_at(host.ledger, UNIT)) == (5, None)
        reply = await _report(host, chain, 15, 30, (_milestone(chain, 12),))
        assert (reply.index, begins_at(host.ledger, UNIT)) == (5, None), "commits 13 and 14 are missing"
