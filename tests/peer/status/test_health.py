"""Tests of peer/status/health.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from averaging.rounds.lineage.round_reports import StateDiffers, StateHealed, TaskFailed
from averaging.storage.full_disk import FULL_SHOWN_S, ROOM_BELIEVED_S
from peer.status.health import (
    APART_AFTER_S,
    MOST_LEFT_OUT,
    OFFLINE_AFTER_S,
    SHOWN_S,
    UNHEARD_AFTER_S,
    DiskSight,
    HealthNotes,
    Isolation,
    LineageDivergence,
    after_report,
    disagreement_sentence,
    isolation,
    offline_sentence,
)
from peer.status.status import PeerStatus
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources, status_of
from peer.status.status_text import is_disk_full
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.round_row import RECENT_ROUNDS
from tests.virtual import VirtualClock

FULL = TaskFailed("_vote", "could not append to rounds.log: No space left on device", is_of_disk=True)
REFUSES = TaskFailed("_vote", "could not append to rounds.log: Input/output error", is_of_disk=True)
DISK = DiskSight(Path("/state"), needed_bytes=9_000_000)
DIFFERS = "our state at commit 7 is not the one that the run attests: making it again"


def test_a_disk_that_refuses_is_told_for_an_hour_and_counted() -> None:
    trouble = HealthNotes()
    trouble.take(REFUSES, 10.0)
    trouble.take(REFUSES, 20.0)
    assert trouble.sentence([], 20.0 + SHOWN_S - 1, DISK) == f"the disk refuses: {REFUSES.reason}"
    assert trouble.sentence([], 20.0 + SHOWN_S, DISK) == ""
    assert trouble.num_refused == 2


def test_full_disk_is_one_sentence_with_what_is_needed_and_free_however_many_writes_it_refused() -> None:
    trouble, disk = HealthNotes(), replace(DISK, free_bytes=4096)
    trouble.take(FULL, 10.0)
    said = trouble.sentence(["generation 4: No space left on device", "generation 5: Disk quota exceeded"], 11.0, disk)
    assert said == "the disk at /state is full: 9.0 MB needed, 4.1 kB free; free space and it goes on"
    assert HealthNotes().sentence([], 11.0, disk) == said
    assert is_disk_full(PeerStatus.model_construct(trouble=said))


def test_full_disk_is_forgotten_soon_once_there_is_room_and_later_where_a_quota_may_be_used_up() -> None:
    trouble, disk = HealthNotes(), replace(DISK, free_bytes=10_000_000)
    trouble.take(FULL, 10.0)
    assert "is full: it refuses to take more" in trouble.sentence([], 10.0 + ROOM_BELIEVED_S - 1, disk)
    assert trouble.sentence([], 10.0 + ROOM_BELIEVED_S, disk) == ""
    assert "is full: " in trouble.sentence([], 10.0 + ROOM_BELIEVED_S, DISK), "nobody has looked"
    trouble.take(replace(FULL, reason="could not append to rounds.log: Disk quota exceeded"), 10.0)
    assert "a quota is used up" in trouble.sentence([], 10.0 + FULL_SHOWN_S - 1, disk)
    assert trouble.sentence([], 10.0 + FULL_SHOWN_S, disk) == ""


def test_silence_of_everybody_is_told_in_one_sentence_and_nobodys_or_a_short_one_is_not() -> None:
    assert (
        offline_sentence([45.0, 50.0])
        == "offline for 45 s: no other peer and no host answers; trains on, counted later"
    )
    assert offline_sentence([45.0, 2.0]) == offline_sentence([OFFLINE_AFTER_S - 1]) == offline_sentence([]) == ""


def test_who_disagrees_too_much_for_many_rounds_is_told_and_who_does_by_chance_is_not() -> None:
    assert disagreement_sentence(MOST_LEFT_OUT, RECENT_ROUNDS) == ""
    assert disagreement_sentence(1.0, RECENT_ROUNDS - 1) == ""
    told = disagreement_sentence(0.12, RECENT_ROUNDS)
    assert told.startswith(f"12% of this peer's work in its last {RECENT_ROUNDS} rounds disagreed")


def test_what_failed_for_another_reason_is_no_trouble_of_the_disk() -> None:
    trouble = HealthNotes()
    trouble.take(TaskFailed("_fetch", "nobody answers", is_of_disk=False), 10.0)
    assert (trouble.sentence([], 10.0, DISK), trouble.num_refused) == ("", 0)


def test_a_generation_that_was_not_written_is_told_until_one_is() -> None:
    trouble = HealthNotes()
    assert trouble.sentence(["", "no space", "no space"], 1e6, DISK) == "the disk refuses: no space"
    assert trouble.sentence(["", ""], 1e6, DISK) == ""


def test_a_state_that_differs_is_told_in_words_until_it_is_made_again() -> None:
    trouble = HealthNotes()
    trouble.take(StateDiffers(DIFFERS), 1.0)
    assert trouble.sentence(["no space"], 2.0, DISK) == f"the disk refuses: no space; {DIFFERS}"
    trouble.take(StateHealed("healed"), 3.0)
    assert trouble.sentence([], 4.0, DISK) == ""


async def test_the_status_tells_what_any_unit_told(autojump_clock: trio.testing.MockClock) -> None:
    for publish in (StatusBoard.publish, StatusBoard.publish_other_unit):
        board = StatusBoard(PeerId("p"), VirtualClock(0.0), 0.0)
        publish(board, FULL)
        publish(board, StateDiffers(DIFFERS))
        status = status_of(Sources(board))
        assert status.trouble.startswith("the disk at . is full: ")
        assert DIFFERS in status.trouble
        assert (status.writes_refused, status.generations_damaged) == (1, 0)


def _commit(number: int) -> CommitId:
    return CommitId(bytes([number]) * 32)


LINKS = tuple(
    ChainLink(UnitName("whole"), _commit(index), index, (PeerId("me"),), 100 * index, 100) for index in range(5)
)


def test_who_has_the_hosts_head_or_is_ahead_of_it_or_has_not_begun_is_not_apart() -> None:
    for links, head, index in [(LINKS, _commit(4), 4), (LINKS, _commit(2), 2), ((), _commit(77), 9)]:
        before = LineageDivergence(since_s=1.0, host_index=9)
        assert after_report(before, links, head, index, 500.0).sentence(1000.0) == ""


def test_who_lacks_the_hosts_head_for_long_is_told_since_when_and_what_follows() -> None:
    apart = LineageDivergence()
    for now_s in (100.0, 102.0, 100.0 + APART_AFTER_S - 1):
        apart = after_report(apart, LINKS, _commit(90), 81, now_s)
        assert apart.sentence(now_s) == ""
    reported = apart.sentence(100.0 + 2 * APART_AFTER_S)
    assert "for 2 min" in reported
    assert "round 81" in reported
    assert "round 4 of its own" in reported
    assert "potluck doctor" in reported


def test_another_commit_of_a_round_that_is_here_is_apart_too() -> None:
    apart = after_report(LineageDivergence(), LINKS, _commit(90), 3, 100.0)
    assert "the run is at round 3, this peer at a round 4 of its own" in apart.sentence(100.0 + APART_AFTER_S)


def test_once_the_hosts_head_is_here_the_time_begins_anew() -> None:
    apart = after_report(LineageDivergence(), LINKS, _commit(90), 81, 100.0)
    apart = after_report(apart, LINKS, _commit(4), 4, 101.0)
    apart = after_report(apart, LINKS, _commit(90), 82, 150.0)
    assert apart.sentence(100.0 + APART_AFTER_S) == ""


def test_ports_of_the_host_that_do_not_answer_are_a_trouble_until_they_do() -> None:
    health = HealthNotes()
    health.hears_of_ports("the host answers at 10.9.0.2:4100, but not at 10.9.0.2:4101")
    assert health.sentence(["no space"], 1.0, DISK) == (
        "the host answers at 10.9.0.2:4100, but not at 10.9.0.2:4101; the disk refuses: no space"
    )
    health.hears_of_ports("")
    assert health.sentence([], 1.0, DISK) == ""


@pytest.mark.parametrize(
    ("hears_anybody", "live_others", "is_outbound_only", "is_apart"),
    [
        (True, 2, True, False),
        (False, 2, False, True),
        (False, 0, True, False),  # the host hears nobody either: this peer is alone in truth
        (False, None, True, True),  # nobody can tell
        (False, None, False, False),  # others could connect to this peer, and do not
    ],
)
def test_a_peer_is_apart_while_others_work_whom_it_does_not_hear(
    hears_anybody: bool, live_others: int | None, is_outbound_only: bool, is_apart: bool
) -> None:
    found = isolation(
        Isolation(),
        hears_anybody=hears_anybody,
        live_others=live_others,
        is_outbound_only=is_outbound_only,
        now_s=5.0,
    )
    assert found.is_apart is is_apart


def test_the_owner_of_an_unheard_peer_is_told_once_and_when_it_is_heard_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = VirtualClock()
    board = StatusBoard(PeerId("me"), clock, 0.0)

    def note(*, hears_anybody: bool) -> None:
        board.note_isolation(
            isolation(
                board.isolation,
                hears_anybody=hears_anybody,
                live_others=1,
                is_outbound_only=True,
                now_s=clock.monotonic_s(),
            )
        )

    async def story() -> None:
        note(hears_anybody=False)
        assert status_of(Sources(board)).is_unheard
        assert status_of(Sources(board)).apart == ""
        await trio.sleep(UNHEARD_AFTER_S)
        note(hears_anybody=False)
        note(hears_anybody=False)
        assert "another peer is at work" in status_of(Sources(board)).apart
        note(hears_anybody=True)
        assert status_of(Sources(board)).apart == ""

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    said = capsys.readouterr().out
    assert said.count("unheard") == 1
    assert said.count("heard_again") == 1


def test_a_peer_that_follows_a_round_late_is_not_apart_though_it_is_behind_at_each_of_its_rare_reports() -> None:
    apart = LineageDivergence()
    for round_index in range(1, 5):
        behind = LINKS[:round_index]
        now_s = 100.0 + 50.0 * round_index
        apart = after_report(apart, behind, _commit(round_index), round_index, now_s)
        assert apart.sentence(now_s) == ""
    assert apart.sentence(300.0 + APART_AFTER_S - 1.0) == ""
