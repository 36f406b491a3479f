"""How often the directory is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import DirectoryEntry
from averaging.rounds.traffic.directory_keys import DirectoryKeys
from averaging.rounds.traffic.discovery import (
    AGAIN_FIRST_S,
    AGAIN_GROWTH,
    AGAIN_LAST_S,
    ANNOUNCE_EVERY_S,
    CHANGED_RATIO,
    IN_ROUNDS,
    LIST_EVERY_S,
    LONGEST_LOOK_S,
    LOOK_BYTES_PER_S,
    SETTLED_LIST_EVERY_S,
    DirectoryPoller,
    Rhythm,
    announce,
    list_peers,
)
from protocol.ids import PeerId, RunId
from tests.virtual import VirtualClock

Clock = trio.testing.MockClock
ME = PeerId("me")


class _Directory:
    """The records of present peers, and the times of polls."""

    def __init__(self, *names: str, record: bytes = b"record") -> None:
        self.peer_id = ME
        self.record = record
        self.names = [*names]
        self.looks_s: list[float] = []

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        await trio.lowlevel.checkpoint()
        self.looks_s.append(trio.current_time())
        return [DirectoryEntry(name, self.record, 1e12) for name in self.names]

    @property
    def waits_s(self) -> list[float]:
        return [round(b - a, 3) for a, b in zip(self.looks_s, self.looks_s[1:], strict=False)]


def _poller(directory: _Directory | _Board, patience_s: float = 0.0) -> DirectoryPoller:
    return DirectoryPoller(directory, DirectoryKeys(RunId(bytes(32))), patience_s)  # type: ignore[arg-type]


async def _look(directory: _Directory, seconds: float, settled_every_s: float = SETTLED_LIST_EVERY_S) -> int:
    """Lists for so long; how often anybody was told."""
    num_reported = 0

    async def take(entries: Sequence[DirectoryEntry]) -> None:
        nonlocal num_reported
        await trio.lowlevel.checkpoint()
        num_reported += 1

    with trio.move_on_after(seconds):
        await list_peers(_poller(directory), take, Rhythm(settled_every_s=settled_every_s))
    return num_reported


class _Board:
    """The published records and their times."""

    def __init__(self) -> None:
        self.peer_id = ME
        self.published: list[tuple[float, bytes]] = []

    async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
        self.published.append((trio.current_time(), value))
        await trio.sleep(1.0)
        return True


async def test_a_record_that_says_something_else_is_published_at_once_also_where_it_changes_while_one_is_published(
    autojump_clock: Clock,
) -> None:
    board, says, changed = _Board(), [b"nothing"], [trio.Event()]

    def say(what: bytes) -> None:
        says[0], old, changed[0] = what, changed[0], trio.Event()
        old.set()

    async def make(_expires_unix_s: float) -> bytes:
        await trio.lowlevel.checkpoint()
        return says[0]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(announce, _poller(board), VirtualClock(1000.0), make, lambda: changed[0])
        await trio.sleep(5.0)
        say(b"one")
        await trio.sleep(0.5)
        say(b"two")
        await trio.sleep(ANNOUNCE_EVERY_S + 3.0)
        nursery.cancel_scope.cancel()
    at_s = [round(time_s - board.published[0][0], 3) for time_s, _ in board.published]
    assert at_s == [0.0, 5.0, 6.0, 6.0 + 1.0 + ANNOUNCE_EVERY_S]
    assert [value for _, value in board.published] == [b"nothing", b"one", b"two", b"two"]


async def test_a_settled_swarm_is_listed_rarely_and_a_changed_one_soon_again(autojump_clock: Clock) -> None:
    directory = _Directory("me", "one")

    async def come() -> None:
        await trio.sleep(200.0)
        directory.names.append("two")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        assert await _look(directory, 300.0) == len(directory.looks_s)
    assert directory.waits_s == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 5.0, 10.0, 20.0][: len(directory.waits_s)]
    assert len(directory.waits_s) >= 9


@pytest.mark.parametrize("num_peers", [32, 64, 256])
async def test_a_large_swarm_that_is_settled_is_listed_so_rarely_that_its_records_stay_within_what_idle_peers_may_take(
    num_peers: int, autojump_clock: Clock
) -> None:
    directory = _Directory(*(f"peer {number:03}" for number in range(num_peers)), record=bytes(950))
    await _look(directory, 40_000.0)
    look_bytes = num_peers * (len("peer 000") + 950)
    assert directory.waits_s[-2:] == [round(min(LONGEST_LOOK_S, look_bytes / LOOK_BYTES_PER_S), 3)] * 2


async def test_a_look_of_somebody_else_takes_the_place_of_one_at_a_settled_swarm(autojump_clock: Clock) -> None:
    directory, taken = _Directory("me", "one"), list[tuple[float, int]]()
    poller = _poller(directory, patience_s=30.0)

    async def take(entries: Sequence[DirectoryEntry]) -> None:
        await trio.lowlevel.checkpoint()
        taken.append((trio.current_time(), len(entries)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(list_peers, poller, take, IN_ROUNDS)
        await trio.sleep(201.0)
        del directory.looks_s[:], taken[:]
        directory.names.append("two")
        for _ in range(10):
            await trio.sleep(60.0)
            await poller.poll()
        nursery.cancel_scope.cancel()
    assert [num for _, num in taken] == [2] * 12, "what the other looks found is taken, but for the last"
    assert directory.looks_s[-8:] == [381.0 + 60.0 * number for number in range(8)], "none of ours once it is settled"


async def test_nobody_who_looks_for_a_reason_of_its_own_is_waited_for_longer_than_was_said(
    autojump_clock: Clock,
) -> None:
    directory = _Directory("me", "one")

    async def take(entries: Sequence[DirectoryEntry]) -> None:
        await trio.lowlevel.checkpoint()

    with trio.move_on_after(600.0):
        await list_peers(_poller(directory, 30.0), take, IN_ROUNDS)
    assert directory.waits_s[:4] == [5.0, 10.0, 20.0, 40.0]
    assert directory.waits_s[-2:] == [90.0, 90.0]


async def test_a_large_swarm_in_which_somebody_comes_is_looked_at_as_soon_as_its_records_may_be_brought_again(
    autojump_clock: Clock,
) -> None:
    directory = _Directory(*(f"peer {number:03}" for number in range(31)), record=bytes(950))

    async def come() -> None:
        await trio.sleep(5_000.0)
        directory.names.append("peer 031")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        await _look(directory, 6_500.0)
    look_bytes = 32 * (len("peer 000") + 950)
    changed_s, settled_s = (
        round(look_bytes / rate, 3) for rate in (CHANGED_RATIO * LOOK_BYTES_PER_S, LOOK_BYTES_PER_S)
    )
    came = directory.waits_s.index(changed_s)
    assert directory.waits_s[came + 1] == settled_s, "one look soon, and nothing between"


async def test_who_came_first_looks_each_second(autojump_clock: Clock) -> None:
    directory = _Directory("me")
    assert await _look(directory, 10.5) == 0
    assert directory.waits_s == [1.0] * 10


async def test_a_directory_that_is_away_is_asked_less_often_each_time_and_as_ever_once_it_is_back(
    autojump_clock: Clock,
) -> None:
    directory = _Directory()

    async def come() -> None:
        await trio.sleep(120.0)
        directory.names.append("me")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        assert await _look(directory, 150.0) == 0
    assert directory.waits_s[:4] == [round(AGAIN_FIRST_S * AGAIN_GROWTH**times, 3) for times in range(4)]
    assert max(directory.waits_s) == AGAIN_LAST_S
    assert directory.waits_s[-10:] == [AGAIN_FIRST_S] * 10


async def test_who_waits_for_somebody_to_come_looks_as_often_as_ever(autojump_clock: Clock) -> None:
    directory = _Directory("me", "one")
    directory.record = bytes(8000)
    await _look(directory, 31.0, LIST_EVERY_S)
    assert directory.waits_s == [LIST_EVERY_S] * 6


# --- looks shared by all in a process -----------------------------------------------------------------------------------------


class _SlowDirectory(_Directory):
    """Answers after 3 s."""

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        found = await super().lookup(key)
        await trio.sleep(3.0)
        return found


async def test_two_who_look_at_the_same_time_ask_the_directory_once(autojump_clock: Clock) -> None:
    directory, found = _SlowDirectory("me", "one"), list[int]()
    poller = _poller(directory)

    async def look(after_s: float) -> None:
        await trio.sleep(after_s)
        found.append(len(await poller.poll()))

    async with trio.open_nursery() as nursery:
        for after_s in (0.0, 1.0, 2.9, 5.0):
            nursery.start_soon(look, after_s)
    assert found == [2] * 4
    assert directory.looks_s == [0.0, 5.0]


async def test_who_waits_for_a_look_that_is_given_up_looks_itself(autojump_clock: Clock) -> None:
    directory = _SlowDirectory("me", "one")
    poller = _poller(directory)

    async def give_up() -> None:
        with trio.move_on_after(1.0):
            await poller.poll()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        await trio.sleep(0.5)
        assert len(await poller.poll()) == 2
    assert directory.looks_s == [0.0, 1.0]


def test_pauses_between_looks_follow_what_was_found() -> None:
    def found(num_peers: int) -> list[DirectoryEntry]:
        return [DirectoryEntry(f"peer {number:03}", bytes(952), 1e12) for number in range(num_peers)]

    few, many, waiting = found(2), found(32), Rhythm(5.0, 5.0, 64.0)
    rhythm = Rhythm(5.0, 60.0, 64.0)
    assert [rhythm.next_s(few, last_s, is_same=True) for last_s in (5.0, 20.0, 40.0, 60.0)] == [10.0, 40.0, 60.0, 60.0]
    assert rhythm.next_s(few, 60.0, is_same=False) == 5.0
    assert rhythm.next_s(many, 60.0, is_same=True) == rhythm.settled_s(many) == 32 * 960 / 64.0
    assert rhythm.next_s(many, 480.0, is_same=False) == 80.0
    assert [waiting.next_s(many, 5.0, is_same=is_same) for is_same in (False, True)] == [5.0, 5.0]
    assert Rhythm(5.0, 60.0, float("inf")).next_s(many, 40.0, is_same=True) == 60.0
