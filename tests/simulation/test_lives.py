"""The accounts of tokens find what vanished, in whichever process life it did."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from protocol.ids import CommitId, PeerId, Root
from tests.simulation.accounting import LIFE_TOKENS, Tokens
from tests.simulation.invariants import Observed, Violation
from tests.simulation.lives import AWAY, COUNTED, LEFT, MINTED, READY, UNCOUNTED, UNREPORTED, Lives
from tests.simulation.trainer import NO_ANCHOR, UNNAMED

ME = PeerId("me")
HEAD, OTHER = CommitId(b"h" * 32), CommitId(b"o" * 32)
ROOT = Root(b"r" * 32)
SECOND = LIFE_TOKENS


@dataclass
class _Trainer:
    minted: Tokens
    ready: Tokens
    returning: Tokens = field(default_factory=list)
    dropped: dict[str, Tokens] = field(default_factory=dict)


class _Observed(Observed):
    """Lineages by their heads: what they counted of ours."""

    def __init__(self, lineages: dict[CommitId, Tokens]) -> None:
        super().__init__()
        self.lineages = lineages

    def counted(self, peer: PeerId, head: CommitId) -> Tokens:
        return self.lineages[head]


def _lives(trainer: _Trainer, lineages: dict[CommitId, Tokens]) -> Lives:
    lives = Lives(ME, _Observed(lineages))
    lives.begin(trainer)
    return lives


def test_what_is_neither_counted_nor_ready_is_lost() -> None:
    lives = _lives(_Trainer([(0, 500)], [(300, 500)]), {HEAD: [(0, 200)]})
    with pytest.raises(Violation, match="lost"):
        lives.account(HEAD)


def test_what_is_counted_ready_or_dropped_with_a_reason_is_accounted_for() -> None:
    lives = _lives(_Trainer([(0, 500)], [(300, 500)], dropped={NO_ANCHOR: [(200, 300)]}), {HEAD: [(0, 200)]})
    assert lives.account(HEAD) == {MINTED: 500, COUNTED: 200, READY: 200, NO_ANCHOR: 100}


def test_what_is_dropped_for_no_reason_is_lost() -> None:
    lives = _lives(_Trainer([(0, 500)], [(300, 500)], dropped={UNNAMED: [(200, 300)]}), {HEAD: [(0, 200)]})
    with pytest.raises(Violation, match="no reason"):
        lives.account(HEAD)


def test_tokens_that_vanished_before_a_process_was_killed_are_found_at_its_death() -> None:
    lives = _lives(_Trainer([(0, 500)], [(300, 500)]), {HEAD: [(0, 200)]})
    with pytest.raises(Violation, match="in one life"):
        lives.end(HEAD, is_killed=True)


def test_a_killed_process_loses_what_was_ready_and_its_successor_accounts_for_its_own() -> None:
    lives = _lives(
        _Trainer([(0, 500)], [(200, 500)]), {HEAD: [(0, 200)], OTHER: [(0, 200), (SECOND + 300, SECOND + 350)]}
    )
    lives.tell(HEAD, ROOT, [(200, 300)])
    lives.end(HEAD, is_killed=True)
    trainer = _Trainer([(SECOND + 300, SECOND + 400)], [(SECOND + 350, SECOND + 400)])
    lives.begin(trainer)
    assert lives.account(OTHER) == {MINTED: 600, COUNTED: 250, READY: 50, UNCOUNTED: 100, UNREPORTED: 200}
    trainer.ready = []
    with pytest.raises(Violation, match="lost"):
        lives.account(OTHER)


def test_what_a_killed_process_had_counted_is_lost_only_with_its_lineage() -> None:
    lives = _lives(_Trainer([(0, 200)], []), {HEAD: [(0, 200)], OTHER: []})
    lives.end(HEAD, is_killed=False)
    assert lives.account(HEAD) == {MINTED: 200, COUNTED: 200}
    assert lives.account(OTHER) == {MINTED: 200, AWAY: 200}


def test_who_switches_lineages_answers_for_what_the_old_one_counted_of_earlier_lives() -> None:
    lives = _lives(_Trainer([(0, 200)], []), {HEAD: [(0, 200)], OTHER: []})
    lives.end(HEAD, is_killed=True)
    trainer = _Trainer([(SECOND, SECOND)], [(0, 200)])
    lives.begin(trainer)
    lives.leave_lineage(HEAD)
    assert lives.account(OTHER) == {MINTED: 200, READY: 200}
    trainer.ready = []
    with pytest.raises(Violation, match="in one life"):
        lives.account(OTHER)


def test_who_leaves_takes_along_what_was_ready() -> None:
    lives = _lives(_Trainer([(0, 500)], [(200, 500)]), {HEAD: [(0, 200)]})
    lives.end(HEAD, is_killed=False)
    assert lives.account(HEAD) == {MINTED: 500, COUNTED: 200, LEFT: 300}


def test_the_newest_offers_must_be_here_when_lineages_change() -> None:
    lives = _lives(_Trainer([], []), {})
    offers = [(HEAD, Root(bytes([number]) * 32)) for number in range(5)]
    for base, root in offers:
        lives.tell(base, root, [(0, 100)])
    assert lives.has_offers(offers[1:])
    assert not lives.has_offers(offers[:1])
