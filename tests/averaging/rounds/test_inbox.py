"""Which messages of others are taken, and which are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from averaging.rounds.inbox import Inbox
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, UnitName, short
from protocol.rounds.messages.bundle import TAG, decode_answer, encode_bundle
from protocol.rounds.messages.messages import PromiseRequest, RoundMessage
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import encode_message
from tests.averaging.rounds.round_world import RUN_ID, VERIFIER, Party, RoundWorld, open_world
from tests.averaging.rounds.units_world import BOTH, heads_at, start_of
from tests.virtual import VirtualClock

Clock = trio.testing.MockClock


@dataclass
class Letters:
    """An inbox, and what it gave on."""

    world: RoundWorld
    inbox: Inbox
    taken: list[tuple[PeerId, RoundMessage]]

    @property
    def sender(self) -> Party:
        return self.world.parties[1]

    def message(self, unit: UnitName) -> PromiseRequest:
        return PromiseRequest(unit, self.world.genesis.head, Ballot(1, self.sender.peer))

    def of_units(self) -> dict[UnitName, RoundMessage]:
        """The last message that each unit was told."""
        return {message.unit: message for _, message in self.taken if isinstance(message, PromiseRequest)}

    def sealed(self, unit: UnitName) -> bytes:
        return self.sender.sign(encode_message(self.message(unit)))


@asynccontextmanager
async def _letters() -> AsyncIterator[Letters]:
    taken: list[tuple[PeerId, RoundMessage]] = []

    async def take(sender: PeerId, message: RoundMessage, raw: bytes) -> None:
        taken.append((sender, message))

    async with open_world(units=BOTH) as world:
        yield Letters(world, Inbox(RUN_ID, VERIFIER, VirtualClock(), take), taken)


async def test_each_message_of_a_bundle_is_taken_as_if_it_had_come_alone(autojump_clock: Clock) -> None:
    async with _letters() as letters:
        sender = letters.sender.peer
        assert await letters.inbox.answer(sender, letters.sealed(BOTH[0])) == b""
        assert await letters.inbox.answer(sender, encode_bundle([letters.sealed(unit) for unit in BOTH])) == b""
        assert letters.taken[0] == (sender, letters.message(BOTH[0]))
        assert letters.of_units() == {unit: letters.message(unit) for unit in BOTH}
        assert len(letters.taken) == 3


async def test_what_is_refused_in_a_bundle_is_named_and_the_others_are_taken(autojump_clock: Clock) -> None:
    async with _letters() as letters:
        one, other = letters.world.parties[1:3]
        of_another = other.sign(encode_message(letters.message(BOTH[0])))
        in_anothers_name = one.sign(encode_message(heads_at(other, start_of(letters.world, BOTH[0]))))
        good = letters.sealed(BOTH[0])
        last = letters.sealed(BOTH[1])
        inside = [good, of_another, in_anothers_name, b"no envelope", good, last]
        reasons = decode_answer(await letters.inbox.answer(one.peer, encode_bundle(inside)), len(inside))
        assert [bool(reason) for reason in reasons] == [False, True, True, True, True, False]
        assert f"a message of {short(other.peer)} from {short(one.peer)}" in reasons[1]
        assert "a repeated message" in reasons[4]
        assert letters.of_units() == {unit: letters.message(unit) for unit in BOTH}
        assert len(letters.taken) == 2


async def test_a_unit_that_has_too_much_to_do_keeps_nothing_of_another_one_waiting(autojump_clock: Clock) -> None:
    async with _letters() as letters, trio.open_nursery() as nursery:
        has_room = trio.Event()
        taken: list[UnitName] = []

        async def take(sender: PeerId, message: RoundMessage, raw: bytes) -> None:
            unit = BOTH[isinstance(message, PromiseRequest) and message.unit == BOTH[1]]
            if unit == BOTH[0]:
                await has_room.wait()
            taken.append(unit)

        inbox = Inbox(RUN_ID, VERIFIER, VirtualClock(), take)
        inside = [letters.sealed(unit) for unit in (BOTH[0], BOTH[1], BOTH[0], BOTH[1])]
        nursery.start_soon(inbox.answer, letters.sender.peer, encode_bundle(inside))
        await trio.testing.wait_all_tasks_blocked()
        assert taken == [BOTH[1]] * 2
        has_room.set()
        await trio.testing.wait_all_tasks_blocked()
        assert taken == [BOTH[1]] * 2 + [BOTH[0]] * 2


async def test_a_single_message_that_is_refused_raises(autojump_clock: Clock) -> None:
    async with _letters() as letters:
        raw = letters.sealed(BOTH[0])
        await letters.inbox.answer(letters.sender.peer, raw)
        with pytest.raises(RemoteProtocolError, match="a repeated message"):
            await letters.inbox.answer(letters.sender.peer, raw)


async def test_a_bundle_that_is_none_is_refused_whole_with_its_sender_named(autojump_clock: Clock) -> None:
    async with _letters() as letters:
        name = short(letters.sender.peer)
        with pytest.raises(RemoteProtocolError, match=f"a part of 255 bytes .* from {name}"):
            await letters.inbox.answer(letters.sender.peer, TAG + b"\0\0\0\xff" + letters.sealed(BOTH[0])[:10])
        assert letters.taken == []
