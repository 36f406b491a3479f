from __future__ import annotations

import trio.testing

from averaging.network.seams.clocks import VirtualClock
from peer.status.health import SHOWN_S, HealthNotes
from peer.status.status_board import StatusBoard
from protocol.ids import PeerId

FULL = {"task": "_vote", "reason": "could not append to rounds.log: No space left on device", "is_of_disk": True}
DIFFERS = "our state at commit 7 is not the one that the run attests: making it again"


def test_a_disk_that_refuses_is_told_for_an_hour_and_counted() -> None:
    trouble = HealthNotes()
    trouble.take("task_failed", FULL, 10.0)
    trouble.take("task_failed", FULL, 20.0)
    assert trouble.sentence([], 20.0 + SHOWN_S - 1) == f"the disk refuses: {FULL['reason']}"
    assert trouble.sentence([], 20.0 + SHOWN_S) == ""
    assert trouble.num_refused == 2


def test_what_failed_for_another_reason_is_no_trouble_of_the_disk() -> None:
    trouble = HealthNotes()
    trouble.take("task_failed", {"task": "_fetch", "reason": "nobody answers", "is_of_disk": False}, 10.0)
    assert (trouble.sentence([], 10.0), trouble.num_refused) == ("", 0)


def test_a_generation_that_was_not_written_is_told_until_one_is() -> None:
    trouble = HealthNotes()
    assert trouble.sentence(["", "no space", "no space"], 1e6) == "the disk refuses: no space"
    assert trouble.sentence(["", ""], 1e6) == ""


def test_a_state_that_differs_is_told_in_words_until_it_is_made_again() -> None:
    trouble = HealthNotes()
    trouble.take("state_differs", {"reason": DIFFERS}, 1.0)
    assert trouble.sentence(["no space"], 2.0) == f"the disk refuses: no space; {DIFFERS}"
    trouble.take("state_healed", {"reason": "healed"}, 3.0)
    assert trouble.sentence([], 4.0) == ""


async def test_the_status_tells_what_any_unit_told(autojump_clock: trio.testing.MockClock) -> None:
    for publish in (StatusBoard.publish, StatusBoard.publish_other_unit):
        board = StatusBoard(PeerId("p"), VirtualClock(0.0), 0.0)
        publish(board, "task_failed", FULL)
        publish(board, "state_differs", {"reason": DIFFERS})
        status = board.read()
        assert "No space left" in status.trouble
        assert DIFFERS in status.trouble
        assert (status.writes_refused, status.generations_damaged) == (1, 0)
