"""The host's own card, and how it is brought to a list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import Network
from averaging.open_runs.card_directory import CARD_TTL_S, RUNS_KEY, CardRule
from averaging.open_runs.card_network import Now
from coordinator.admission import own_card
from coordinator.admission.own_card import AGAIN_S, EVERY_S, OwnCard, card_of, keep_in_directory, keep_listed
from coordinator.run.run_files import RunFiles
from protocol.errors import UnreachableError
from protocol.host import card_stamp
from protocol.host.card_stamp import day_of, is_stamped
from protocol.host.run_card import CARD_LIFE_S, MAX_ABOUT, open_card
from protocol.run.page_section import PageSection
from tests.coordinator.chain_world import HOST
from tests.coordinator.host_world import open_host
from tests.protocol.host.test_run_card import CARD, RUN, VERIFIER
from tests.virtual import InlineOffload, VirtualClock


async def test_a_card_tells_the_run_as_it_is_now(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        page = PageSection(description="Our letters.\nAll of them. " + "x" * 300)
        run = cast("RunFiles", SimpleNamespace(manifest=host.manifest, page=page))
        card = card_of(run, host.tracker, CARD.line)
    assert (card.name, card.line, card.total_tokens, card.trained_tokens, card.num_peers) == (
        "tiny",
        CARD.line,
        1000,
        0,
        0,
    )
    assert card.about.startswith("Our letters. All of them.")
    assert len(card.about) <= MAX_ABOUT
    assert card.model.startswith("llama, ")


async def test_a_card_comes_again_before_it_is_old_and_sooner_where_the_list_did_not_take_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    clock, came = VirtualClock(), list[tuple[str, float]]()
    answers = iter(["", "it answered with status 429", ""])

    def post(url: str, raw: bytes) -> str:
        card = open_card(raw, verifier=VERIFIER, now_unix_s=clock.unix_s())
        assert card.card == CARD
        came.append((url, clock.monotonic_s()))
        return next(answers, "")

    monkeypatch.setattr(own_card, "post_card", post)
    begin_s = clock.monotonic_s()
    with trio.move_on_after(2.5 * EVERY_S):
        await keep_listed(OwnCard(lambda: CARD, HOST, RUN, clock), "http://list", InlineOffload())
    assert [round(at_s - begin_s) for _, at_s in came] == [0, EVERY_S, EVERY_S + AGAIN_S, 2 * EVERY_S + AGAIN_S]
    assert EVERY_S < CARD_LIFE_S


async def test_a_card_is_published_again_before_it_expires_and_a_directory_that_is_away_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: object,
) -> None:
    monkeypatch.setattr(card_stamp, "STAMP_BITS", 2)
    stamps = set[tuple[int, int]]()
    clock, came, visits = VirtualClock(), list[tuple[float, float]](), list[float]()

    class Directory:
        async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
            assert (key, subkey) == (RUNS_KEY, HOST.peer_id)
            found = open_card(value, verifier=VERIFIER, now_unix_s=clock.unix_s())
            assert replace(found.card, stamp=0, stamp_day=0) == CARD
            assert found.card.stamp_day == day_of(clock.unix_s())
            assert is_stamped(found, 2)
            stamps.add((found.card.stamp_day, found.card.stamp))
            came.append((clock.monotonic_s() - begin_s, expires_unix_s - clock.unix_s()))
            return len(came) != 3

    @asynccontextmanager
    async def visit(addresses: Sequence[str], _unix_s: Now, _rule: CardRule) -> AsyncIterator[Network]:
        assert addresses == ("/node",)
        visits.append(clock.monotonic_s() - begin_s)
        if len(visits) <= 2:
            raise UnreachableError("nobody there", "a node")
        yield cast("Network", Directory())

    begin_s, every_s = clock.monotonic_s(), CARD_TTL_S / 3
    with capture_logs() as logs, trio.move_on_after(2 * AGAIN_S + 2.2 * every_s):
        await keep_in_directory(OwnCard(lambda: CARD, HOST, RUN, clock), ("/node",), InlineOffload(), visit)
    assert visits == [0, AGAIN_S, 2 * AGAIN_S]
    assert came == [(2 * AGAIN_S + number * every_s, CARD_TTL_S) for number in range(3)]
    assert len(stamps) == len({day for day, _ in stamps}), "one stamp serves a day"
    told = [line["event"] for line in logs if line["event"] != "card_stamp_begun"]
    assert told == ["run_not_announced", "run_announced", "run_announced", "run_not_announced"]
