"""Which commits become milestones.

Rules: R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.history import milestone_core
from coordinator.history.milestone_core import due_milestones, is_one_due
from protocol.rounds.lineage.chain_link import ChainLink
from tests.protocol.rounds.made_commits import lineage_on
from tests.protocol.rounds.round_table import Table


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MILESTONE_EVERY", 4), ("SETTLED", 2), ("MAX_DEPTH", 8)):
        monkeypatch.setattr(milestone_core, name, value)


def _links(length: int) -> list[ChainLink]:
    table = Table(1)
    return [made.link for made in lineage_on(table.genesis, table.live(), length)]


def _lone(link: ChainLink) -> ChainLink:
    assert link.record is not None
    return replace(link, content=replace(link.record, lone=True))


def _due(newest: int, links: list[ChainLink]) -> list[int]:
    return [link.index for link in due_milestones(newest, links)]


def test_one_in_so_many_commits_is_signed_once_it_is_settled() -> None:
    links = _links(14)
    assert [_due(0, links[:length]) for length in (0, 5, 6, 9, 10, 14)] == [[], [], [4], [4], [4, 8], [4, 8, 12]]
    assert _due(4, links[4:]) == _due(4, links) == [8, 12]
    assert _due(12, links) == []
    assert [is_one_due(0, 5), is_one_due(0, 6), is_one_due(4, 9), is_one_due(4, 10)] == [False, True, False, True]


def test_a_lone_commit_holds_milestones_up_until_no_fork_from_there_is_followed() -> None:
    """Others may still come with a quorum's commit in its place."""
    links = _links(14)
    links[5] = _lone(links[5])
    assert _due(0, links[:13]) == [4]
    assert _due(0, links) == [4, 8, 12]
    assert _due(4, links[:13]) == []


def test_a_lone_commit_after_a_milestone_does_not_hold_it_up() -> None:
    links = _links(7)
    links[5] = _lone(links[5])
    assert _due(0, links) == [4]
