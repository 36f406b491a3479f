"""Tests of the end of a run at a peer: how long it stays, and the words for its owner."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from peer.session.build_rounds import finish
from peer.session.leaving import LINGER_S

Clock = trio.testing.MockClock


@dataclass
class _Host:
    """Answers from `back_s` on, and has the last checkpoint `writes_s` later."""

    back_s: float
    writes_s: float = 2.0
    last_reply: SimpleNamespace | None = None

    async def report_once(self) -> bool:
        await trio.sleep(0.1)
        now_s = trio.current_time()
        if now_s < self.back_s:
            return False
        self.last_reply = SimpleNamespace(is_final_checkpoint_written=now_s >= self.back_s + self.writes_s)
        return True


@dataclass
class _Board:
    said: dict[str, None] = field(default_factory=dict)

    def say(self, state: str, reason: str) -> None:
        assert state == "finished"
        self.said[reason.removeprefix("the run is complete; ")] = None


async def _finished(host: _Host, *, num_parts: int = 0, adapter: object = None) -> list[str]:
    """The reasons that a peer gives, each once, until it may leave."""
    board = _Board()
    joined = SimpleNamespace(
        life=SimpleNamespace(board=board),
        reporter=host,
        network=SimpleNamespace(traffic=lambda: SimpleNamespace(bulk_bytes_up=0)),
        membership=SimpleNamespace(
            manifest=SimpleNamespace(num_parts=num_parts, config=SimpleNamespace(adapter=adapter))
        ),
    )
    service = SimpleNamespace(state=SimpleNamespace(peers={}), chain=SimpleNamespace(head=SimpleNamespace(index=8)))
    await finish(joined, service)  # type: ignore[arg-type]
    return list(board.said)


async def test_finished_peer_waits_for_the_hosts_checkpoint_and_says_so(autojump_clock: Clock) -> None:
    waiting, last = await _finished(_Host(back_s=0.0, writes_s=8.0))
    assert waiting == "staying until the host has the last checkpoint"
    assert last == "its model: potluck checkpoint export latest OUT_DIR"
    assert trio.current_time() < 10.0


@pytest.mark.parametrize(
    ("num_parts", "adapter", "command"),
    [(2, None, "fetch"), (0, object(), "export latest OUT_DIR --merged"), (0, None, "export latest OUT_DIR")],
)
async def test_finished_peer_names_the_command_that_gives_this_kind_of_model(
    num_parts: int, adapter: object, command: str, autojump_clock: Clock
) -> None:
    *_, last = await _finished(_Host(back_s=0.0, writes_s=8.0), num_parts=num_parts, adapter=adapter)
    assert last == f"its model: potluck checkpoint {command}"


async def test_finished_peer_whose_host_is_away_says_how_long_it_waits_and_what_to_do_then(
    autojump_clock: Clock,
) -> None:
    *_, waiting, last = await _finished(_Host(back_s=1e9))
    assert waiting == "staying for 30 s for the host, which does not answer"
    assert "the host does not have the last rounds yet" in last
    assert trio.current_time() == LINGER_S


async def test_finished_peer_gives_a_host_that_comes_back_late_the_time_for_its_checkpoint(
    autojump_clock: Clock,
) -> None:
    *_, last = await _finished(_Host(back_s=LINGER_S - 1.0, writes_s=10.0))
    assert "the host does not have" not in last
    assert LINGER_S + 9.0 <= trio.current_time() < LINGER_S + 10.0


async def test_finished_peer_leaves_once_a_host_that_comes_back_has_the_last_checkpoint(autojump_clock: Clock) -> None:
    said = await _finished(_Host(back_s=12.0))
    assert said == [
        "staying until the host has the last checkpoint",
        "staying for 30 s for the host, which does not answer",
        "its model: potluck checkpoint export latest OUT_DIR",
    ]
    assert 14.0 <= trio.current_time() < 16.0
