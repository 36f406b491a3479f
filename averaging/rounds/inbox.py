"""Messages from other peers on the round channel: each is judged by itself, whether it came alone or in a bundle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
import trio

from averaging.network.seams.interfaces import Clock
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity.envelope import ReplayGuard, open_envelope
from protocol.identity.identity import Verifier
from protocol.identity.names import peer_name
from protocol.ids import PeerId, RunId, UnitName, short
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.bundle import decode_bundle, encode_answer, is_bundle
from protocol.rounds.messages.messages import Heartbeat, Leave, RoundMessage
from protocol.rounds.messages.wire import decode_message

log = structlog.get_logger()

TakeMessage = Callable[[PeerId, RoundMessage, bytes], Awaitable[None]]
"""Deliver a message: (sender, message, its envelope as it came)."""


class Inbox:
    """The inbox of one process, for all units; it remembers which messages it has seen."""

    def __init__(self, run_id: RunId, verifier: Verifier, clock: Clock, take: TakeMessage) -> None:
        self._run_id = run_id
        self._verifier = verifier
        self._clock = clock
        self._take = take
        self._replays = ReplayGuard()

    async def answer(self, sender: PeerId, request: bytes) -> bytes:
        """Take the messages of one call, and answer it. A refused message in a bundle does not hold up the others.

        Raises:
            RemoteProtocolError: a single message that is refused, or bytes that are no bundle.
        """
        if not is_bundle(request):
            await self._take(sender, self._opened(sender, request), request)
            return b""
        try:
            envelopes = decode_bundle(request)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{error.found} from {short(sender)}", error.expected, error.remedy) from error
        reasons = [""] * len(envelopes)
        units: dict[UnitName | None, list[_Opened]] = {}
        for number, raw in enumerate(envelopes):
            try:
                message = self._opened(sender, raw)
            except PotluckError as error:
                reasons[number] = _refused(sender, error)
            else:
                unit = None if isinstance(message, Heartbeat) else message.unit
                units.setdefault(unit, []).append(_Opened(number, message, raw))
        async with trio.open_nursery() as nursery:
            for inside in units.values():
                nursery.start_soon(self._take_in_order, sender, inside, reasons)
        return encode_answer(reasons)

    async def _take_in_order(self, sender: PeerId, inside: Sequence[_Opened], reasons: list[str]) -> None:
        """Deliver the messages for one unit in order. Units do not wait for one another."""
        for opened in inside:
            try:
                await self._take(sender, opened.message, opened.raw)
            except PotluckError as error:
                reasons[opened.number] = _refused(sender, error)

    def _opened(self, sender: PeerId, raw: bytes) -> RoundMessage:
        now_ms = int(self._clock.unix_s() * 1000)
        envelope = open_envelope(
            raw, verifier=self._verifier, domain=ROUND_DOMAIN, run_id=self._run_id, now_unix_ms=now_ms
        )
        if envelope.sender != sender:
            raise RemoteProtocolError(f"a message of {short(envelope.sender)} from {short(sender)}", "its own messages")
        if not self._replays.admit(envelope):
            raise RemoteProtocolError(
                f"a repeated message of {short(sender)}", "a new sequence number", "it was ignored"
            )
        message = decode_message(envelope.payload)
        if isinstance(message, Heartbeat | Leave) and message.member.peer != sender:
            raise RemoteProtocolError("a heartbeat in another's name", "the sender's own")
        return message


@dataclass(frozen=True, slots=True)
class _Opened:
    """A message of a bundle that was not refused, with its number."""

    number: int
    message: RoundMessage
    raw: bytes


def _refused(sender: PeerId, error: PotluckError) -> str:
    log.info("message_refused", peer=peer_name(sender), reason=error.one_line())
    return error.one_line()
