"""What is said to one peer about a lane: one call after another, each again until it is answered.

Whoever is told something twice passes it over, so nothing is lost but by its receiver's death, and nothing overtakes anything.

All calls to a peer share a connection, and one that breaks is no death: a process that is gone refuses the next call, one that lives
hears it. Where call after call is reset, silence decides, as where calls are lost.
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
"""A call that is lost is made once more before a keeper takes a member for lost."""

BEAT_S: Final = 0.4
RESET_PAUSE_S: Final = 0.1
"""After the second reset in a row, and each one more; and after a call that was given up at once."""

ASK_AFTER_S: Final = 3 * BEAT_S
"""Who was to call and was not heard for so long is asked: a process that is gone refuses that."""

Answered = Callable[[LaneMessage, str], None]
"""(what was said, why it was refused: empty where it was not)."""


class CallLine:
    """The way to one peer; `run` says what `put` brings.

    Args:
        beat: what is said when there was nothing to say for BEAT_S, where anything is.
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
        """Say it after all that waits."""
        self._waiting.append(message)
        self._has_more.set()

    def put_alone(self, message: LaneMessage) -> None:
        """Say it where nothing waits: what waits says as much of the way."""
        if not self._waiting:
            self.put(message)

    def put_instead(self, message: LaneMessage) -> None:
        """Say it instead of all that waits."""
        self._waiting.clear()
        self.put(message)

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            PeerUnreachable: its process is gone: it refused a call.
            RemoteProtocolError: it fails to take what it is told.
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
                except CallTimeout:  # at once where our own libp2p daemon is not there, or does not dial just now
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
        """What waits, else a sign of life: where the last words were lost at once."""
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
    """Returns when who is at the other end of the line was not heard for `silent_s`.

    It is to call us, and a line with nothing to say does not find out that nobody is there: before that it is asked.

    Args:
        heard_s: when it was heard last, monotonic.
    """
    while (left_s := heard_s() + silent_s - trio.current_time()) > 0:
        until_asked_s = heard_s() + ASK_AFTER_S - trio.current_time()
        if until_asked_s <= 0:
            line.put_alone(ask())
        await trio.sleep(min(left_s, until_asked_s if until_asked_s > 0 else ASK_AFTER_S))


async def call_again(network: LaneNetwork, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
    """One call, and once more where the connection broke. Raises as `Network.call`."""
    try:
        return await network.call(peer, channel, request, timeout_s=timeout_s)
    except ConnectionReset:
        return await network.call(peer, channel, request, timeout_s=timeout_s)


def read_answer(frame: bytes) -> str:
    """The reason in a LaneAnswer. Raises as `whole_answer`."""
    return whole_answer(frame).reason


def whole_answer(frame: bytes) -> LaneAnswer:
    """What was answered.

    Raises:
        RemoteProtocolError: something else.
    """
    answer = decode_parcel(frame)
    if not isinstance(answer, LaneAnswer):
        raise RemoteProtocolError(f"a {type(answer).__name__} for an answer", "LaneAnswer")
    return answer
