"""When documents are sent to experts anew, and how many of them."""

from __future__ import annotations

from coordinator.run.reassigning_core import (
    KEPT_COMMITS,
    Forget,
    Looked,
    PackAnew,
    SampleBook,
    SayUnmeasured,
    Watch,
    owners_after,
    step,
)
from protocol.host.reports import SampleLosses
from protocol.ids import CommitId


def _losses(index: int, expert: int, *nats: float) -> SampleLosses:
    return SampleLosses(CommitId(bytes([index]) * 32), expert, nats)


def test_the_losses_of_a_commit_count_once_all_experts_were_measured_at_it() -> None:
    book = SampleBook(2, 3, every_rounds=4)
    book = book.with_losses(_losses(4, 0, 1.0, 2.0, 3.0), 4).with_losses(_losses(8, 1, 9.0, 9.0, 9.0), 8)
    assert book.complete(0) is None, "each of another commit"
    book = book.with_losses(_losses(4, 1, 4.0, 5.0, 6.0), 4)
    assert book.complete(0) == (4, ((1.0, 4.0), (2.0, 5.0), (3.0, 6.0)))
    assert book.complete(4) is None, "they were looked at"
    book = book.with_losses(_losses(8, 0, 1.0, 1.0, 1.0), 8)
    assert book.complete(0) == (8, ((1.0, 9.0),) * 3), "the newest"


def test_what_was_measured_at_later_rounds_than_the_trunks_is_forgotten() -> None:
    book = SampleBook(1, 1, every_rounds=4).with_losses(_losses(4, 0, 1.0), 4).with_losses(_losses(8, 0, 2.0), 8)
    assert book.until(8) is book
    assert book.until(7).complete(0) == (4, ((1.0,),))


def test_who_was_not_measured_is_told_once_the_next_measured_round_has_come() -> None:
    book = SampleBook(3, 1, every_rounds=4).with_losses(_losses(4, 1, 1.0), 4)
    assert book.unmeasured(0, 7) is None, "it may be told yet"
    assert book.unmeasured(0, 8) == (4, (0, 2))
    assert book.unmeasured(4, 8) is None, "it was said"
    for expert in (0, 1, 2):
        book = book.with_losses(_losses(8, expert, 1.0), 8)
    assert book.unmeasured(4, 40) is None, "all were"


def test_what_is_no_sample_of_the_run_or_was_told_before_is_left_out() -> None:
    book = SampleBook(2, 2, every_rounds=4).with_losses(_losses(4, 0, 1.0, 2.0), 4)
    assert book.with_losses(_losses(4, 0, 9.0, 9.0), 4) is book, "the first that is told stands"
    assert book.with_losses(_losses(4, 2, 1.0, 2.0), 4) is book, "an expert that the run has not"
    assert book.with_losses(_losses(4, 1, 1.0), 4) is book, "another number of windows"
    assert book.with_losses(_losses(5, 1, 1.0, 2.0), 5) is book, "a round at which nobody measures"
    never = SampleBook(2, 2, every_rounds=0)
    assert never.with_losses(_losses(4, 0, 1.0, 2.0), 4) is never


def test_only_the_newest_commits_are_remembered() -> None:
    book = SampleBook(2, 1, every_rounds=1)
    for index in range(1, 10):
        book = book.with_losses(_losses(index, 0, 1.0), index)
    assert [each.index for each in book.measured.values()] == list(range(10 - KEPT_COMMITS, 10))


def _measured(*indices: int) -> SampleBook:
    """Both experts at these rounds of every fourth."""
    book = SampleBook(2, 1, every_rounds=4)
    for index in indices:
        for expert in (0, 1):
            book = book.with_losses(_losses(index, expert, float(index)), index)
    return book


def test_losses_of_all_experts_are_packed_by_once() -> None:
    watch, actions, reason = step(Watch(), Looked(_measured(4), 5))
    assert (watch, actions) == (Watch(done_index=4), (PackAnew(4, ((4.0, 4.0),)),))
    assert reason == "all experts were measured at round 4"
    assert step(watch, Looked(_measured(4), 6))[:2] == (watch, ())
    assert step(watch, Looked(_measured(4, 8), 8))[1] == (PackAnew(8, ((8.0, 8.0),)),)


def test_nothing_is_packed_before_the_round_of_what_was_signed_last_nor_by_losses_up_to_it() -> None:
    watch, actions, reason = step(Watch(), Looked(_measured(4), 5, from_round=6))
    assert (watch, actions) == (Watch(), ())
    assert reason == "what was signed last is read from round 6 on: losses tell nothing of it"
    assert step(Watch(), Looked(_measured(4), 6, from_round=6))[1] == ()
    assert step(Watch(), Looked(_measured(4, 8), 8, from_round=8))[1] == (), "measured on the text before"


def test_an_expert_that_was_not_measured_is_said_once_for_each_round() -> None:
    book = SampleBook(3, 1, every_rounds=4).with_losses(_losses(4, 1, 1.0), 4)
    watch, actions, reason = step(Watch(), Looked(book, 8))
    assert (watch, actions) == (Watch(said_index=4), (SayUnmeasured(4, (0, 2)),))
    assert reason == "nobody measured expert 0, 2 at round 4"
    assert step(watch, Looked(book, 9))[1] == ()


def test_where_the_trunk_goes_back_later_losses_are_forgotten_and_its_rounds_count_once_more() -> None:
    book = _measured(4, 8)
    watch, actions, _ = step(Watch(done_index=8, said_index=8), Looked(book, 3))
    assert (watch, actions) == (Watch(3, 3), (Forget(book.until(3)),))
    assert step(watch, Looked(_measured(4), 4))[1] == (PackAnew(4, ((4.0, 4.0),)),)


def test_an_eighth_moves_at_a_time_and_an_expert_keeps_a_quarter_of_its_even_share() -> None:
    # all are better off with expert 1, the first ones most
    losses = tuple((10.0 + number, 5.0 + number / 2) for number in range(16))
    after = owners_after(losses, (0,) * 16)
    assert sum(after) == 2
    assert after[-2:] == (1, 1), "those that gain most"
    for _ in range(9):
        after = owners_after(losses, after)
    assert sum(after) == 14, "16 documents of two experts: each keeps two"
