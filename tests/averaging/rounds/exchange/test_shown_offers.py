from __future__ import annotations

import trio
import trio.testing

from averaging.rounds.exchange.shown_offers import SHOWN_FOR_S, ShownOffers
from averaging.rounds.lineage.round_context import Tasks
from protocol.ids import CommitId
from protocol.merkle import leaf_hash, range_root
from tests.averaging.rounds.offers_world import GRID, contribution, new_offers, offer_of

ONE, TWO = CommitId(b"1" * 32), CommitId(b"2" * 32)


async def test_offers_are_shown_for_a_while_after_their_commit_and_not_into_the_next_round(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        tasks = Tasks(lambda report: None)
        tasks.use(nursery)
        shown, offers = ShownOffers(tasks), new_offers()
        assert shown.on(ONE) is None
        shown.begin(ONE, offers)
        assert shown.on(ONE) is offers
        shown.end()
        await trio.sleep(SHOWN_FOR_S - 1.0)
        assert shown.on(ONE) is offers
        await trio.sleep(2.0)
        assert shown.on(ONE) is None
        shown.begin(ONE, offers)
        shown.end()
        shown.begin(TWO, new_offers())
        assert shown.on(ONE) is None, "its memory is needed"
        shown.end()
        shown.end()
        assert shown.on(TWO) is not None


def test_a_chunk_is_shown_with_the_path_to_its_root_from_what_a_reducer_has_of_it() -> None:
    offers = new_offers()
    for number in range(2):
        offer_of(offers, number)
    roots = {contribution(number).root for number in range(3)}
    for chunk in range(1, 4):
        found = offers.shown(chunk, roots)
        assert {each.root for each in found} == {contribution(number).root for number in range(2)}
        for each in found:
            path = [each.path[begin : begin + 32] for begin in range(0, len(each.path), 32)]
            assert range_root(GRID.num_chunks, chunk, [leaf_hash(each.data)], path) == each.root
    assert offers.shown(0, roots) == [], "it is not of our slice"
    assert offers.shown(1, set()) == []
