from __future__ import annotations

import pytest

from averaging.rounds.traffic.upload_meter import LATE_AFTER_S, NOTHING_S, STOPPED_S, UploadMeter


def _meter(num_chunks: int = 4) -> UploadMeter:
    meter = UploadMeter()
    meter.begin(10.0)
    for chunk in range(num_chunks):
        meter.want(chunk, 100, 10.0)
    return meter


def test_an_upload_is_measured_when_it_ends_and_extrapolated_while_it_does_not() -> None:
    meter = _meter()
    assert meter.seconds(13.0) == 6.0, "nothing left in three seconds: it takes twice that, at least"
    assert meter.bytes_per_s(13.0) == 0
    meter.sent(0, 100, 14.0)
    assert meter.seconds(15.0) == 4 * 4.0 + 1.0
    for chunk in (1, 2, 3):
        meter.sent(chunk, 100, 18.0)
    assert meter.seconds(99.0) == 8.0
    assert meter.bytes_per_s(99.0) == 50


def test_an_upload_does_not_grow_while_a_receiver_is_not_reached() -> None:
    """Its chunks are left over: were the wait for it our line's, the next round's slices would wait as long, and longer each time."""
    meter = _meter()
    for chunk in (0, 1, 2):
        meter.sent(chunk, 100, 10.5)
    assert meter.seconds(10.5) == pytest.approx(0.5 * 4 / 3)
    assert meter.seconds(800.0) == pytest.approx(0.5 * 4 / 3 + STOPPED_S)


def test_an_upload_of_which_nothing_ever_left_does_not_grow_for_ever() -> None:
    """Two peers that cannot reach each other may each be the other's only reducer."""
    assert _meter().seconds(10.0 + NOTHING_S) == _meter().seconds(800.0) == 2 * NOTHING_S


def _late_meter(last_s: float = 5.0) -> UploadMeter:
    """Of four chunks the first left after four seconds, the others after twenty."""
    meter = UploadMeter(last_s)
    meter.begin(100.0)
    for chunk in range(4):
        meter.want(chunk, 1000, 100.0)
    meter.sent(0, 1000, 104.0)
    return meter


def test_an_upload_is_late_when_it_takes_longer_than_the_last_one_and_is_not_over() -> None:
    nothing = UploadMeter(5.0)
    nothing.begin(100.0)
    assert nothing.late_s(200.0) == 0.0, "nothing is to be sent"
    meter = _late_meter()
    assert meter.late_s(104.5) == 0.0
    assert meter.late_s(107.0) == pytest.approx(4.0 + 3.0 * 4), "what came before the first chunk is not of the line"
    assert meter.late_s(150.0) == pytest.approx(4.0 + STOPPED_S * 4), "nothing has left since"


@pytest.mark.parametrize(("last_s", "late_s"), [(0.0, 20.0), (5.0, 20.0), (25.0, 0.0)])
def test_what_a_late_upload_took_is_told_where_it_is_more_than_the_last_one(last_s: float, late_s: float) -> None:
    meter = _late_meter(last_s)
    for chunk in range(1, 4):
        meter.sent(chunk, 1000, 120.0)
    assert meter.late_s(130.0) == pytest.approx(late_s)


@pytest.mark.parametrize("last_s", [0.0, 0.1, 0.9 * LATE_AFTER_S])
def test_no_upload_is_late_while_its_first_connections_may_be_made(last_s: float) -> None:
    meter = UploadMeter(last_s)
    meter.begin(100.0)
    for chunk in range(4):
        meter.want(chunk, 1000, 100.0)
    meter.sent(0, 1000, 100.5)
    assert meter.late_s(100.0 + LATE_AFTER_S) == 0.0
    assert meter.late_s(100.1 + LATE_AFTER_S) > LATE_AFTER_S


def test_a_few_bytes_tell_no_pace() -> None:
    meter = UploadMeter(5.0)
    meter.begin(100.0)
    for chunk in range(1000):
        meter.want(chunk, 100_000, 100.0)
    meter.sent(0, 100_000, 130.0)
    assert meter.late_s(130.1) == 0.0
    for chunk in range(1, 5):
        meter.sent(chunk, 100_000, 134.0)
    assert meter.late_s(134.0) == pytest.approx(30.0 + 4.0 * 200)


def test_a_chunk_that_is_sent_twice_counts_once() -> None:
    meter = _meter()
    meter.want(3, 100, 12.0)  # its slice has another reducer now
    for chunk in (0, 1, 2, 3, 3):
        meter.sent(chunk, 100, 18.0)
    assert meter.seconds(99.0) == 8.0


def test_what_need_not_be_sent_any_more_is_not_waited_for() -> None:
    """Its slice came to ourselves, or its reducer has it of an attempt before."""
    meter = _meter()
    for chunk in (0, 1, 2):
        meter.sent(chunk, 100, 18.0)
    for chunk in (2, 3):
        meter.spare(chunk)
    assert meter.seconds(99.0) == 8.0


@pytest.mark.parametrize("num_sent", [0, 1, 3])
def test_the_wait_until_a_slice_is_taken_from_a_reducer_that_took_nothing_is_not_of_the_upload(num_sent: int) -> None:
    """Each such reducer would make the deadlines that follow twice as long."""
    meter = _meter(num_sent + 2)
    for chunk in range(num_sent):
        meter.sent(chunk, 100, 11.0)
    for taken_s in (40.0, 80.0):
        for chunk in (num_sent, num_sent + 1):
            meter.spare(chunk)
        for chunk in (num_sent, num_sent + 1):
            meter.want(chunk, 100, taken_s)
        assert meter.late_s(taken_s + 1.0) == 0.0
    meter.sent(num_sent, 100, 80.5)
    meter.sent(num_sent + 1, 100, 80.75)
    assert meter.seconds(99.0) == pytest.approx((1.0 if num_sent else 0.0) + 0.75)
    assert meter.late_s(99.0) == 0.0


def test_a_line_that_still_sends_while_a_slice_moves_is_measured_without_a_break() -> None:
    meter = _meter()
    meter.sent(0, 100, 12.0)
    meter.spare(3)
    meter.want(3, 100, 18.0)
    for chunk in (1, 2, 3):
        meter.sent(chunk, 100, 20.0)
    assert meter.seconds(99.0) == 10.0


def test_an_upload_of_nothing_has_no_measure() -> None:
    assert UploadMeter().seconds(5.0) is None
    meter = _meter(1)
    meter.spare(0)
    assert (meter.seconds(5.0), meter.bytes_per_s(5.0)) == (None, 0)


def _streams(meter: UploadMeter, num_bytes: int, *ends_s: float) -> None:
    """Streams beside one another, of ten chunks each, each at an even pace to its own end."""
    leaving = sorted(
        (10.0 + (end_s - 10.0) * (step + 1) / 10, 10 * stream + step)
        for stream, end_s in enumerate(ends_s)
        for step in range(10)
    )
    for _, chunk in leaving:
        meter.want(chunk, num_bytes, 10.0)
    for now_s, chunk in leaving:
        meter.sent(chunk, num_bytes, now_s)


def test_a_receiver_that_takes_in_more_than_others_does_not_make_our_line_slow() -> None:
    """Two of three streams end after a second, the third has a full downlink at its other end and takes four."""
    alike, held_up = UploadMeter(), UploadMeter()
    for meter in (alike, held_up):
        meter.begin(10.0)
    _streams(alike, 1_000_000, 11.0, 11.0, 11.0)
    _streams(held_up, 1_000_000, 11.0, 11.0, 14.0)
    assert held_up.seconds(99.0) == 4.0
    assert 0.7 * alike.bytes_per_s(99.0) < held_up.bytes_per_s(99.0) <= alike.bytes_per_s(99.0)


def test_a_late_beginning_does_not_make_our_line_slow() -> None:
    """A contribution may be ready long after the attempt began."""
    meter = UploadMeter()
    meter.begin(0.0)
    _streams(meter, 1_000_000, 11.0)
    assert meter.seconds(99.0) == 11.0
    assert 9_000_000 < meter.bytes_per_s(99.0) < 11_000_000


def test_what_kernels_take_at_once_says_nothing_of_the_line() -> None:
    meter = UploadMeter()
    meter.begin(9.0)
    _streams(meter, 10_000, 10.001, 11.0)
    assert meter.bytes_per_s(99.0) == 100_000
