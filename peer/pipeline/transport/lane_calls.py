"""Calls about a lane to one peer: one after another, each repeated until it is answered.

The receiver ignores a repeated message. So a message is lost only if its receiver dies, and messages stay in order.

All calls to a peer share one connection, and a broken connection does not prove that the peer died. A dead process refuses the
next call; a live one answers it. If call after call is reset or lost, a timeout decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

import trio

from peer.pipeline.transport.lane_network import LaneNetwork
from protocol.errors import CallTimeout, ConnectionReset, RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.messages.lane_messages import LaneAnswer, LaneMessage
from protocol.pipeline.messages.lane_wire import decode_parcel, encode_lane_message

MEMBER_CHANNEL: Final = "lane"
KEEPER_CHANNEL: Final = "lane-keeper"
CALL_WITHIN_S: Final = 0.5
"""Timeout of a call. A lost call is repeated once before a keeper takes its member for lost."""

BEAT_S: Final = 0.4
RESET_PAUSE_S: Final = 0.1
"""Pause after each reset in a row from the second on, and after a call that failed at once."""

ASK_AFTER_S: Final = 3 * BEAT_S
"""Silence after which a peer that was to call is asked. A dead process refuses the call."""

Answered = Callable[[LaneMessage, str], None]
"""Receives (what was sent, why it was refused: empty if it was not)."""


class CallLine:
    """The line to one peer. `run` sends what `put` queues.

    Args:
        beat: returns the heartbeat to send after BEAT_S without messages, if there is one.
    """

    def __init__(
        self,
        network: LaneNetwork,
        peer: PeerId,
        channel: str,
        answered: Answered,
        beat: Callable[[], LaneMessage] | None = None,
    ) -> None:
        self.scope = trio.CancelScope()
        self._network = network
        self._peer = peer
        self._channel = channel
        self._answered = answered
        self._beat = beat
        self._waiting = deque[LaneMessage]()
        self._has_more = trio.Event()

    def put(self, message: LaneMessage) -> None:
        """Queue the message."""
        self._waiting.append(message)
        self._has_more.set()

    def put_alone(self, message: LaneMessage) -> None:
        """Queue the message only if nothing is queued: anything else queued shows as well that this peer lives."""
        if not self._waiting:
            self.put(message)

    def put_instead(self, message: LaneMessage) -> None:
        """Replace everything queued by this message."""
        self._waiting.clear()
        self.put(message)

    async def run(self) -> None:
        """Send until cancelled.

        Raises:
            PeerUnreachable: the peer's process is gone: it refused a call.
            RemoteProtocolError: its answers are not valid.
        """
        resets, is_again = 0, False
        with self.scope:
            while True:
                message, began_s = await self._next(is_again=is_again), trio.current_time()
                is_again = True
                try:
                    reply = await self._network.call(
                        self._peer, self._channel, encode_lane_message(message), timeout_s=CALL_WITHIN_S
                    )
                except CallTimeout:  # fails at once if our own libp2p daemon is missing or does not dial
                    await trio.sleep(RESET_PAUSE_S if trio.current_time() - began_s < RESET_PAUSE_S else 0.0)
                    continue
                except ConnectionReset:
                    resets += 1
                    await trio.sleep(RESET_PAUSE_S if resets > 1 else 0.0)
                    continue
                resets, is_again = 0, False
                if self._waiting and self._waiting[0] is message:
                    self._waiting.popleft()
                self._answered(message, read_answer(reply))

    async def _next(self, *, is_again: bool) -> LaneMessage:
        """The next queued message, or a heartbeat if there is none."""
        with trio.move_on_after(inf if self._beat is None else 0.0 if is_again else BEAT_S):
            while not self._waiting:
                self._has_more = trio.Event()
                await self._has_more.wait()
        if self._waiting or self._beat is None:
            return self._waiting[0]
        return self._beat()


async def until_silent(
    line: CallLine, ask: Callable[[], LaneMessage], heard_s: Callable[[], float], silent_s: float
) -> None:
    """Returns when the peer at the other end was not heard for `silent_s`.

    The peer is to call us, and an idle line does not notice that it is gone. So it is asked before the timeout.

    Args:
        heard_s: returns when the peer was heard last, monotonic seconds.
    """
    while (left_s := heard_s() + silent_s - trio.current_time()) > 0:
        until_asked_s = heard_s() + ASK_AFTER_S - trio.current_time()
        if until_asked_s <= 0:
            line.put_alone(ask())
        await trio.sleep(min(left_s, until_asked_s if until_asked_s > 0 else ASK_AFTER_S))


async def call_again(network: LaneNetwork, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
    """One call, repeated once if the connection broke. Raises as `Network.call`."""
    try:
        return await network.call(peer, channel, request, timeout_s=timeout_s)
    except ConnectionReset:
        return await network.call(peer, channel, request, timeout_s=timeout_s)


def read_answer(frame: bytes) -> str:
    """The reason in a LaneAnswer. Raises as `whole_answer`."""
    return whole_answer(frame).reason


def whole_answer(frame: bytes) -> LaneAnswer:
    """Parse an answer.

    Raises:
        RemoteProtocolError: it is not a LaneAnswer.
    """
    answer = decode_parcel(frame)
    if not isinstance(answer, LaneAnswer):
        raise RemoteProtocolError(f"a {type(answer).__name__} for an answer", "LaneAnswer")
    return answer
