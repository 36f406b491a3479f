from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from averaging.rounds.lineage.round_context import Changes, Tasks
from averaging.rounds.lineage.round_reports import RoundReport, TaskFailed
from protocol.errors import CallTimeout, PotluckError, StorageError

Clock = trio.testing.MockClock
Reported = list[RoundReport]


def _tasks() -> tuple[Tasks, Reported]:
    reported: Reported = []
    return Tasks(reported.append), reported


async def _fail() -> None:
    raise StorageError("no space left on the disk", "room")


async def _fail_together() -> None:
    async def late() -> None:
        await trio.sleep(0.1)
        raise CallTimeout("no answer", "an answer")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(late)
        nursery.start_soon(_shielded_failure)


async def _shielded_failure() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(0.1)
        raise StorageError("no space left on the disk", "room")


async def test_everybody_who_waits_hears_of_a_change_and_nobody_of_one_before(autojump_clock: Clock) -> None:
    changes, heard = Changes(), list[int]()

    async def wait(number: int) -> None:
        await changes.wait()
        heard.append(number)

    changes.notify()
    async with trio.open_nursery() as nursery:
        for number in (1, 2):
            nursery.start_soon(wait, number)
        await trio.sleep(1.0)
        assert heard == []
        changes.notify()
        await trio.sleep(1.0)
        assert sorted(heard) == [1, 2]
        nursery.start_soon(wait, 3)
        await trio.sleep(1.0)
        assert 3 not in heard
        changes.notify()


@pytest.mark.parametrize("failing", [_fail, _fail_together])
async def test_what_fails_in_a_task_is_told_and_nothing_else_falls_with_it(
    failing: Callable[[], Awaitable[None]], autojump_clock: Clock
) -> None:
    tasks, reported = _tasks()
    done = trio.Event()

    async def go_on(after_s: float) -> None:
        await trio.sleep(after_s)
        done.set()

    async with trio.open_nursery() as nursery:
        tasks.use(nursery)
        tasks.spawn(go_on, 1.0)
        tasks.spawn(failing)
        await done.wait()
    failed = [report for report in reported if isinstance(report, TaskFailed)]
    assert failed == reported
    assert {report.task for report in failed} == {failing.__name__}
    assert any("no space left" in report.reason and report.is_of_disk for report in failed)


async def test_a_bug_is_no_failure_of_a_task_and_goes_on(autojump_clock: Clock) -> None:
    tasks, reported = _tasks()

    async def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await tasks.guarded(bug)
    assert reported == []


async def test_a_bug_beside_an_error_is_not_hidden_by_it(autojump_clock: Clock) -> None:
    tasks, reported = _tasks()

    async def both() -> None:
        raise ExceptionGroup("both", [StorageError("no space left on the disk"), ZeroDivisionError()])

    with pytest.raises(ExceptionGroup) as caught:
        await tasks.guarded(both)
    assert caught.group_contains(ZeroDivisionError)
    assert not caught.group_contains(PotluckError)
    assert len(reported) == 1


async def test_nothing_starts_before_there_is_a_nursery(autojump_clock: Clock) -> None:
    tasks, reported = _tasks()
    tasks.spawn(_fail)
    await trio.sleep(1.0)
    async with trio.open_nursery() as nursery:
        tasks.use(nursery)
    assert reported == []


async def test_what_comes_after_the_service_has_ended_begins_nothing_and_breaks_nothing(autojump_clock: Clock) -> None:
    (tasks, reported), begun = _tasks(), list[int]()

    async def begin(number: int) -> None:
        begun.append(number)

    async with trio.open_nursery() as nursery:
        tasks.use(nursery)
        tasks.spawn(begin, 1)
    for number in (2, 3):
        tasks.spawn(begin, number)
    await trio.sleep(1.0)
    assert (begun, reported) == ([1], [])
