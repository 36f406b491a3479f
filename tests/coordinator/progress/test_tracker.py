"""The tracker when its ledger or its callers let it down; the rest of it is tested through the service."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from structlog.testing import capture_logs

from coordinator.ledger.ledger import COUNTED_COMMITS, Ledger
from coordinator.presence.presence import FORGET_S, LIVE_S
from coordinator.progress.chain_log import MAX_ON_BASE
from coordinator.progress.live_lineages import PATIENCE_S
from coordinator.progress.restart_report import GATHER_S
from coordinator.progress.run_core import Phase
from coordinator.progress.run_view import MISSED_AFTER_S, hidden_peers
from coordinator.status.run_json import FETCHING_S, status_json
from protocol.errors import RemoteProtocolError, StorageError
from protocol.host.calls import START_DOMAIN
from protocol.host.host_statements import HostStatements
from protocol.host.report_pace import WAITING_EVERY_S
from protocol.host.reports import HELPING, NO_START_NEWS, EnergySpent, HeldoutResult, OwnCounts, PeerReport, StartNews
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import Identity
from protocol.ids import CommitId
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.start import StartRecord
from protocol.rounds.messages.wire import decode_body
from tests.coordinator.admission.test_service import chain_of
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


@pytest.mark.parametrize("says_all", [True, False], ids=["all say it", "an older peer does not"])
async def test_the_start_record_names_the_disks_of_the_founders_where_all_say_theirs(
    tmp_path: Path, autojump_clock: object, says_all: bool
) -> None:
    with open_host(tmp_path) as host:
        disks = {peer.peer_id: 5 + place for place, peer in enumerate(PEERS)}
        for place, (peer, disk) in enumerate(disks.items()):
            await host.tracker.report(peer, replace(READY, incarnation=disk if place or says_all else 0))
        sealed = open_envelope(
            host.tracker.news().start_record,
            verifier=VERIFIER,
            domain=START_DOMAIN,
            run_id=host.run_id,
            now_unix_ms=None,
        )
        start = decode_body(StartRecord, sealed.payload)
        assert start.incarnations == (tuple(disks[peer] for peer in start.roster) if says_all else ())
        assert start.rules == NEW_RUNS


async def test_an_answer_names_how_many_others_are_at_work_without_those_that_left_or_have_not_begun(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        at_work = replace(READY, head=CommitId(bytes(32)))
        replies = [await host.tracker.report(peer.peer_id, at_work) for peer in PEERS]
        assert [reply.live_others for reply in replies] == list(range(len(PEERS)))
        await host.tracker.report(PEERS[0].peer_id, replace(at_work, state="left"))
        await host.tracker.report(PEERS[1].peer_id, READY)
        last = await host.tracker.report(PEERS[2].peer_id, at_work)
        assert last.live_others == len(PEERS) - 3


async def test_a_peer_that_waits_for_the_start_hears_why_and_then_the_start_record_and_nobody_else_does(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        first = await host.tracker.report(PEERS[0].peer_id, READY)
        assert first.start == StartNews("waiting for peers: 1 of at least 2 are ready")
        assert first.again_in_s == WAITING_EVERY_S
        await _all_ready(host)
        told = await host.tracker.report(PEERS[0].peer_id, READY)
        assert told.start.start_record == host.tracker.start_record != b""
        training = replace(READY, head=CommitId(bytes(32)))
        assert (await host.tracker.report(PEERS[0].peer_id, training)).start == NO_START_NEWS


async def test_the_mean_loss_of_all_peers_is_made_only_when_the_head_moves(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    monkeypatch.setattr("coordinator.progress.tracker.mean_train_loss", lambda peers, now_s: made.append(now_s))
    with open_host(tmp_path) as host:
        await _all_ready(host)
        chain = chain_of(host)
        for _ in range(3):
            await host.tracker.report(PEERS[0].peer_id, _reported(chain, 1))
        assert made == []
        chain.commit()
        await host.tracker.report(PEERS[0].peer_id, _reported(chain, 1))
        assert len(made) == 1


async def test_the_energy_of_peers_adds_up_with_the_carbon_of_the_runs_grid(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        for place, peer in enumerate(PEERS):
            energy = EnergySpent(3.6e6, 100) if place else None
            await host.tracker.report(peer.peer_id, replace(READY, counts=OwnCounts((), energy)))
        sums = host.tracker.energy.sums()
        assert (sums.num_peers, sums.kwh, sums.carbon_kg) == (len(PEERS) - 1, len(PEERS) - 1.0, None)


async def test_a_helper_counts_as_no_member_and_its_goodbye_is_not_shown(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        helper, peer = PEERS[0].peer_id, PEERS[1].peer_id
        for state in (HELPING, "leaving", "left"):
            await host.tracker.report(helper, PeerReport(state, "", UNIT))
        await host.tracker.report(helper, PeerReport(HELPING, "", UNIT))
        assert set(host.tracker.helpers) == {helper}
        for gone in (PeerReport(HELPING, "", UNIT, is_outbound_only=True), PeerReport("leaving", "", UNIT)):
            await host.tracker.report(helper, gone)
            assert host.tracker.helpers == {}
        await host.tracker.report(peer, replace(READY, is_outbound_only=True))
        assert set(host.tracker.peers) == host.tracker.live_peers() == {peer}
        assert list(hidden_peers(host.tracker.picture(), host.clock.monotonic_s())) == [True]


async def test_a_peer_speaks_for_its_own_address_only(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        one, two = PEERS[0].peer_id, PEERS[1].peer_id
        own, forged = f"/ip4/192.0.2.1/tcp/1/p2p/{one}", f"/ip4/192.0.2.9/tcp/9/p2p/{two}"
        await host.tracker.report(one, PeerReport("training", "", UNIT, addresses=(own, forged)))
        assert host.tracker.addresses_of([one, two]) == (own,)
        assert host.tracker.addresses_of([two]) == ()


# --- what was missed -------------------------------------------------------------------------------------------------------------


def _reported(chain: Chain, want: int, start_record: bytes = b"") -> PeerReport:
    """The answer of a peer on this chain that is asked for `want`."""
    commit, index, total = chain.head
    certificates = tuple(chain.certificates[max(0, want - 1) :][:64])
    return PeerReport(
        "training",
        "",
        UNIT,
        head=commit,
        index=index,
        total_tokens=total,
        certificates=certificates,
        signed=HostStatements(start_record),
    )


def _grown(chain: Chain, rounds: int, tokens: int) -> Chain:
    for _ in range(rounds):
        chain.commit((tokens, tokens, tokens))
    return chain


async def _hear(host: HostWorld, number: int, chain: Chain, *, reports: int, want: int) -> int:
    """One peer reports so many times, always what it was asked for last; returns what it is asked for now."""
    for _ in range(reports):
        want = (await host.tracker.report(PEERS[number].peer_id, _reported(chain, want))).want_from_index
    return want


def _old_copy(folder: Path, target: Path) -> Path:
    """A copy as an owner makes one, of the file and what SQLite keeps beside it."""
    return Path(shutil.copytree(folder, target))


async def test_an_old_copy_of_the_ledger_is_filled_from_reports_with_both_sides_of_a_fork_whoever_comes_first(
    tmp_path: Path, autojump_clock: object
) -> None:
    (tmp_path / "host").mkdir()
    with open_host(tmp_path / "host") as host:
        await _all_ready(host)
        trunk = _grown(chain_of(host), 3, 10)
        await _hear(host, 0, trunk, reports=1, want=1)
    _old_copy(tmp_path / "host", tmp_path / "copy 0")
    _old_copy(tmp_path / "host", tmp_path / "copy 1")
    long, heavy = _grown(trunk.clone(), 90, 1), _grown(trunk.clone(), 2, 150)
    for number, order in enumerate(((long, heavy), (heavy, long))):
        folder = tmp_path / f"copy {number}"
        with open_host(folder) as host:
            await host.tracker.restore()
            assert host.tracker.state.index == 3
            for peer, chain in enumerate(order):  # each goes on from what the lost host had asked it for
                assert await _hear(host, peer, chain, reports=4, want=chain.head[1] + 1) == chain.head[1] + 1
            assert host.tracker.state.head == heavy.head[0]  # of a lower index than the other side
            assert host.tracker.picture().missing == ()
            assert host.tracker.picture().num_forks == 1
        with open_host(folder) as host:
            await host.tracker.restore()
            assert host.tracker.state.head == heavy.head[0]
            rows = {row.commit for row in host.ledger.commits(UNIT)}
            assert rows == {commit for chain in order for commit, _, _ in chain.commits}


async def test_a_copy_from_before_the_start_takes_the_start_record_back_and_signs_no_second_one(
    tmp_path: Path, autojump_clock: object
) -> None:
    (tmp_path / "copy").mkdir()
    with open_host(tmp_path) as host:
        await _all_ready(host)
        sealed, chain = host.tracker.start_record, _grown(chain_of(host), 2, 10)
    shutil.copy(tmp_path / "ca.der", tmp_path / "copy")
    with open_host(tmp_path / "copy") as host:
        training = _reported(chain, want=3)
        assert (await host.tracker.report(PEERS[0].peer_id, training)).phase == "gathering"
        for peer in PEERS[1:]:  # newcomers, as many as a start takes
            await host.tracker.report(peer.peer_id, READY)
        assert host.tracker.state.phase is Phase.GATHERING
        assert "has started before" in host.tracker.news().reason
        reply = await host.tracker.report(PEERS[0].peer_id, _reported(chain, want=1, start_record=sealed))
        assert (reply.phase, reply.head) == ("training", chain.head[0])
        assert host.ledger.get("start record") == sealed


async def test_a_start_record_that_is_not_the_hosts_own_is_refused(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        chain = Chain(host.run_id)
        forged = seal(PEERS[0], START_DOMAIN, host.run_id, 0, NEVER_MS, chain.start_payload)
        with pytest.raises(RemoteProtocolError, match="did not sign"):
            await host.tracker.report(PEERS[0].peer_id, _reported(chain, want=1, start_record=forged))
        with pytest.raises(RemoteProtocolError, match="other units"):
            await host.tracker.report(PEERS[0].peer_id, _reported(chain, want=1, start_record=chain.sealed_start))
        assert host.tracker.state.phase is Phase.GATHERING


async def test_commits_that_nobody_brings_are_said_also_when_who_told_of_them_is_gone(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        chain = _grown(chain_of(host), 4, 10)
        commit, index, _ = chain.head
        silent = PeerReport("training", "", UNIT, head=commit, index=index)
        await host.tracker.report(PEERS[0].peer_id, silent)

        def missing() -> list[dict[str, object]]:
            return list(status_json(host.tracker.picture(), host.clock.monotonic_s())["missing"])  # type: ignore[call-overload]

        assert missing() == [], "another may be bringing them at this moment"
        await trio.sleep(MISSED_AFTER_S)
        (row,) = missing()
        assert (row["peer"], row["index"], row["from_index"], row["reason"]) == (
            PEERS[0].peer_id,
            4,
            1,
            "being fetched",
        )
        await trio.sleep(FETCHING_S + FORGET_S + 1)
        await host.tracker.tick()
        (row,) = missing()
        assert "nobody has sent" in str(row["reason"])
        await _hear(host, 1, chain, reports=1, want=1)
        assert missing() == []


async def test_a_hole_in_the_ledger_is_said_and_filled_by_the_first_peer(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        chain = _grown(chain_of(host), 6, 10)
        await _hear(host, 0, chain, reports=1, want=1)
        host.ledger._db.execute("DELETE FROM commits WHERE round_index = 3")
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        assert host.tracker.state.index == 2
        assert [(m.peer, m.head, m.index) for m in host.tracker.picture().missing] == [("", chain.head[0], 6)]
        assert await _hear(host, 0, chain, reports=2, want=7) == 7
        assert host.tracker.state.head == chain.head[0]
        assert host.tracker.picture().missing == ()


async def test_what_a_report_brings_is_in_the_ledger_whole_or_not_at_all(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        chain = _grown(chain_of(host), 1, 10)
        commit, index, total = chain.head
        report = PeerReport(
            "training",
            "",
            UNIT,
            head=commit,
            index=index,
            certificates=tuple(chain.certificates),
            heldout=(HeldoutResult(commit, index, total, 1.5, 2.5),),
        )
        full = "CREATE TRIGGER full BEFORE INSERT ON loss_points BEGIN SELECT RAISE(ABORT, 'full'); END"
        host.ledger._db.execute(full)
        with pytest.raises(StorageError, match="full"):
            await host.tracker.report(chain.evaluator.peer_id, report)
        assert (host.tracker.state.index, list(host.ledger.commits(UNIT))) == (0, [])
        host.ledger._db.execute("DROP TRIGGER full")
        await host.tracker.report(chain.evaluator.peer_id, report)
        assert host.tracker.state.index == 1
        assert [(p.kind, p.nats) for p in host.ledger.loss_points()] == [("heldout", 1.5), ("prose", 2.5)]


async def _with_commits(host: HostWorld, num_commits: int) -> Chain:
    await _all_ready(host)
    sealed = host.tracker.start_record
    envelope = open_envelope(sealed, verifier=VERIFIER, domain=START_DOMAIN, run_id=host.run_id, now_unix_ms=None)
    chain = Chain(host.run_id, given_start=envelope.payload)
    for _ in range(num_commits):
        chain.commit(tokens=(10, 10, 10))
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
        reported = [line["reason"] for line in said if line["event"] == "restarted"]
        assert reported == ["restarted at round 2; nothing was lost"]


async def test_a_host_that_was_killed_before_it_heard_of_the_first_round_says_as_well_that_nothing_was_lost(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain = await _with_commits(host, 0)
    with open_host(tmp_path) as host, capture_logs() as said:
        await host.tracker.restore()
        await host.tracker.tick()
        assert not [line for line in said if line["event"] == "restarted"], "no peer has reported yet"
        await _hear(host, 1, _grown(chain, 2, 100), reports=1, want=1)
        await host.tracker.tick()
        reported = [line["reason"] for line in said if line["event"] == "restarted"]
        assert reported == ["restarted at round 0; nothing was lost"]


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
        (reported,) = [line["reason"] for line in said if line["event"] == "restarted"]
        assert "work since round 1 was lost" in reported


async def test_survivors_that_redid_the_newest_rounds_as_other_commits_are_told_as_a_fork_and_not_as_nothing_lost(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain = await _with_commits(host, 3)
    survivors = Chain(host.run_id, given_start=chain.given_start)
    survivors.commits, survivors.certificates = chain.commits[:1], chain.certificates[:1]
    _grown(survivors, 3, 150)
    with open_host(tmp_path) as host, capture_logs() as said:
        await host.tracker.restore()
        await _hear(host, 1, survivors, reports=3, want=4)
        assert host.tracker.state.head == survivors.head[0]
        await host.tracker.tick()
        assert host.tracker.picture().restarted == "", "the others are given time to come back"
        await trio.sleep(GATHER_S)
        await host.tracker.tick()
        await host.tracker.tick()
        (reported,) = [line["reason"] for line in said if line["event"] == "restarted"]
        assert "restarted at round 3, but the peers that are back went on from round 1" in reported
        assert "2 rounds were lost unless another peer brings them" in reported
        assert host.tracker.picture().restarted == reported
        await host.tracker.report(PEERS[2].peer_id, _at(chain, 3))
        await host.tracker.tick()
        assert host.tracker.picture().restarted == "restarted at round 3; nothing was lost"


async def _ended_on_what_is_left(host: HostWorld) -> tuple[Chain, Chain]:
    """A lineage that is preferred and gone with its holders, and the other one, on which the run has ended."""
    gone = await _with_commits(host, 1)
    left = gone.clone()
    _grown(gone, 4, 80)
    for _ in range(3):
        left.commit((112, 112, 112), voters=len(left.members), lone=True)
    await _hear(host, 0, gone, reports=2, want=2)
    ended_s = trio.current_time() + 2 * PATIENCE_S
    while trio.current_time() < ended_s:
        await _hear(host, 1, left, reports=2, want=2)
        await host.tracker.tick()
        await trio.sleep(5.0)
        is_early = trio.current_time() < PATIENCE_S
        assert not is_early or host.tracker.state.head == gone.head[0], "its holders may come back"
    return gone, left


async def test_when_a_preferred_lineage_is_gone_with_its_holders_the_host_follows_and_ends_with_who_is_left(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        _, left = await _ended_on_what_is_left(host)
        assert (host.tracker.state.head, host.tracker.state.phase) == (left.head[0], Phase.FINISHED)
        assert host.tracker.picture().rounds[-1].row.index == left.head[1]


async def test_a_run_that_ended_with_who_was_left_is_still_over_when_its_host_starts_again_and_nobody_comes(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        gone, left = await _ended_on_what_is_left(host)
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        for _ in range(3):
            await host.tracker.tick()
            assert (host.tracker.state.head, host.tracker.state.phase) == (left.head[0], Phase.FINISHED)
        await _hear(host, 0, gone, reports=2, want=2)
        await host.tracker.tick()
        assert host.tracker.state.head == gone.head[0], "a holder of the preferred lineage is back"
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        assert host.tracker.state.head == gone.head[0]


async def test_where_the_ledger_cannot_note_that_another_lineage_counts_it_is_tried_again_and_nothing_moves_before(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_host(tmp_path) as host:
        real, is_full = Ledger.put, True

        def put(ledger: Ledger, name: str, value: bytes) -> None:
            if is_full and name == COUNTED_COMMITS:
                raise StorageError("the ledger could not be used (disk full)", "a writable file")
            real(ledger, name, value)

        monkeypatch.setattr(Ledger, "put", put)
        gone, left = await _ended_on_what_is_left(host)
        assert host.tracker.state.head == gone.head[0]
        is_full = False
        await host.tracker.tick()
        assert host.tracker.state.head == left.head[0]


async def test_a_head_that_nobody_has_proven_says_nothing_about_what_was_lost(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain = await _with_commits(host, 2)
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        unproven = _grown(chain.clone(), 3, 5)
        await host.tracker.report(PEERS[1].peer_id, _at(unproven, 5))
        await trio.sleep(GATHER_S)
        await host.tracker.tick()
        assert host.tracker.picture().restarted == ""


async def test_who_makes_too_many_lone_commits_on_one_base_is_refused_and_who_passes_them_on_is_not(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        trunk = chain_of(host)
        sides = []
        for number in range(MAX_ON_BASE + 1):
            side = trunk.clone()
            side.members = PEERS[:1]
            side.commit((number + 1,), voters=1, lone=True)
            sides.append(side)
        everything = tuple(side.certificates[-1] for side in sides)
        await host.tracker.report(PEERS[0].peer_id, replace(_reported(trunk, 1), certificates=everything[:-1]))
        with pytest.raises(
            RemoteProtocolError, match=f"one more beside {MAX_ON_BASE} commits of .* at most {MAX_ON_BASE}"
        ):
            await _hear(host, 0, sides[-1], reports=1, want=1)
        reply = await host.tracker.report(PEERS[1].peer_id, replace(_reported(trunk, 1), certificates=everything))
        assert reply.want_from_index == 1
        assert len(host.ledger.commits(UNIT)) == MAX_ON_BASE


async def test_a_report_of_an_expert_that_the_run_has_not_is_one_clear_line_and_changes_nothing(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        with pytest.raises(RemoteProtocolError, match="a report that names expert 3; expected none"):
            await host.tracker.report(PEERS[0].peer_id, replace(READY, experts=(3,)))
        assert host.tracker.peers == {}
        await _all_ready(host)
        assert host.tracker.state.phase is Phase.TRAINING


# --- held-out losses --------------------------------------------------------------------------------------------------------------


def _measured(chain: Chain, nats: float) -> PeerReport:
    """The report of a peer on this chain that measured its newest commit."""
    commit, index, total = chain.head
    return replace(_reported(chain, 1), heldout=(HeldoutResult(commit, index, total, nats),))


def _shown(host: HostWorld) -> list[tuple[int, float]]:
    """The curve of the held-out loss, in memory and in the ledger."""
    shown = [(p.index, p.nats) for p in host.tracker.picture().loss_points if p.kind == "heldout"]
    assert sorted(shown) == sorted((p.index, p.nats) for p in host.ledger.loss_points() if p.kind == "heldout")
    return shown


async def test_a_loss_of_a_peer_whose_turn_it_is_not_is_shown_after_two_more_commits_and_gives_way_to_the_evaluators(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        chain = _grown(chain_of(host), 1, 10)
        first, evaluator = chain.clone(), chain.evaluator
        stand_in = next(peer for peer in PEERS if peer != evaluator)
        for _ in range(2):
            await host.tracker.report(stand_in.peer_id, _measured(first, 0.01))
        _grown(chain, 1, 10)
        await host.tracker.report(evaluator.peer_id, _reported(chain, 1))
        assert _shown(host) == []
        _grown(chain, 1, 10)
        await host.tracker.report(evaluator.peer_id, _reported(chain, 1))
        assert _shown(host) == [(1, 0.01)]
        await host.tracker.report(evaluator.peer_id, _measured(first, 2.5))
        assert _shown(host) == [(1, 2.5)]
        await host.tracker.report(stand_in.peer_id, _measured(first, 0.01))
        assert _shown(host) == [(1, 2.5)]
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        assert _shown(host) == [(1, 2.5)]


async def test_a_stand_ins_loss_is_shown_once_the_evaluator_is_silent(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        chain = _grown(chain_of(host), 1, 10)
        others = [peer for peer in PEERS if peer != chain.evaluator]
        await host.tracker.report(others[0].peer_id, _measured(chain, 2.0))
        await host.tracker.tick()
        assert _shown(host) == []
        await trio.sleep(LIVE_S + 1.0)
        await host.tracker.tick()
        assert _shown(host) == [(1, 2.0)]


async def test_a_peer_outside_the_roster_has_no_say_about_a_loss_and_a_line_says_so(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        chain = _grown(chain_of(host), 3, 10)
        with capture_logs() as said:
            await host.tracker.report(Identity(b"z" * 32).peer_id, _measured(chain, 0.01))
        assert [line["event"] for line in said if "measured commit 3" in line.get("reason", "")] == ["heldout_refused"]
        await trio.sleep(LIVE_S + 1.0)
        await host.tracker.tick()
        assert _shown(host) == []


# --- lone commits -----------------------------------------------------------------------------------------------------------------


def _taken_alone(trunk: Chain) -> Chain:
    """A lineage that one peer made alone on the trunk's head, up to the run's end."""
    alone = replace(trunk.clone(), members=PEERS[:1])
    alone.commit((300,), voters=1, lone=True)
    for _ in range(3):
        alone.commit((300,), voters=1)
    return alone


async def _all_stand_on(host: HostWorld, chain: Chain) -> None:
    for number in range(len(PEERS)):
        await _hear(host, number, chain, reports=1, want=1)


async def test_a_lineage_that_one_peer_made_alone_ends_no_run_and_has_no_curve_while_most_voters_are_here(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        trunk = _grown(chain_of(host), 1, 10)
        await _all_stand_on(host, trunk)
        await trio.sleep(LIVE_S - 1.0)
        await _all_stand_on(host, trunk)
        await trio.sleep(2.0)
        alone = _taken_alone(trunk)
        with capture_logs() as said:
            report = replace(_measured(alone, 0.01), tokens_per_s=100.0, loss_nats=0.01)
            for _ in range(3):
                await host.tracker.report(PEERS[0].peer_id, report)
                await host.tracker.tick()
        assert [line["event"] for line in said].count("lone_not_followed") == 1
        assert (host.tracker.state.head, host.tracker.state.phase) == (trunk.head[0], Phase.TRAINING)
        assert [point for point in host.tracker.picture().loss_points if point.index > 1] == []
        assert len(host.ledger.commits(UNIT)) == 5, "it is recorded all the same"
        _grown(trunk, 1, 10)
        await _hear(host, 1, trunk, reports=1, want=1)
        assert host.tracker.state.head == trunk.head[0]


async def test_a_lone_lineage_is_followed_once_most_of_the_others_are_silent_and_stays_so_when_they_are_back(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        trunk = _grown(chain_of(host), 1, 10)
        await _all_stand_on(host, trunk)
        alone = _taken_alone(trunk)
        for _ in range(4):
            await trio.sleep(LIVE_S / 3)
            await _hear(host, 0, alone, reports=1, want=1)
            await host.tracker.tick()
        assert (host.tracker.state.head, host.tracker.state.phase) == (alone.head[0], Phase.FINISHED)
        for number in (1, 2):
            await _hear(host, number, trunk, reports=1, want=1)
        await host.tracker.tick()
        assert host.tracker.state.head == alone.head[0], "they were gone when it was made"


async def test_a_host_that_starts_again_follows_neither_an_old_nor_a_new_lone_lineage_before_it_has_heard_the_others(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await _all_ready(host)
        trunk = _grown(chain_of(host), 1, 10)
        await _all_stand_on(host, trunk)
        alone = _taken_alone(trunk)
        await _hear(host, 0, alone, reports=1, want=1)
        assert host.tracker.state.head == trunk.head[0]
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        other = replace(trunk.clone(), members=PEERS[:1])
        other.commit((7,), voters=1, lone=True)
        for chain in (alone, other):
            await _hear(host, 0, chain, reports=1, want=1)
            await host.tracker.tick()
        assert (host.tracker.state.head, host.tracker.state.phase) == (trunk.head[0], Phase.TRAINING)
        await trio.sleep(LIVE_S)
        await _hear(host, 0, alone, reports=1, want=1)
        await host.tracker.tick()
        assert host.tracker.state.head == alone.head[0], "nobody else came"
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        assert (host.tracker.state.head, host.tracker.state.phase) == (alone.head[0], Phase.FINISHED)
