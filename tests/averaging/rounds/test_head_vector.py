from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from averaging.rounds.head_vector import VECTOR_LOG, HeadVector, Mover
from averaging.state.log_entries import LOG_NAME
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import UNBOUNDED_BYTES
from protocol.errors import LocalProtocolError, StorageError
from protocol.ids import UnitName
from protocol.rounds.messages.wire import encode_certificate
from tests.averaging.rounds.round_world import UNIT
from tests.averaging.rounds.units_world import BOTH, SIDE, Forked, forked_units, prepared_for, storage_of

Clock = trio.testing.MockClock
OURS, THEIRS = ["ours", "ours"], ["theirs", "theirs"]


def _logs(forked: Forked) -> dict[str, list[bytes]]:
    return {name: list(log) for name, log in forked.party.disk.logs.items()}


# --- all or none --------------------------------------------------------------------------------------------------------------


async def test_all_units_flip_and_a_restart_finds_them_there(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        await forked.vector.move(forked.movers)
        assert forked.heads() == THEIRS
        roots = {unit: chain.root for unit, chain in forked.chains.items()}
        before = _logs(forked)
        await forked.restart()
        assert forked.heads() == THEIRS
        assert {unit: chain.root for unit, chain in forked.chains.items()} == roots
        assert _logs(forked) == before, "there was nothing left to bring up"


async def test_the_log_of_heads_holds_one_move_however_often_they_move(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        sides, disk = forked.sides[UNIT], forked.party.disk
        elsewhere = replace(sides, theirs=[forked.world.commit_on(sides.agreed.link, 30, members=[1, 2])])
        third = await prepared_for(forked.chains[UNIT], elsewhere)
        await forked.vector.move(forked.movers)
        first = list(disk.logs[VECTOR_LOG])
        forked.prepared[UNIT] = third
        await forked.vector.move([forked.mover(UNIT)])
        (record, done) = disk.logs[VECTOR_LOG]
        assert (record != first[0], done) == (True, first[1])
        disk.logs[VECTOR_LOG] = [*first, record, done]
        await forked.restart()
        assert disk.logs[VECTOR_LOG] == [done], "as an old log is left that was only ever appended to"
        assert forked.chains[UNIT].head == elsewhere.theirs[-1].link


async def test_where_one_unit_has_left_its_fork_nothing_changes(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        astray = replace(forked.mover(SIDE), has=lambda commit: False)
        before = _logs(forked)
        with pytest.raises(LocalProtocolError, match=f"{SIDE} has left the lineage"):
            await forked.vector.move([forked.mover(UNIT), astray])
        assert (forked.heads(), _logs(forked)) == (OURS, before)
        assert not any(chain.moving.locked() for chain in forked.chains.values())
        await forked.vector.move(forked.movers)
        assert forked.heads() == THEIRS


async def test_a_record_that_cannot_be_written_changes_nothing_and_the_move_may_be_tried_again(
    autojump_clock: Clock,
) -> None:
    async with forked_units() as forked:
        before, vector = _logs(forked), forked.vector
        forked.party.disk.fail_with_disk_full_after(10)
        with pytest.raises(StorageError, match="no space"):
            await vector.move(forked.movers)
        assert (forked.heads(), _logs(forked)) == (OURS, before)
        forked.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await vector.move(forked.movers)
        assert forked.heads() == THEIRS


async def test_no_commit_is_applied_to_a_unit_while_the_heads_move(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        chain = forked.chains[SIDE]
        more = forked.world.commit_on(chain.head, 9, members=[0], is_lone=True)
        await more.write_to(chain.tools.log)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forked.vector.move, forked.movers)
            await trio.sleep(0.001)
            with pytest.raises(LocalProtocolError, match="follow"):
                await chain.apply(more.link, more.certificate)
        assert forked.heads() == THEIRS


async def test_two_moves_at_once_do_not_wait_for_each_other_for_ever(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        vector = forked.vector
        with trio.fail_after(5.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(vector.move, forked.movers)
                nursery.start_soon(vector.move, forked.movers[::-1])
        assert forked.heads() == THEIRS


# --- crashes ------------------------------------------------------------------------------------------------------------------


async def _stopped_at(forked: Forked, unit: UnitName | None) -> None:
    """The process dies in a move when it comes to this unit's flip, or to the end of the record where it is None."""

    async def never() -> bool:
        await trio.sleep_forever()
        return False

    movers: list[Mover] = [replace(mover, flip=never) if mover.move.unit == unit else mover for mover in forked.movers]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(forked.vector.move, movers)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("stopped", [UNIT, SIDE])
async def test_after_the_record_every_log_is_brought_up_at_the_next_start_and_once_is_enough(
    stopped: UnitName, autojump_clock: Clock
) -> None:
    async with forked_units() as forked:
        await _stopped_at(forked, stopped)
        assert forked.heads() != THEIRS
        forked.party.crash()
        await forked.restart()
        assert forked.heads() == THEIRS
        before = _logs(forked)
        await forked.restart()
        assert (forked.heads(), _logs(forked)) == (THEIRS, before)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("moment_s", [0.002, 0.005, 0.009, 0.013, 0.018, 0.03, 0.06])
async def test_a_crash_at_any_moment_leaves_all_heads_here_or_all_there(
    moment_s: float, seed: int, autojump_clock: Clock
) -> None:
    async with forked_units() as forked:
        disk = forked.party.disk

        async def move() -> None:
            try:
                await forked.vector.move(forked.movers)
            except StorageError:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            await trio.sleep(moment_s)
            was_recorded = VECTOR_LOG in disk.logs
            disk.crash(random.Random(seed))
        await forked.restart()
        assert forked.heads() in (OURS, THEIRS)
        assert forked.heads() == THEIRS or not was_recorded


async def test_a_crash_during_the_bringing_up_is_made_good_by_the_next_start(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        await _stopped_at(forked, SIDE)
        for moment_s in (0.002, 0.006):
            disk = forked.party.disk
            forked.party.crash()

            async def restart() -> None:
                try:
                    await forked.restart()
                except StorageError:
                    return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(restart)
                await trio.sleep(moment_s)
                disk.crash(random.Random(3))
        await forked.restart()
        assert forked.heads() == THEIRS


async def test_where_only_the_last_word_is_missing_nothing_is_written_twice(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        await forked.vector.move(forked.movers)
        noted = forked.party.disk.logs[VECTOR_LOG].pop()
        before = _logs(forked)
        await forked.restart()
        before[VECTOR_LOG].append(noted)
        assert (forked.heads(), _logs(forked)) == (THEIRS, before)


async def test_a_unit_that_left_the_lineage_again_is_not_taken_back(autojump_clock: Clock) -> None:
    """The last word is missing, and meanwhile the unit moved by itself to a lineage that forked off before the first fork."""
    async with forked_units() as forked:
        await forked.vector.move(forked.movers)
        forked.party.disk.logs[VECTOR_LOG].pop()
        chain, world = forked.chains[SIDE], forked.world
        elsewhere = [world.commit_on(chain.links[0], 20, members=[1, 2])]
        elsewhere.append(world.commit_on(elsewhere[0].link, 21, members=[1, 2]))
        sides = replace(forked.sides[SIDE], theirs=elsewhere)
        sides = replace(sides, agreed=replace(sides.agreed, link=chain.links[0]))
        await chain.switch(await prepared_for(chain, sides))
        await forked.restart()
        assert forked.chains[SIDE].head == elsewhere[-1].link
        assert forked.chains[UNIT].state.head == forked.sides[UNIT].theirs[-1].link.commit


async def test_a_start_without_any_record_writes_nothing_and_units_that_are_no_longer_held_are_passed_over(
    autojump_clock: Clock,
) -> None:
    async with forked_units() as forked:
        before = _logs(forked)
        await forked.restart()
        assert (forked.heads(), _logs(forked)) == (OURS, before)
        await _stopped_at(forked, UNIT)
        await forked.vector.finish({UNIT: forked.chains[UNIT].tools.log})
        chain = forked.chains[SIDE]
        await chain.restore()
        assert chain.state.head == forked.sides[SIDE].ours.link.commit


# --- a disk that refuses ------------------------------------------------------------------------------------------------------


def _log_name(unit: UnitName) -> str:
    return LOG_NAME if unit == UNIT else f"{unit}/{LOG_NAME}"


async def _moved_with_a_full_disk(forked: Forked, vector: HeadVector) -> None:
    """The record fits, no unit's log does."""
    await _stopped_at(forked, UNIT)
    (record,) = forked.party.disk.logs.pop(VECTOR_LOG)
    forked.party.disk.fail_with_disk_full_after(len(record))
    await vector.move(forked.movers)
    assert forked.party.disk.logs[VECTOR_LOG] == [record]
    assert forked.heads() == THEIRS, "the record is the truth"


async def test_units_whose_logs_cannot_be_written_flip_in_memory_and_in_their_logs_at_the_next_start(
    autojump_clock: Clock,
) -> None:
    async with forked_units() as forked:
        before = {unit: len(forked.party.disk.logs[_log_name(unit)]) for unit in BOTH}
        await _moved_with_a_full_disk(forked, forked.vector)
        assert {unit: len(forked.party.disk.logs[_log_name(unit)]) for unit in BOTH} == before
        forked.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await forked.restart()
        assert forked.heads() == THEIRS
        assert {unit: len(forked.party.disk.logs[_log_name(unit)]) - 1 for unit in BOTH} == before


async def test_a_commit_on_a_flip_that_is_not_logged_yet_is_logged_after_it_and_survives_a_restart(
    autojump_clock: Clock,
) -> None:
    async with forked_units() as forked:
        chain, sides = forked.chains[SIDE], forked.sides[SIDE]
        more = forked.world.commit_on(sides.theirs[-1].link, 9, members=[1, 2])
        await more.write_to(chain.tools.log)
        await _moved_with_a_full_disk(forked, forked.vector)
        forked.party.disk.fail_with_disk_full_after(len(encode_certificate(more.certificate)) + 33)
        with pytest.raises(StorageError, match="no space"):
            await chain.apply(more.link, more.certificate)
        forked.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await chain.apply(more.link, more.certificate)
        await forked.restart()
        assert forked.chains[SIDE].head == more.link
        assert forked.chains[UNIT].state.head == forked.sides[UNIT].theirs[-1].link.commit


async def test_the_next_move_waits_until_all_logs_tell_of_the_last_one(autojump_clock: Clock) -> None:
    async with forked_units() as forked:
        sides, vector = forked.sides[UNIT], forked.vector
        elsewhere = replace(sides, theirs=[forked.world.commit_on(sides.agreed.link, 30, members=[1, 2])])
        third = await prepared_for(forked.chains[UNIT], elsewhere)
        await _moved_with_a_full_disk(forked, vector)
        forked.prepared[UNIT] = third
        forked.party.disk.fail_with_disk_full_after(10)
        with pytest.raises(StorageError, match="no space"):
            await vector.move([forked.mover(UNIT)])
        assert forked.heads() == THEIRS
        forked.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await vector.move([forked.mover(UNIT)])
        await forked.restart()
        assert forked.chains[UNIT].head == elsewhere.theirs[-1].link
        assert forked.chains[SIDE].head == forked.sides[SIDE].theirs[-1].link, "it is where the first move put it"


class RefusedLog(UnitLog):
    """A log that cannot write its pending entries."""

    async def settle(self) -> None:
        raise StorageError("no space left on the disk", "some")


async def test_a_move_that_comes_while_another_is_under_way_waits_for_what_becomes_of_its_logs(
    autojump_clock: Clock,
) -> None:
    async with forked_units() as forked:
        vector, reported = forked.vector, []

        async def flip() -> bool:
            await trio.sleep(1.0)
            return False

        async def second() -> None:
            with pytest.raises(StorageError, match="no space"):
                await vector.move([forked.mover(UNIT)])
            reported.append(trio.current_time())

        refused = replace(forked.mover(SIDE), log=RefusedLog(storage_of(forked.party, SIDE)), flip=flip)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(vector.move, [refused])
            await trio.sleep(0.1)
            nursery.start_soon(second)
        assert reported[0] - began_s >= 1.0
        assert forked.chains[UNIT].state.head == forked.sides[UNIT].ours.link.commit


# --- a damaged record ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda record: b"", id="nothing"),
        pytest.param(lambda record: b"X" + record[1:], id="of another kind"),
        pytest.param(lambda record: record[:-1], id="cut short"),
        pytest.param(lambda record: record[:3], id="cut in a length"),
        pytest.param(lambda record: record + bytes(4), id="with a field too many"),
        pytest.param(lambda record: record[:1] + b"\xff" * 4 + record[5:], id="with a length that is too long"),
    ],
)
async def test_a_damaged_record_is_told_and_no_log_is_touched(
    spoil: Callable[[bytes], bytes], autojump_clock: Clock
) -> None:
    async with forked_units() as forked:
        await _stopped_at(forked, UNIT)
        log = forked.party.disk.logs[VECTOR_LOG]
        log[-1] = spoil(log[-1])
        before = _logs(forked)
        with pytest.raises(StorageError, match=VECTOR_LOG):
            await forked.restart()
        assert _logs(forked) == before
