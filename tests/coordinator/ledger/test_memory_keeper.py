"""A host that was killed and started again still knows contributors that are away, and the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from averaging.host.daemon_views import PeerOrder, peers_text, sorted_peers
from coordinator.ledger import run_memory
from coordinator.ledger.ledger import CommitRow, Ledger
from coordinator.ledger.ledger_damage import COUNT_ROW
from coordinator.ledger.memory_keeper import NEWEST_APART, WRITE_EVERY_S, MemoryKeeper
from coordinator.ledger.run_memory import MAX_EVENTS
from coordinator.presence.presence import FORGET_S, LIVE_S
from coordinator.progress.chain_log import ChainLog
from coordinator.progress.run_events import EventBook, event_row
from coordinator.status import local_view
from coordinator.status.run_json import status_json
from protocol.errors import StorageError
from protocol.host.reports import PeerReport
from protocol.identity.chosen_name import ChosenName
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.lineage.round_row import Counted
from tests.coordinator.admission.test_service import chain_of
from tests.coordinator.chain_world import PEERS, RUN_ID, UNIT, VERIFIER, Chain, rows_of
from tests.coordinator.host_world import HostWorld, open_host
from tests.virtual import VirtualClock

A, B, C = (peer.peer_id for peer in PEERS)
READY = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)


class _Host:
    """A host's tracker with its memory, as the daemon joins them."""

    def __init__(self, world: HostWorld) -> None:
        self.world = world
        self.memory, self.book = MemoryKeeper(world.writer, world.clock), EventBook()

    async def start(self) -> _Host:
        await self.world.tracker.restore()
        self.book.restore(await self.memory.restore())
        await self.look()
        return self

    async def look(self) -> None:
        tracker, clock = self.world.tracker, self.world.clock
        await tracker.tick()
        new = self.book.note(tracker.picture(), clock.monotonic_s(), int(clock.unix_s()))
        heard_s = {peer: entry.seen_s for peer, entry in tracker.peers.items()}
        chosen = {peer: entry.report.chosen for peer, entry in tracker.peers.items()}
        await self.memory.look(tracker.chain, heard_s, self.book.states, [event_row(event) for event in new], chosen)

    def status(self) -> Mapping[str, object]:
        return status_json(self.world.tracker.picture(), self.world.clock.monotonic_s(), self.memory.past)

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.book.newest(MAX_EVENTS)]


def _report(chain: Chain, state: str = "training") -> PeerReport:
    commit, index, total = chain.head
    return PeerReport(
        state, "", UNIT, head=commit, index=index, total_tokens=total, certificates=tuple(chain.certificates)
    )


async def _train(world: HostWorld) -> Chain:
    for peer in PEERS:
        await world.tracker.report(peer.peer_id, READY)
    chain = chain_of(world)
    for _ in range(2):
        chain.commit((10, 20, 30))
    return chain


async def test_after_a_restart_contributors_that_are_away_stay_with_names_and_counts_and_the_events_go_on(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        chain = await _train(world)
        await host.look()
        await world.tracker.report(A, _report(chain))
        await world.tracker.report(B, _report(chain, "left"))
        await host.look()
        before = host.texts
        assert f"{peer_name(B)} left" in before
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        assert host.texts[:-1] == before
        assert [event.number for event in host.book.newest(99)] == list(range(1, len(before) + 2))
        await world.tracker.report(A, _report(chain))
        await host.look()
        status = host.status()
        assert [row["peer"] for row in _rows(status, "peers")] == [A]
        away = {row["peer"]: row for row in _rows(status, "away")}
        assert [(row["name"], row["tokens_counted"], row["rounds_counted"]) for row in away.values()] == [
            (peer_name(C), 60, 2),
            (peer_name(B), 40, 2),
        ]
        assert (away[B]["state"], away[B]["last_seen_s"]) == ("away", pytest.approx(0.0, abs=2.0))
        assert status["num_away"] == 2
        monkeypatch.setattr("coordinator.run.hosted_folder.fetch_status", lambda _: status)
        shown = sorted_peers(local_view.read_daemon(tmp_path), PeerOrder.COUNTED)
        assert [line.split()[0] for line in peers_text([shown])[1:]] == [peer_name(peer) for peer in (C, B, A)]


async def test_a_peer_that_was_here_before_a_restart_and_after_it_makes_no_event_and_one_that_stays_away_makes_one(
    tmp_path: Path, autojump_clock: object
) -> None:
    clock = VirtualClock()
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        await _train(world)
        await host.look()
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        began = len(host.texts)
        await world.tracker.report(A, READY)
        await host.look()
        assert host.texts[began:] == []
        await trio.sleep(LIVE_S + 1)
        await world.tracker.report(A, READY)
        await host.look()
        gone = [f"{peer_name(peer)} is not heard any more" for peer in sorted((B, C))]
        assert host.texts[began:] == gone
        await world.tracker.report(B, READY)
        await host.look()
        assert host.texts[began:] == [*gone, f"{peer_name(B)} is heard again"]


async def test_a_contributor_that_is_silent_for_long_stays_in_the_list_without_a_restart(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as world:
        host = await _Host(world).start()
        chain = await _train(world)
        for peer in (A, B, C):
            await world.tracker.report(peer, _report(chain))
        await host.look()
        await trio.sleep(FORGET_S + 1)
        await host.look()
        status = host.status()
        assert _rows(status, "peers") == []
        assert {row["peer"]: row["reason"] for row in _rows(status, "away")} == dict.fromkeys(
            (A, B, C), "last heard 60 min ago"
        )


async def test_reports_are_noted_once_a_minute_and_the_note_survives_a_kill(
    tmp_path: Path, autojump_clock: object
) -> None:
    clock = VirtualClock()
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        await world.tracker.report(A, READY)
        await host.look()
        writes = _num_writes(world.ledger)
        for _ in range(5):
            await trio.sleep(1)
            await world.tracker.report(A, READY)
            await host.look()
        assert _num_writes(world.ledger) == writes
        await trio.sleep(WRITE_EVERY_S)
        await world.tracker.report(A, READY)
        await host.look()
        assert _num_writes(world.ledger) == writes + 1
        heard_s = clock.monotonic_s()
    await trio.sleep(100)
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        assert host.memory.past.heard_s[A] == pytest.approx(heard_s, abs=1.0)


async def test_a_full_disk_is_one_line_and_its_events_are_written_later(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the ledger could not be used (disk full)", "a writable file")

    clock = VirtualClock()
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr("coordinator.ledger.memory_keeper.remember", full)
            for peer in (A, B):
                await world.tracker.report(peer, READY)
                await host.look()
        assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["history_not_kept"]
        await host.look()
        before = host.texts
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        assert host.texts[:-1] == before


def test_the_newest_events_are_kept_and_no_more(tmp_path: Path) -> None:
    with open_host(tmp_path) as world:
        for first in range(1, MAX_EVENTS + 200, 100):
            events = [run_memory.EventRow(n, n, "run", "x", "") for n in range(first, first + 100)]
            run_memory.remember(world.ledger, events, [])
        kept = run_memory.remembered(world.ledger).events
        assert (len(kept), kept[-1].number) == (MAX_EVENTS, MAX_EVENTS + 200)


# --- credits ---------------------------------------------------------------------------------------------------------------------


async def test_credits_are_those_of_the_whole_run_also_from_a_ledger_that_has_never_summed_them(
    tmp_path: Path, autojump_clock: object
) -> None:
    rounds = 2 * NEWEST_APART + 300
    chain = Chain()
    for number in range(rounds):
        chain.commit((1, 2, 3 if number else 4))
    log, rows = _log_of(chain)
    with open_host(tmp_path) as world:
        world.ledger.add_progress(rows, [])
        keeper = MemoryKeeper(world.writer, world.clock)
        for _ in range(4):
            await keeper.look(log, {}, {}, ())
        past = keeper.past.credits
        assert rounds - past.index == NEWEST_APART
        assert past.by_peer == {A: Counted(past.index, past.index), **_of_others(past.index)}
    with open_host(tmp_path) as world:
        again = MemoryKeeper(world.writer, world.clock)
        await again.restore()
        assert again.past.credits == past


async def test_the_sum_of_credits_begins_again_when_the_run_follows_another_lineage(
    tmp_path: Path, autojump_clock: object
) -> None:
    one = Chain()
    for _ in range(NEWEST_APART + 130):
        one.commit((1, 1, 1))
    other = Chain()
    for _ in range(NEWEST_APART + 140):
        other.commit((2, 2, 2))
    (log, rows), (other_log, other_rows) = _log_of(one), _log_of(other)
    with open_host(tmp_path) as world:
        world.ledger.add_progress([*rows, *other_rows], [])
        keeper = MemoryKeeper(world.writer, world.clock)
        await keeper.look(log, {}, {}, ())
        assert keeper.past.credits.by_peer[A] == Counted(130, 130)
        for _ in range(3):
            await keeper.look(other_log, {}, {}, ())
        assert keeper.past.credits.by_peer[A] == Counted(280, 140)


def _of_others(rounds: int) -> dict[PeerId, Counted]:
    return {B: Counted(2 * rounds, rounds), C: Counted(3 * rounds + 1, rounds)}


def _log_of(chain: Chain) -> tuple[ChainLog, list[CommitRow]]:
    rows, log = rows_of(chain.certificates), ChainLog(chain.genesis, RUN_ID, VERIFIER)
    log.replay(rows)
    return log, rows


def _num_writes(ledger: Ledger) -> int:
    return int(ledger.get(COUNT_ROW) or b"0")


def _rows(status: Mapping[str, object], name: str) -> list[dict[str, object]]:
    rows = status[name]
    assert isinstance(rows, list)
    return rows


async def test_a_restarted_host_knows_how_peers_called_themselves_and_a_name_that_was_given_up_is_gone(
    tmp_path: Path, autojump_clock: object
) -> None:
    clock = VirtualClock()
    with open_host(tmp_path, clock) as world:
        host = await _Host(world).start()
        for peer in (A, B):
            await world.tracker.report(peer, replace(READY, chosen=ChosenName("anna", "oak")))
        await host.look()
        await world.tracker.report(B, READY)
        await trio.sleep(WRITE_EVERY_S + 1.0)
        await host.look()
    with open_host(tmp_path, clock) as world:
        past = (await MemoryKeeper(world.writer, clock).restore()).chosen
    assert past == {A: ChosenName("anna", "oak"), B: ChosenName()}
