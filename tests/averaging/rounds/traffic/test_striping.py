from __future__ import annotations

from averaging.rounds.traffic.striping import (
    LEAST_ASKED,
    MAX_FAILURES,
    MOST_REFUSED_S,
    NUM_ARRIVALS,
    REFUSED_S,
    Striping,
    arrived,
    ask,
    failed,
    found,
    lay_out,
    learned,
    next_stripe,
    refused,
)
from protocol.ids import PeerId

ONE, TWO, THREE = (PeerId(f"donor{number}") for number in range(3))


def _asked(state: Striping, *requests: tuple[PeerId, int, float]) -> Striping:
    for donor, stripe, now_s in requests:
        state = ask(state, donor, stripe, now_s)
    return state


def _bring(state: Striping, donor: PeerId, stripe: int, since_s: float, now_s: float) -> Striping:
    return arrived(ask(state, donor, stripe, since_s), donor, stripe, now_s)


def test_each_donor_is_given_the_next_stripe_that_nobody_was_asked_for() -> None:
    state = Striping(4)
    assert next_stripe(state, ONE, 0.0) == 0
    state = ask(state, ONE, 0, 0.0)
    assert next_stripe(state, TWO, 0.0) == 1
    state = _bring(state, TWO, 1, 0.0, 1.0)
    assert next_stripe(state, TWO, 1.0) == 2
    assert next_stripe(found(state, 2), TWO, 1.0) == 3


def test_all_stripes_here_is_the_end() -> None:
    state = Striping(2)
    for stripe in range(2):
        assert not state.is_done
        state = _bring(state, ONE, stripe, 0.0, 1.0)
    assert state.is_done
    assert next_stripe(state, ONE, 2.0) is None


def test_a_failed_stripe_is_given_to_another_donor() -> None:
    state = failed(_asked(Striping(2), (ONE, 0, 0.0), (TWO, 1, 0.0)), ONE, 0, "reset", is_lie=False)
    assert next_stripe(state, TWO, 1.0) == 0
    assert next_stripe(state, ONE, 1.0) == 0, "it may be back"


def test_a_donor_that_keeps_failing_is_dropped_and_one_that_lies_at_once() -> None:
    state = Striping(2)
    for number in range(MAX_FAILURES):
        assert next_stripe(state, ONE, float(number)) == 0
        state = failed(ask(state, ONE, 0, float(number)), ONE, 0, "reset", is_lie=False)
    assert next_stripe(state, ONE, 9.0) is None
    state = failed(ask(state, TWO, 0, 9.0), TWO, 0, "other bytes", is_lie=True)
    assert next_stripe(state, TWO, 9.0) is None
    assert dict(state.dropped) == {ONE: "reset", TWO: "other bytes"}


def test_a_stripe_that_arrives_makes_earlier_failures_forgotten() -> None:
    state = failed(ask(Striping(3), ONE, 0, 0.0), ONE, 0, "reset", is_lie=False)
    state = _bring(state, ONE, 0, 1.0, 2.0)
    for _ in range(MAX_FAILURES - 1):
        state = failed(ask(state, ONE, 1, 2.0), ONE, 1, "reset", is_lie=False)
    assert next_stripe(state, ONE, 3.0) == 1


def test_who_waits_at_the_end_takes_over_from_the_slowest() -> None:
    state = Striping(4)
    for donor, stripe, took_s in ((ONE, 0, 1.0), (TWO, 1, 10.0)):
        state = _bring(state, donor, stripe, 0.0, took_s)
    state = _asked(state, (TWO, 2, 10.0), (THREE, 3, 10.0))
    assert next_stripe(state, ONE, 10.5) == 2, "nine seconds to go for the one, unknown for the other"
    state = _asked(state, (ONE, 2, 10.5))
    assert next_stripe(state, ONE, 10.9) is None, "the other one may come any moment"
    assert next_stripe(state, ONE, 14.0) == 3, "it has taken four times as long as we would"
    state = arrived(state, ONE, 2, 11.5)
    assert [asked.stripe for asked in state.asked] == [3], "the slow copy is no longer wanted"


def test_a_donor_of_unknown_speed_takes_over_from_nobody() -> None:
    state = _asked(Striping(1), (ONE, 0, 0.0))
    assert next_stripe(state, TWO, 100.0) is None


def test_no_stripe_is_asked_of_three_at_a_time() -> None:
    state = Striping(4)
    for stripe, donor in enumerate((ONE, TWO, THREE)):
        state = _bring(state, donor, stripe, 0.0, 1.0)
    state = _asked(state, (ONE, 3, 1.0), (TWO, 3, 5.0))
    assert next_stripe(state, THREE, 50.0) is None


def test_stripes_hold_every_chunk_once_in_order_and_the_last_ones_are_short() -> None:
    for num_chunks in (1, 2, 7, 64, 183):
        stripes = lay_out(num_chunks, 8, 4).stripes
        assert [chunk for stripe in stripes for chunk in stripe] == list(range(num_chunks))
        assert all(stripes)
    assert [len(stripe) for stripe in lay_out(64, 8, 4).stripes] == [8] * 4 + [2] * 16
    assert [len(stripe) for stripe in lay_out(3, 1, 4).stripes] == [1] * 3


# --- newcomers that fetch the same state --------------------------------------------------------------------------------------


def test_each_newcomer_begins_elsewhere_and_what_it_tells_of_its_stripes_is_read_by_others_with_other_orders() -> None:
    one = lay_out(183, 8, 4, lambda first: bytes([first * 7 % 251]))
    other = lay_out(183, 8, 4, lambda first: bytes([first * 11 % 251]))
    assert one.stripes != other.stripes
    assert sorted(one.stripes, key=lambda stripe: stripe.start) == sorted(
        other.stripes, key=lambda stripe: stripe.start
    )
    assert one.group == other.group
    num_groups = -(-183 // one.group)
    assert other.held(bytes(num_groups)) == 0
    assert other.held(b"\1" * num_groups) == (1 << len(other.stripes)) - 1
    for number, stripe in enumerate(other.stripes):
        here = bytes(group * other.group in stripe for group in range(num_groups))
        assert other.held(here) == 1 << number
        assert other.held(here[: stripe.start // other.group]) == 0, "what is not told is not there"


def test_a_newcomer_is_asked_only_for_what_it_has_and_a_donor_first_for_what_no_newcomer_has() -> None:
    state = learned(Striping(4), TWO, 0b0011)
    assert next_stripe(state, ONE, 0.0) == 2
    assert next_stripe(state, TWO, 0.0) == 0
    state = found(state, 0)
    assert next_stripe(state, TWO, 0.0) == 1
    state = found(state, 1)
    assert next_stripe(state, TWO, 0.0) is None
    assert next_stripe(learned(state, TWO, 0b1011), TWO, 0.0) == 3
    assert next_stripe(learned(Striping(2), TWO, 0b11), ONE, 0.0) == 0, "all of it is elsewhere too"


def test_a_newcomer_takes_over_no_slow_stripe_that_it_does_not_have() -> None:
    state = learned(Striping(3), TWO, 0b001)
    state = _bring(_bring(state, TWO, 0, 0.0, 1.0), ONE, 1, 0.0, 1.0)
    state = ask(state, ONE, 2, 1.0)
    assert next_stripe(state, TWO, 50.0) is None
    assert next_stripe(learned(state, TWO, 0b101), TWO, 50.0) == 2


def test_a_donor_without_time_is_left_alone_longer_each_time_and_its_stripe_is_free_at_once() -> None:
    state, now_s = Striping(2), 0.0
    for times in range(8):
        state = refused(ask(state, ONE, 0, now_s), ONE, 0, now_s)
        pause_s = min(REFUSED_S * 2.0**times, MOST_REFUSED_S)
        assert next_stripe(state, TWO, now_s) == 0
        assert next_stripe(state, ONE, now_s + 0.9 * pause_s) is None
        now_s += pause_s
        assert next_stripe(state, ONE, now_s) == 0
    assert not state.dropped
    state = refused(_bring(state, ONE, 0, now_s, now_s), ONE, 1, now_s)
    assert next_stripe(state, ONE, now_s + REFUSED_S) == 1, "a stripe that came makes refusals forgotten"


def test_no_more_is_asked_for_than_the_line_brings_in_seconds() -> None:
    state = Striping(100)
    for stripe in range(NUM_ARRIVALS):
        state = _bring(state, ONE, stripe, float(stripe), float(stripe + 1))
    now_s, num_asked = float(NUM_ARRIVALS), 0
    while (stripe := next_stripe(state, TWO, now_s)) is not None:
        state, num_asked = ask(state, TWO, stripe, now_s), num_asked + 1
    assert num_asked == LEAST_ASKED
