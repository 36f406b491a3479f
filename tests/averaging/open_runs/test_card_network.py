"""A directory of real nodes: a host publishes its card, a volunteer reads it, and false ones are left out."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from averaging.network.libp2p.libp2p_network import Libp2pNetwork
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.open_runs import card_network
from averaging.open_runs.card_directory import RUNS_KEY, CardRule, publish_card
from averaging.open_runs.card_network import cards_in_directory, directory_node, visited_directory
from protocol.errors import MachineError, UnreachableError
from protocol.host import card_stamp
from protocol.host.run_card import seal_card
from protocol.identity.identity_file import open_identity
from tests.protocol.host.test_card_stamp import stamped_card
from tests.protocol.host.test_run_card import CARD, HOST, OTHER, RUN, VERIFIER

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


@asynccontextmanager
async def _two_nodes(folder: Path) -> AsyncIterator[list[Libp2pNetwork]]:
    """Two nodes of one directory; the second knows the first."""
    with ExitStack() as files:
        held = [files.enter_context(open_identity(folder / name / "identity")) for name in ("one", "two")]
        async with (
            open_asyncio_thread() as thread,
            directory_node(thread, held[0], LOOPBACK, (), (), time.time) as one,
            directory_node(thread, held[1], LOOPBACK, (), one.addresses(), time.time) as two,
        ):
            yield [one, two]


async def test_a_card_published_at_one_node_is_read_at_another_and_false_cards_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_stamp, "STAMP_BITS", 2)
    async with _two_nodes(tmp_path) as (one, two):
        now_unix_s = time.time()
        unstamped, good = (
            seal_card(OTHER, RUN, CARD, now_unix_s),
            seal_card(HOST, RUN, stamped_card(HOST, now_unix_s, 2), now_unix_s),
        )
        forged = seal_card(OTHER, RUN, replace(CARD, name="forged"), now_unix_s)
        async with visited_directory(one.addresses(), time.time, CardRule(VERIFIER)) as host:
            assert await publish_card(host, good, HOST.peer_id, now_unix_s)
            assert not await publish_card(host, b"junk", OTHER.peer_id, now_unix_s)
            assert not await publish_card(host, unstamped, OTHER.peer_id, now_unix_s)
            assert not await publish_card(host, forged, HOST.peer_id, now_unix_s + 1)
            assert not await host.publish("another key", HOST.peer_id, good, expires_unix_s=now_unix_s + 60)
        assert await cards_in_directory(two.addresses(), time.time) == ([good], 0)
        assert [entry.subkey for entry in await one.lookup(RUNS_KEY)] == [HOST.peer_id]


async def test_a_directory_that_is_away_is_no_empty_one() -> None:
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(UnreachableError, match="no node of a directory answers"),
    ):
        await cards_in_directory((f"/ip4/127.0.0.1/tcp/9/p2p/{HOST.peer_id}",), time.time)
    assert [each["event"] for each in logs if each["log_level"] in ("warning", "error")] == [], "one line is enough"


async def test_a_full_disk_is_no_bug_of_a_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(card_network.tempfile, "TemporaryDirectory", full)
    with pytest.raises(MachineError, match="No space left"):
        async with visited_directory((), time.time, CardRule(VERIFIER)):
            pass
