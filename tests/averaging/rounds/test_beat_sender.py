from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from averaging.network.seams.clocks import SystemClock
from averaging.rounds.beat_sender import BeatSender
from averaging.rounds.lineage.round_context import Tasks
from averaging.rounds.outbox import ROUND_CHANNEL, Outbox, TookReply
from averaging.rounds.unanswered import SILENT_AFTER
from protocol.errors import CallTimeout, PotluckError
from protocol.ids import PeerId
from protocol.rounds.messages.messages import Heartbeat
from tests.protocol.rounds.messages.test_wire import MESSAGES

BEAT = next(message for message in MESSAGES if isinstance(message, Heartbeat))
FROZEN, LIVE = PeerId("frozen"), PeerId("live")


@dataclass
class _Deliveries(Outbox):
    """Nothing leaves: one peer answers, the other never."""

    sent: list[PeerId] = field(default_factory=list)

    async def deliver(
        self,
        to: Sequence[PeerId],
        raw: bytes,
        took: TookReply,
        *,
        channel: str = ROUND_CHANNEL,
        within_s: float = 0.0,
        gathers: bool = False,
    ) -> None:
        self.sent.extend(to)
        for peer in to:
            reply: bytes | PotluckError = b"" if peer == LIVE else CallTimeout("no answer", "an answer")
            await took(peer, reply)


async def _sent(*, are_many: bool) -> tuple[list[PeerId], list[PeerId]]:
    """(those to whom one heartbeat went, those that were found silent)."""
    outbox, silent = _Deliveries(), list[PeerId]()

    async def note_silent(peer: PeerId, since_s: float) -> None:
        silent.append(peer)

    async def seal(payload: bytes) -> bytes:
        return payload

    async def note_reply(peer: PeerId, reply: bytes | PotluckError) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        tasks = Tasks(lambda event: None)
        tasks.use(nursery)
        sender = BeatSender(outbox, tasks, SystemClock(), seal, note_reply, lambda: are_many, note_silent)
        await sender.send((FROZEN, LIVE), BEAT)
    return outbox.sent, silent


@pytest.mark.parametrize("are_many", [False, True])
def test_a_peer_that_does_not_answer_is_asked_again_and_called_silent_only_among_many(are_many: bool) -> None:
    sent, silent = trio.run(lambda: _sent(are_many=are_many))
    assert sent.count(LIVE) == 1
    assert sent.count(FROZEN) == (SILENT_AFTER if are_many else 1)
    assert silent == ([FROZEN] if are_many else [])
