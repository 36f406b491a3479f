"""Work by days, as commits credit it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from coordinator.ledger.juniors import work_days
from coordinator.ledger.ledger import open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.ledger.work_keeper import WorkKeeper, work_in
from coordinator.policy.standing_core import WorkDay
from coordinator.progress.chain_log import ChainLog
from protocol.ids import CommitId
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import Disagreement
from protocol.rounds.messages.wire import encode_record
from tests.coordinator.chain_world import VERIFIER, Chain
from tests.protocol.rounds.made_commits import signed_record
from tests.protocol.rounds.round_table import NUM_CHUNKS, Table
from tests.virtual import InlineOffload, VirtualClock


def _link(num_left_out: int) -> tuple[ChainLink, Table]:
    """A commit of three members with 100 tokens each; of the first so many chunks of 12 are left out."""
    table = Table(3)
    record = signed_record(table.genesis, table.live())
    first = record.contributors[0]
    slices = [replace(part, disagreeing=()) for part in record.slices]
    left = num_left_out
    for place, part in enumerate(slices):
        here = min(left, part.stop_chunk - part.first_chunk)
        left -= here
        out = (Disagreement(first.peer, here, -100),) if here else ()
        slices[place] = replace(part, disagreeing=out)
    credited = first.tokens * (NUM_CHUNKS - num_left_out) // NUM_CHUNKS
    total = record.total_tokens - first.credited_tokens + credited
    contributors = (replace(first, credited_tokens=credited), *record.contributors[1:])
    record = replace(record, slices=tuple(slices), contributors=contributors, total_tokens=total)
    return link_after(table.genesis, encode_record(record)), table


@pytest.mark.parametrize(("num_left_out", "credited"), [(0, 100), (6, 50), (12, 0)])
def test_work_that_reducers_left_out_counts_as_brought_and_not_as_credited(num_left_out: int, credited: int) -> None:
    link, _ = _link(num_left_out)
    assert link.record is not None
    first = link.record.contributors[0].peer
    found = {work.peer: work.day for work in work_in([link], 7)}
    assert found[first] == WorkDay(7, credited, 100)
    assert len(found) == 3
    assert {day for peer, day in found.items() if peer != first} == {WorkDay(7, 100, 100)}


async def test_each_commit_is_counted_once_on_its_day_also_over_a_restart(
    tmp_path: Path, autojump_clock: object
) -> None:
    clock, chain = VirtualClock(), Chain()
    for _ in range(3):
        chain.commit()
    log = ChainLog(chain.genesis, chain.run_id, VERIFIER)
    log.add(log.verify(chain.certificates).new)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        writer = LedgerWriter(ledger, InlineOffload())
        keeper = WorkKeeper(writer, clock)
        await keeper.restore()
        await keeper.look(None)
        for _ in range(3):
            await keeper.look(log)
        again = WorkKeeper(writer, clock)
        await again.restore()
        await again.look(log)
        total = sum(day.credited_tokens for days in again.days.values() for day in days)
        assert total == log.head.total_tokens
        assert again.days == keeper.days
        (peer, *_) = again.days
        assert list(again.days[peer]) == list(work_days(ledger, peer))


async def test_a_ledger_that_cannot_be_written_is_tried_again(tmp_path: Path, autojump_clock: object) -> None:
    head = SimpleNamespace(commit=CommitId(b"h" * 32), index=1)
    chain = SimpleNamespace(head=head, behind=lambda _: [(head.commit, 1)], link=lambda _: None)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        keeper = WorkKeeper(LedgerWriter(ledger, InlineOffload()), VirtualClock())
        await keeper.restore()
        ledger.rows("PRAGMA query_only = ON")
        await keeper.look(cast("ChainLog", chain))
        ledger.rows("PRAGMA query_only = OFF")
        await keeper.look(cast("ChainLog", chain))
        assert ledger.get("work counted to") == (1).to_bytes(8, "big")


async def test_a_round_counts_once_though_the_host_changes_to_another_lineage_and_back(
    tmp_path: Path, autojump_clock: object
) -> None:
    one, other = _link(0)[0], _link(6)[0]
    links = {one.commit: one, other.commit: other}
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        keeper = WorkKeeper(LedgerWriter(ledger, InlineOffload()), VirtualClock())
        await keeper.restore()
        for link in (one, other, one):
            behind = [(link.commit, link.index), (link.parent, 0)]
            chain = SimpleNamespace(head=link, behind=lambda _, found=behind: found, link=links.get)
            await keeper.look(cast("ChainLog", chain))
        assert {day.credited_tokens for days in keeper.days.values() for day in days} == {100}
