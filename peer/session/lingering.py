"""The end of a run: how long a peer stays for those who still take what it has, the host with its last checkpoint among them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

LINGER_S: Final = 30.0
"""How long a peer stays after the last commit, or after the last byte that anybody took of it, where not everybody is known to have
all.
"""

MOST_LINGER_S: Final = 3600.0
"""However much is taken: nobody keeps a volunteer for good."""

SETTLE_DOWN_S: Final = 3.0
LOOK_EVERY_S: Final = 0.5


async def linger(does_everybody_have_all: Callable[[], Awaitable[bool]], bytes_given: Callable[[], int]) -> None:
    """Stay until that is so, or until nobody has taken anything for `LINGER_S`.

    Args:
        bytes_given: of results and states, since this process began: while it grows somebody still needs us.
    """
    most_s = trio.current_time() + MOST_LINGER_S
    with trio.move_on_after(LINGER_S) as staying:
        await trio.sleep(SETTLE_DOWN_S)
        given = bytes_given()
        while not await does_everybody_have_all():
            if bytes_given() > given:
                given = bytes_given()
                staying.deadline = min(most_s, trio.current_time() + LINGER_S)
            await trio.sleep(LOOK_EVERY_S)
