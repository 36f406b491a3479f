"""How much of a lane's part of a round the commits of a stage count, whoever brought it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.proposal import consumed_tokens


def counted_tokens(links: Iterable[ChainLink], lane: int, round_: int) -> int:
    """Of this lane's part of its round, in these commits of a stage: all of its tokens, or floor(tokens x covered chunks / all chunks)
    of each who brought it where slices are missing.
    """
    total = 0
    for record in (link.record for link in links):
        for entry in record.contributors if record is not None else ():
            for part in entry.lanes:
                if part.place == (lane, round_) and record is not None:
                    total += part.tokens * consumed_tokens(record, entry.peer) // max(1, entry.tokens)
    return total
