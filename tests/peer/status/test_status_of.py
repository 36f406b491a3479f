from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import BulkCount, BulkKind, ControlCount, Network, TrafficCount, Way
from averaging.rounds.lineage.round_reports import (
    DownloadEnded,
    Downloading,
    DownloadProgress,
    LineageSwitched,
    RoundCommitted,
)
from averaging.rounds.unit_service import RoundService
from averaging.storage.disk_room import DiskMeter
from peer.membership.credential_cache import HOST_AWAY_S, CredentialCache
from peer.owner.controls_core import TrainingAllowance
from peer.status.health import APART_AFTER_S
from peer.status.status import LaneStatus
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources, known_peers, latest_rounds, status_of
from peer.status.status_text import status_lines
from peer.status.traffic import RoundTraffic
from protocol.frozen import replace
from protocol.host.work_verdict import untold_of, verdict_of
from protocol.identity.chosen_name import ChosenName
from protocol.identity.credential import make_ca, make_request, make_tls_key, open_request
from protocol.identity.identity import Identity
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import SpineView, tree_of
from protocol.rounds.messages.record import Disagreement
from protocol.rounds.state import OpenRound, PeerView
from tests.protocol.rounds.round_table import UNIT, Table
from tests.virtual import InlineOffload, VirtualClock

TOOLS = SimpleNamespace(
    log=SimpleNamespace(bound_bytes=0), generations=SimpleNamespace(refused="no space", num_refused=3, num_damaged=1)
)


async def test_a_round_tells_its_bytes_by_lane_unit_and_codec_in_the_status_and_in_the_list_of_rounds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    seat = table.live()[0]
    kind = BulkKind(Way.DIRECT, "exchange", UNIT, "int8")
    traffic = TrafficCount(3, 4, 50, 60, (BulkCount(kind, 50, 60),), (ControlCount("round", 3, 4),))
    network = SimpleNamespace(traffic=lambda: traffic)
    board = StatusBoard(seat.peer, VirtualClock(), 0.0, network=cast(Network, network))
    sources = Sources(board)
    board.publish(RoundCommitted(seat.head))
    reported = board.rounds.last
    assert reported is not None
    moved = {"way": "direct", "channel": "exchange", "unit": UNIT, "codec": "int8", "bytes_up": 50, "bytes_down": 60}
    said = {"channel": "round", "bytes_up": 3, "bytes_down": 4}
    assert (reported.bytes_up, reported.control_bytes_up, [kind.model_dump() for kind in reported.bulk]) == (
        53,
        3,
        [moved],
    )
    assert [channel.model_dump() for channel in reported.control] == [said]
    assert (status_of(sources).control, status_of(sources).bulk, status_of(sources).bytes_down) == (
        reported.control,
        reported.bulk,
        64,
    )
    sources.service = cast(RoundService, SimpleNamespace(chain=SimpleNamespace(links=(seat.head,))))
    (row,) = latest_rounds(sources)
    assert (row["bytes_down"], row["control_bytes_down"], row["bulk"]) == (64, 4, [moved])
    assert row["control"] == [said]
    board.rounds.traffic = RoundTraffic()
    (unseen,) = latest_rounds(sources)
    assert unseen.keys() == row.keys()
    assert {unseen[name] for name in ("bytes_up", "bytes_down", "control_bytes_up", "control", "bulk")} == {None}


async def test_room_on_the_disk_is_told_once_it_was_looked_at(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    meter = DiskMeter(tmp_path, InlineOffload())
    sources = Sources(StatusBoard(PeerId("peer"), VirtualClock(), 5.0), disk=meter)
    assert status_of(sources).disk_free_bytes is None
    with trio.move_on_after(1.0):
        await meter.keep_measured()
    assert meter.room is not None
    assert (status_of(sources).disk_free_bytes, status_of(sources).disk_all_bytes) == (
        meter.room.free_bytes,
        meter.room.all_bytes,
    )


async def test_before_anything_is_there_the_board_says_where_we_are_and_why() -> None:
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    board.say("waiting", "for the run to start")
    status = status_of(sources)
    assert (status.state, status.reason, status.head, status.index) == ("waiting", "for the run to start", "", 0)


async def test_how_long_it_has_been_so_counts_from_the_change_of_what_is_shown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    assert (status_of(sources).state, status_of(sources).state_s) == ("joining", 0.0)
    await trio.sleep(7.0)
    assert status_of(sources).state_s == 7.0
    board.say("training", "training")
    assert status_of(sources).state_s == 0.0
    await trio.sleep(2.0)
    board.allowed = TrainingAllowance(share=0.0, reason="paused by its owner")
    assert (status_of(sources).state, status_of(sources).state_s) == ("paused", 0.0)
    await trio.sleep(3.0)
    board.allowed = TrainingAllowance(share=0.0, reason="on battery")
    assert (status_of(sources).reason, status_of(sources).state_s) == ("on battery", 3.0)


async def test_a_run_that_pauses_for_a_lost_stage_is_waited_for_and_the_owners_own_pause_is_said_first() -> None:
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    board.say("training", "training")
    sentence = "the run pauses: nobody who is there holds stage 1"
    stand = LaneStatus(None, "free: a lane is waited for", "no move of ours is worth it", 640.0, 10240, paused=sentence)
    sources.lanes = lambda: stand
    assert (status_of(sources).state, status_of(sources).reason) == ("waiting", sentence)
    assert "lanes: free: a lane is waited for; could do 640 tokens/s" in status_lines(status_of(sources))
    assert "stage: no move of ours is worth it" in status_lines(status_of(sources))
    assert status_of(sources).owed_tokens == 10240
    owed = "owed: 10,240 tokens of a finished round are to count in this stage's next one"
    assert owed in status_lines(status_of(sources))
    board.allowed = TrainingAllowance(share=0.0, reason="on battery")
    assert (status_of(sources).state, status_of(sources).reason) == ("paused", "on battery")
    stand, board.allowed = dataclasses.replace(stand, paused=""), TrainingAllowance()
    assert (status_of(sources).state, status_of(sources).reason) == ("spare", "free: a lane is waited for")


async def test_who_serves_no_lane_is_a_spare_and_trains_once_it_serves_one() -> None:
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    board.say("catching up", "looking for the run's newest state")
    stand = LaneStatus(None, "free: a lane is waited for")
    sources.lanes = lambda: stand
    assert status_of(sources).state == "catching up"
    board.say("training", "training")
    status = status_of(sources)
    assert (status.state, status.reason) == ("spare", "free: a lane is waited for")
    assert f"{status.name} in no run yet: spare: free: a lane is waited for" in status_lines(status)
    stand = LaneStatus(3, "stage 1 of lane 3")
    assert status_of(sources).state == "training"


async def test_a_download_that_ended_before_it_was_whole_is_no_longer_shown() -> None:
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    board.publish(Downloading(DownloadProgress(index=3, bytes_here=10, bytes_all=40, num_donors=2)))
    status = status_of(sources)
    assert (status.download_bytes_here, status.download_bytes_all, status.download_donors) == (10, 40, 2)
    board.publish(DownloadEnded())
    status = status_of(sources)
    assert (status.download_bytes_here, status.download_bytes_all, status.download_donors) == (0, 0, 0)


async def test_verdicts_on_others_work_that_the_host_took_are_told_with_the_newest_one() -> None:
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    assert (status_of(sources).audits, status_of(sources).last_audit) == (0, "")
    work = (UnitName("fragment-0"), CommitId(bytes(32)), PeerId("bob"), Root(bytes(32)))
    board.rounds.given.audited(verdict_of(*work, gap=0.9, length_ratio=0.97))
    status = status_of(sources)
    assert status.last_audit.startswith(f"{peer_name(PeerId('bob'))}: its work fits its own text by 87%")
    assert "50% of what is usual" in status.last_audit
    assert "97% of the length (it asks for 55%)" in status.last_audit
    board.rounds.given.audited(untold_of(*work))
    board.rounds.given.audit_now = "doing 32 steps again"
    board.rounds.given.untellable = "several replicas train here"
    status = status_of(sources)
    assert (status.audits, status.audit_now) == (2, "doing 32 steps again")
    assert status.untellable == "several replicas train here"
    assert "told no steps" in status.last_audit


async def test_what_a_start_found_on_the_disk_stays_in_the_status() -> None:
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    assert status_of(sources).restarted == ""
    board.has_restarted("restarted at round 3; nothing was lost")
    board.say("training", "training")
    assert status_of(sources).restarted == "restarted at round 3; nothing was lost"


def _roster(clock: VirtualClock, days: int) -> CredentialCache:
    run, me, unix_s = RunId(b"r" * 32), Identity(b"a" * 32), clock.unix_s()
    authority = make_ca(b"c" * 32, now_unix_s=unix_s)
    request = make_request(me, run, make_tls_key(), unix_s)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=run, now_unix_s=unix_s)
    credential = authority.issue(opened, run, now_unix_s=unix_s, days=days, serial=1)
    return CredentialCache(run, authority.certificate_der, PeerId("host"), credential, Ed25519Verifier(), clock)


async def test_the_membership_is_told_credential_host_bans_and_ways_in(autojump_clock: trio.testing.MockClock) -> None:
    clock = VirtualClock()
    sources, roster = Sources(StatusBoard(PeerId("peer"), clock, 5.0)), _roster(clock, days=30)
    assert (status_of(sources).credential_left_s, status_of(sources).host_heard_ago_s) == (None, None)
    sources.has_joined(roster, ("/ip4/192.0.2.1/tcp/1/p2p/one", "/ip4/192.0.2.1/tcp/2/p2p/two"), 7)
    roster.ban([PeerId("bad")])
    status = status_of(sources)
    assert status.credential_left_s == pytest.approx(30 * 86400.0, abs=2.0)
    assert (status.session, status.bans, status.ways_in, status.is_host_away) == (7, 1, 2, False)
    await trio.sleep(HOST_AWAY_S + 1)
    status = status_of(sources)
    assert status.is_host_away
    assert status.host_heard_ago_s == pytest.approx(HOST_AWAY_S + 1)
    roster.host_was_heard()
    assert (status_of(sources).is_host_away, status_of(sources).host_heard_ago_s) == (False, 0.0)


async def test_an_own_credential_that_has_ended_is_told_and_breaks_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = VirtualClock()
    board = StatusBoard(PeerId("peer"), clock, 5.0)
    sources = Sources(board)
    sources.has_joined(_roster(clock, days=1), (), 7)
    await trio.sleep(2 * 86400.0)
    assert status_of(sources).credential_left_s == pytest.approx(-86400.0, abs=2.0)
    assert sources.roster is not None
    sources.roster.show(b"garbage")
    assert status_of(sources).credential_left_s is None


async def test_a_state_that_differs_from_the_attested_one_is_told(autojump_clock: trio.testing.MockClock) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    seat = table.live()[0]
    board = StatusBoard(seat.peer, VirtualClock(), 0.0)
    sources = Sources(board)
    assert status_of(sources).is_sound
    chain = SimpleNamespace(
        links=(),
        head=seat.head,
        root=bytes(32),
        rooted=seat.head.commit,
        disk_bound_bytes=0,
        is_sound=False,
        tools=TOOLS,
    )
    state = replace(seat.state, open=OpenRound())
    sources.service = SimpleNamespace(  # type: ignore[assignment]
        unit=UNIT, chain=chain, state=state, reason="", waiting="round 2 is due"
    )
    assert not status_of(sources).is_sound
    assert status_of(sources).round_waiting == "round 2 is due"
    assert status_of(sources).trouble == "the disk refuses: no space"
    assert (status_of(sources).writes_refused, status_of(sources).generations_damaged) == (3, 1)
    chain.is_sound = True
    assert status_of(sources).is_sound


async def test_nobody_answers_is_told_while_the_run_lasts_and_not_once_it_is_complete(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    seat = table.live()[0]
    clock = VirtualClock()
    sources = Sources(StatusBoard(seat.peer, clock, 0.0), roster=_roster(clock, 30))
    chain = SimpleNamespace(
        links=(),
        head=seat.head,
        root=bytes(32),
        rooted=seat.head.commit,
        disk_bound_bytes=0,
        is_sound=True,
        tools=TOOLS,
    )
    state = replace(seat.state, open=OpenRound())
    sources.service = SimpleNamespace(unit=UNIT, chain=chain, state=state, reason="", waiting="")  # type: ignore[assignment]
    await trio.sleep(3600.0)
    sources.board.say("training", "training")
    assert "trains on" in status_of(sources).offline
    sources.board.say("finished", "the run is complete")
    assert status_of(sources).offline == ""


async def test_who_disagrees_with_the_others_for_many_rounds_is_told_so(autojump_clock: trio.testing.MockClock) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    seat = table.live()[0]
    record = seat.head.record
    assert record is not None
    parts = (dataclasses.replace(part, disagreeing=(Disagreement(seat.peer, 1, -50),)) for part in record.slices)
    disagreeing = dataclasses.replace(seat.head, content=dataclasses.replace(record, slices=tuple(parts)))
    sources = Sources(StatusBoard(seat.peer, VirtualClock(), 0.0))
    chain = SimpleNamespace(
        head=seat.head, root=bytes(32), rooted=seat.head.commit, disk_bound_bytes=0, is_sound=True, tools=TOOLS
    )
    state = replace(seat.state, open=OpenRound())
    sources.service = SimpleNamespace(unit=UNIT, chain=chain, state=state, reason="", waiting="")  # type: ignore[assignment]
    told = {}
    for name, links in {"few": [disagreeing] * 5, "many": [disagreeing] * 20, "honest": [seat.head] * 20}.items():
        chain.links = tuple(links)
        told[name] = "disagreed with most others'" in status_of(sources).trouble
    assert told == {"few": False, "many": True, "honest": False}


async def test_next_round_and_the_time_left_of_the_run_are_told(autojump_clock: trio.testing.MockClock) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 3 for seat in table.live()))
    seat = table.live()[0]
    tree = seat.state.tree
    path = tree.path(tree.root, seat.head.commit)
    assert path is not None
    missed, newest = path[-2].link, path[-1].link
    board = StatusBoard(seat.peer, VirtualClock(), 0.0, target_total_tokens=3 * newest.total_tokens)
    board.known_commits = lambda: tree
    sources = Sources(board)
    chain = SimpleNamespace(
        links=(), head=newest, root=bytes(32), rooted=seat.head.commit, disk_bound_bytes=0, is_sound=True, tools=TOOLS
    )
    state = replace(seat.state, open=OpenRound(), committed_at_s=trio.current_time())
    sources.service = SimpleNamespace(unit=UNIT, chain=chain, state=state, reason="", waiting="")  # type: ignore[assignment]
    await trio.sleep(12.0)
    status = status_of(sources)
    assert (status.eta_s, status.round_waited_s) == (None, pytest.approx(12.0))
    assert (status.round_target_tokens, status.round_longest_s) == (newest.target_tokens, 60.0)
    board.rounds.eta.committed(0, board.clock.unix_s())
    await trio.sleep(10.0)
    board.publish(RoundCommitted(missed))  # it came late, and says nothing of how fast rounds are made
    assert status_of(sources).eta_s is None
    board.publish(RoundCommitted(newest))
    assert status_of(sources).eta_s == pytest.approx(20.0)
    board.publish(LineageSwitched(path, ()))
    assert status_of(sources).eta_s is None


async def test_peers_and_rounds_are_told_as_the_round_service_knows_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board = StatusBoard(PeerId("me"), VirtualClock(), 0.0)
    sources = Sources(board)
    assert (known_peers(sources), latest_rounds(sources)) == ([], [])
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 2 for seat in table.live()))
    seat = table.live()[0]
    tree = seat.state.tree
    path = tree.path(tree.root, seat.head.commit)
    assert path is not None
    views = {
        PeerId(name): PeerView(
            PeerId(name), heard_at_s=trio.current_time() - ago_s, left=name == "left", lost=name == "lost"
        )
        for name, ago_s in (("here", 0.0), ("left", 0.0), ("lost", 0.0), ("silent", 100.0))
    }
    links = [tree.nodes[tree.root].link, *(node.link for node in path)]
    state, chain = replace(seat.state, peers=MappingProxyType(views)), SimpleNamespace(links=links)
    sources.service = SimpleNamespace(state=state, chain=chain)  # type: ignore[assignment]
    rows = known_peers(sources)
    assert [row["state"] for row in rows] == ["joining", "here", "left", "lost", "silent", "away", "away", "away"]
    assert [row["peer"] for row in rows[5:]] == sorted(other.peer for other in table.live())
    sources.roster = cast(
        CredentialCache,
        SimpleNamespace(
            is_banned=lambda peer: peer == "lost", chosen={PeerId(name): ChosenName(f"I am {name}") for name in views}
        ),
    )
    assert [row["peer"] for row in known_peers(sources) if row["is_banned"]] == ["lost"]
    assert known_peers(sources)[1]["nickname"] == f"I am {known_peers(sources)[1]['peer']}"
    juniors = {PeerId("here"): PeerStanding.STRANGER, sources.board.peer: PeerStanding.MEMBER}
    known = replace(state, barred=state.barred.told(juniors, None))
    sources.service = SimpleNamespace(state=known, chain=chain)  # type: ignore[assignment]
    assert [row["standing"] for row in known_peers(sources)][:3] == ["member", "stranger", "keeper"]
    assert [row["index"] for row in latest_rounds(sources)] == [link.index for link in links if link.record is not None]
    sources.board.peer = seat.peer
    sources.service = SimpleNamespace(state=state, chain=chain)  # type: ignore[assignment]
    credited = [
        entry.credited_tokens
        for link in links
        if link.record is not None
        if (entry := link.record.contributor(seat.peer)) is not None
    ]
    counted = {row["peer"]: (row["tokens_counted"], row["rounds_counted"]) for row in known_peers(sources)}
    others = {other.peer for other in table.live()} - {seat.peer}
    assert {peer: count for peer, count in counted.items() if peer not in others} == {
        **dict.fromkeys(views, (0, 0)), seat.peer: (sum(credited), len(credited))
    }  # fmt: skip
    assert all(counted[peer][0] > 0 for peer in others)
    assert credited


async def test_peer_that_was_never_heard_has_no_time_at_which_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    views = {PeerId(name): PeerView(PeerId(name), heard_at_s=at_s) for name, at_s in (("a", 0.0), ("b", 90.0))}
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    monkeypatch.setattr(board.clock, "monotonic_s", lambda: 100.0)
    state = replace(Table(1).live()[0].state, peers=MappingProxyType(views))
    chain = SimpleNamespace(links=())
    sources.service = SimpleNamespace(state=state, chain=chain)  # type: ignore[assignment]
    assert [row["last_seen_s"] for row in known_peers(sources)] == [0.0, None, 10.0]


async def test_who_does_not_hold_the_spine_is_apart_only_where_the_host_follows_records_of_it_that_are_not_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spine = ChainLink(UnitName("stage-0"), CommitId(b"0" * 32), 0, (PeerId("peer"),), 0, 100)
    own = ChainLink(UnitName("stage-1"), CommitId(b"1" * 32), 0, (PeerId("peer"),), 0, 100)
    now_s = 100.0
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    sources = Sources(board)
    monkeypatch.setattr(board.clock, "monotonic_s", lambda: now_s)
    sources.service = SimpleNamespace(chain=SimpleNamespace(links=(own,)))  # type: ignore[assignment]
    sources.follower = SimpleNamespace(view=SpineView(spine.commit, tree_of(spine)))  # type: ignore[assignment]
    for _ in range(3):
        board.hears_host(sources.spine_links, spine.commit, 0)
        now_s += APART_AFTER_S
    assert board.divergence_text == ""
    for _ in range(3):
        board.hears_host(sources.spine_links, CommitId(b"x" * 32), 1)
        now_s += APART_AFTER_S
    assert "the run is at round 1, this peer at a round 0" in board.divergence_text
