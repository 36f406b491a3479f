from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import trio
import trio.testing

from averaging.network.pacing.line_rate import PathStats
from averaging.network.pacing.line_shaper import LOOK_EVERY_S, LOOK_STREAM_S, LineShaper

Clock = trio.testing.MockClock


@dataclass(eq=False)
class Socket:
    """Sends what it may; its line has a queue while all of them send more than it carries."""

    reported: PathStats | None = field(default_factory=lambda: PathStats(0, 0, True, 0.001, 0.001))
    paces: list[float] = field(default_factory=list)
    num_looks: int = 0

    def stats(self) -> PathStats | None:
        self.num_looks += 1
        return self.reported

    def pace(self, bytes_per_s: float) -> None:
        self.paces.append(bytes_per_s)


def _queued(acked_bytes: int) -> PathStats:
    return PathStats(acked_bytes, 1000, False, 0.1, 0.001)


async def _send_for(line: LineShaper, sockets: list[Socket], seconds: float, bytes_per_s: float) -> None:
    until_s = trio.current_time() + seconds
    while trio.current_time() < until_s:
        await trio.sleep(0.01)
        for each in sockets:
            assert each.reported is not None
            each.reported = _queued(each.reported.acked_bytes + int(0.01 * bytes_per_s / len(sockets)))
            line.sending((each,))
            line.sent()


async def test_streams_that_fill_the_line_are_paced_to_what_it_carries_and_one_that_comes_later_at_once(
    autojump_clock: Clock,
) -> None:
    line, sockets = LineShaper(), [Socket(), Socket()]
    await _send_for(line, sockets, 0.3, 12e6)
    assert line.bytes_per_s == inf
    await _send_for(line, sockets, 0.5, 12e6)
    assert 10e6 < line.bytes_per_s < 12.5e6
    assert sockets[0].paces[-1] == sockets[1].paces[-1] == line.bytes_per_s / 2
    late = Socket()
    line.sending((late,))
    assert late.paces == [line.bytes_per_s / 3]


async def test_connections_that_begin_together_have_even_parts_though_none_of_them_has_anything_to_send_yet(
    autojump_clock: Clock,
) -> None:
    """Of several that began at once only the last one counted, so that each was told that it may fill the line."""
    line, one = LineShaper(), [Socket()]
    await _send_for(line, one, 0.7, 4e6)
    one[0].reported = replace(_queued(0), is_idle=True, waiting_bytes=0)
    await trio.sleep(1.0)
    line.sent()
    idle = [Socket(replace(_queued(0), is_idle=True, waiting_bytes=0)) for _ in range(4)]
    line.sending(idle)
    assert [each.paces[-1] for each in idle] == [line.bytes_per_s / 4] * 4


async def test_who_has_sent_all_or_says_nothing_is_no_longer_asked_and_takes_nobodys_part(
    autojump_clock: Clock,
) -> None:
    line, done, mute, busy = LineShaper(), Socket(), Socket(None), Socket(_queued(0))
    for each in (done, mute, busy):
        line.sending((each,))
    await trio.sleep(1.0)
    line.sent()
    looks = done.num_looks, mute.num_looks
    await trio.sleep(1.0)
    line.sent()
    assert (done.num_looks, mute.num_looks) == looks
    assert busy.num_looks > 2


async def test_a_connection_whose_stream_is_over_takes_nobodys_part_though_a_word_is_said_on_it(
    autojump_clock: Clock,
) -> None:
    """Kept connections, on which the next round is greeted, held the contributions of that to half of the line."""
    line, sockets = LineShaper(), [Socket(), Socket()]
    await _send_for(line, sockets, 0.7, 12e6)
    line.left(sockets[:1])
    line.sending(sockets[1:])
    await trio.sleep(1.0)
    line.sent()
    assert sockets[1].paces[-1] == line.bytes_per_s < inf


async def test_the_kernel_is_asked_some_twenty_times_a_second_and_less_often_where_there_are_many(
    autojump_clock: Clock,
) -> None:
    for num_streams, every_s in ((1, LOOK_EVERY_S), (100, 100 * LOOK_STREAM_S)):
        line, sockets = LineShaper(), [Socket(_queued(0)) for _ in range(num_streams)]
        for each in sockets:
            line.sending((each,))
        before = sockets[0].num_looks
        for _ in range(1000):
            await trio.sleep(0.01)
            line.sent()
        assert 0.7 * 10.0 / every_s < sockets[0].num_looks - before <= 10.0 / every_s + 1
