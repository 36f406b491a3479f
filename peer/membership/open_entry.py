"""Coming into an open run without an invite: solving the puzzle that the host gives, and asking for a place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from protocol.errors import TemporaryError
from protocol.identity.puzzle import Challenge, find_answer, read_challenge
from protocol.tables import duration

if TYPE_CHECKING:
    from peer.membership.coordinator_client import CoordinatorClient  # imports grpc
    from protocol.host.calls import AdmitReply
    from protocol.identity.identity import Identity
    from protocol.ids import RunId

log = structlog.get_logger()

AT_ONCE: Final = 64
"""Numbers that a thread tries before we look whether the owner wants to go: about a second."""

KNOCK_AGAIN_S: Final = (6.0, 12.0)
"""Pauses before a place is asked for again when there is a crowd at the door, in seconds."""


async def solve(
    challenge: Challenge, run_id: RunId, public_key: bytes, say: Callable[[str], None] = lambda _: None
) -> int:
    """The answer to a challenge, from another thread. `say` is told about every second how long such a puzzle takes here.

    Raises:
        RefusedError: the puzzle is harder than any host should ask for.
    """
    first, begin_s = 0, trio.current_time()
    while True:
        say(_puzzle_words(challenge.bits, first, trio.current_time() - begin_s))
        found = await trio.to_thread.run_sync(partial(find_answer, challenge, run_id, public_key, first, AT_ONCE))
        if found is not None:
            return found
        first += AT_ONCE


def _puzzle_words(bits: int, num_tried: int, took_s: float) -> str:
    """A puzzle of `bits` takes 2^bits tries on average. Tries that failed make the rest no shorter, so no time to go is told."""
    words = "solving the host's puzzle, which an open run gives to newcomers"
    if not num_tried:
        return words
    return f"{words}: {num_tried:,} tries so far, about {duration(took_s / num_tried * 2**bits)} on average on this machine"


async def enter(
    client: CoordinatorClient,
    identity: Identity,
    run_id: RunId,
    request: bytes,
    say: Callable[[str], None] = lambda _: None,
) -> AdmitReply:
    """Solve a puzzle of the host and ask it for a place. `request`: for a credential. `say` as in `solve`.

    Raises:
        RefusedError, VersionError, RunOverError: the run has no open door, is over, or does not want us.
        TemporaryError: there is no place now.
        UnreachableError, CallTimeout: nobody answers.
    """
    challenge = read_challenge(await client.challenge(identity.public_key))
    log.info("puzzle", bits=challenge.bits, reason="an open run asks newcomers for some seconds of work, or minutes")
    answer = await solve(challenge, run_id, identity.public_key, say)
    say("asking the host for a place")
    for pause_s in KNOCK_AGAIN_S:
        try:
            return await client.enter(request, challenge.raw, answer)
        except TemporaryError as error:
            log.info("no_place_yet", reason=error.one_line(), again_in_s=pause_s)
            await trio.sleep(pause_s)
    return await client.enter(request, challenge.raw, answer)
