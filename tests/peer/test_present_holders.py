"""Who left counts as no holder, though the directory still names it."""

from __future__ import annotations

import trio

from peer.present_holders import ASK_WITHIN_S, present
from protocol.errors import PeerUnreachable
from protocol.ids import PeerId

HERE, GONE, FROZEN, OUTBOUND = (PeerId(name) for name in ("here", "gone", "frozen", "outbound"))
LISTED = {HERE: (0,), GONE: (1,), FROZEN: (1,), OUTBOUND: (2,)}


async def _ask(peer: PeerId) -> None:
    if peer == FROZEN:
        await trio.sleep_forever()
    if peer != HERE:
        raise PeerUnreachable(f"{peer} is gone", "a peer that answers")


async def test_who_is_gone_or_does_not_answer_is_no_holder_and_who_cannot_be_asked_is_one(
    autojump_clock: object,
) -> None:
    begin_s = trio.current_time()
    assert await present(LISTED, {HERE, GONE, FROZEN}, _ask) == {HERE: (0,), OUTBOUND: (2,)}
    assert trio.current_time() - begin_s <= ASK_WITHIN_S, "all are asked at once"


async def test_where_nobody_is_listed_nobody_is_asked(autojump_clock: object) -> None:
    assert await present({}, {HERE}, _ask) == {}
