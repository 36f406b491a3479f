"""Which text is read at a round of the trunk, what of others stays, and what is deleted."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from averaging.data.shards import DatasetManifest, ShardEntry
from peer.holdings.training_text_core import (
    KEPT_ROUNDS,
    Arrived,
    Begun,
    Event,
    HeldText,
    Holds,
    Named,
    Orders,
    Refused,
    TextState,
    TrunkMoved,
    WasTakenUp,
    kept_entries,
    step,
)
from protocol.host.reassignment import Reassignment
from protocol.ids import Root


def _name(of: str) -> str:
    return sha256(of.encode()).hexdigest()


def _text(number: int, from_round: int, own: str = "") -> HeldText:
    """Signed as the `number`th; it shares its held-out shard with all others, and its training shard is `own` or its own."""
    shards = [
        ShardEntry(sha256=_name(own or f"train {number}"), num_tokens=9, split="train"),
        ShardEntry(sha256=_name("heldout"), num_tokens=9, split="heldout"),
    ]
    dataset = DatasetManifest(source=f"text {number}", num_documents=2, licence="none", shards=shards)
    if not number:
        return HeldText(dataset)
    manifest = _name(f"manifest {number}")
    entry = Reassignment(number, from_round, dataset.dataset_id, Root(bytes(32)), manifest, 9, 100 + number)
    return HeldText(dataset, entry, f"sealed {number}".encode())


def _shard(expert: int) -> ShardEntry:
    """The same bytes, as text of an expert."""
    return ShardEntry(sha256=_name("shared"), num_tokens=9, split="train", expert=expert)


FIRST, SECOND, THIRD = _text(0, 0), _text(1, 6), _text(2, 10)


def _own(text: HeldText) -> frozenset[str]:
    """What nothing else names."""
    return text.names - {_name("heldout")}


def _stepped(state: TextState, *events: Event) -> tuple[TextState, list[Orders]]:
    """What becomes of it; the training process takes up at once what it is told to."""
    given = []
    for event in events:
        state, orders, _ = step(state, event)
        given.append(orders)
        if orders.take_up is not None and isinstance(event, TrunkMoved):
            state, orders, _ = step(state, WasTakenUp(orders.take_up, event.index))
            given.append(orders)
    return state, given


def _read_at(state: TextState, *rounds: int) -> list[int]:
    found = []
    for index in rounds:
        state, _ = _stepped(state, TrunkMoved(index))
        found.append(state.now.from_round)
    return found


def test_a_text_is_read_from_its_round_on_and_the_one_before_again_where_the_trunk_goes_back() -> None:
    state = TextState(FIRST, here=(FIRST, SECOND))
    assert _read_at(state, 4, 5, 6, 7, 5, 4, 6) == [0, 0, 6, 6, 0, 0, 6]


def test_what_comes_late_is_read_at_once_and_of_two_that_are_due_the_one_that_was_signed_last() -> None:
    state, _ = _stepped(TextState(FIRST, here=(FIRST,)), Arrived(SECOND), Arrived(THIRD))
    assert _read_at(state, 12) == [10]
    assert _read_at(state, 7) == [6]


@pytest.mark.parametrize("waits", [0, KEPT_ROUNDS - 1])
def test_the_text_before_stays_for_some_rounds(waits: int) -> None:
    state, given = _stepped(TextState(FIRST, here=(FIRST, SECOND)), TrunkMoved(6), TrunkMoved(6 + waits))
    assert state.here == (FIRST, SECOND)
    assert not any(orders.delete for orders in given)
    after, given = _stepped(state, TrunkMoved(6 + KEPT_ROUNDS))
    assert after.here == (SECOND,)
    assert given == [Orders(delete=_own(FIRST))], "what the two share is still needed"


def test_of_several_before_only_the_last_one_stays() -> None:
    state, given = _stepped(TextState(FIRST, here=(FIRST, SECOND, THIRD)), TrunkMoved(7), TrunkMoved(10))
    assert (state.now, state.here) == (THIRD, (SECOND, THIRD))
    assert given[-1].delete == _own(FIRST)
    assert _read_at(state, 9, 3, 10) == [6, 6, 10], "further back there is nothing older to be read"


def test_files_of_what_is_being_fetched_are_not_deleted_with_a_text_that_names_them_too() -> None:
    coming = _text(2, 30, own="train 0")
    state, _ = _stepped(TextState(FIRST, here=(FIRST, SECOND)), TrunkMoved(6), Named(coming))
    state, given = _stepped(state, TrunkMoved(6 + KEPT_ROUNDS))
    assert state.here == (SECOND,)
    assert given == [Orders()]


def test_who_has_only_what_has_not_begun_reads_that() -> None:
    state, _ = _stepped(TextState(FIRST), Arrived(SECOND), Begun())
    assert state.now == SECOND
    assert _read_at(state, 3, 6, 40) == [6, 6, 6]


def test_who_restarts_before_a_text_has_begun_reads_the_one_before_until_then() -> None:
    state, _ = _stepped(TextState(SECOND), Arrived(FIRST), Arrived(SECOND), Begun())
    assert _read_at(state, 4, 6, 5) == [0, 6, 0]


def test_a_text_that_is_not_whole_any_more_is_fetched_although_an_older_one_is() -> None:
    state, _ = _stepped(TextState(SECOND), Arrived(FIRST), Begun())
    assert state.now == SECOND


def test_what_was_signed_later_for_an_earlier_round_is_read_instead_and_the_other_one_never() -> None:
    late, early = _text(1, 20), _text(2, 8)
    state, _ = _stepped(TextState(FIRST, here=(FIRST,)), Arrived(late), Arrived(early))
    assert _read_at(state, 7, 8, 20, 30) == [0, 8, 8, 8]
    state, given = _stepped(state, TrunkMoved(8))
    assert state.here == (FIRST, early)
    assert given[-1].delete == _own(late)


def test_what_arrives_while_the_training_process_is_told_is_not_forgotten() -> None:
    state, orders, _ = step(TextState(FIRST, here=(FIRST, SECOND)), TrunkMoved(6))
    assert orders.take_up == SECOND
    state, _ = _stepped(state, Arrived(THIRD), WasTakenUp(SECOND, 6))
    assert (state.now, state.here) == (SECOND, (FIRST, SECOND, THIRD))


def test_of_what_is_refused_or_overtaken_what_was_fetched_is_deleted_and_nothing_else() -> None:
    state, given = _stepped(TextState(FIRST, here=(FIRST,)), Named(SECOND), Named(THIRD))
    assert given[-1].delete == _own(SECOND)
    state, given = _stepped(state, Refused())
    assert given[-1].delete == _own(THIRD)
    assert state == TextState(FIRST, here=(FIRST,))
    assert _stepped(state, Refused())[1] == [Orders()], "of what could not even be named nothing is here"


def test_the_manifest_of_what_could_not_be_named_is_deleted_but_where_a_text_that_is_kept_has_it() -> None:
    state = TextState(FIRST, here=(FIRST, SECOND))
    noise, manifest = _name("noise"), SECOND.entry.manifest_sha256 if SECOND.entry is not None else ""
    assert _stepped(state, Refused(frozenset([noise, manifest])))[1] == [Orders(delete=frozenset([noise]))]


def test_what_another_text_has_of_experts_that_are_not_held_here_is_not_needed_for_it() -> None:
    """The same bytes may be one expert's before and another's after: a shard is a document, or a part of one."""
    first, second = (
        replace(text, dataset=text.dataset.model_copy(update={"shards": [_shard(expert)]}))
        for text, expert in ((FIRST, 0), (SECOND, 1))
    )
    for experts, is_needed in (((1,), False), ((0, 1), True)):
        state, given = _stepped(TextState(first, here=(first,)), Holds(experts), Named(second), Refused())
        assert (_name("shared") in given[-1].delete) is not is_needed
        assert state.experts == experts


def test_nothing_is_decided_before_anything_is_here() -> None:
    assert _stepped(TextState(FIRST), TrunkMoved(3)) == (TextState(FIRST), [Orders()])


def test_each_decision_says_why_and_no_change_says_nothing() -> None:
    state = TextState(FIRST, here=(FIRST, SECOND))
    assert step(state, TrunkMoved(6))[2] == "round 6, from which on documents lie anew, has come"
    assert step(state, TrunkMoved(5))[2] == ""
    after, _ = _stepped(state, TrunkMoved(6))
    assert step(after, TrunkMoved(5))[2] == "round 6, from which on documents lie anew, is still to come"


def test_what_a_restart_needs_are_the_entries_in_the_order_in_which_they_were_signed() -> None:
    assert kept_entries((THIRD, FIRST, SECOND)) == (b"sealed 1", b"sealed 2")
